"""A page that is not about a run: drawings, tables and their explanations, in one file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from markupsafe import Markup

from isthmus.programs.report.page import rendered
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import write_bytes


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A section: a drawing, a table (columns and rows of text), and sentences; any of them may be left out."""

    title: str
    drawing: Markup | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


@final
@dataclass(frozen=True, slots=True)
class Sheet:
    """The page: its title, its subject in a sentence, and its parts."""

    title: str
    lead: str
    parts: Sequence[Part]


def write_sheet(path: Path, sheet: Sheet) -> None:
    """Write the page, whole or not at all; ConfigError if the folder is missing, or takes no file."""
    try:
        write_bytes(path, rendered("sheet.html", sheet=sheet).encode("utf-8"))
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(f"Writing {path}", "a folder that takes files", found, "Name another with --page.") from error
