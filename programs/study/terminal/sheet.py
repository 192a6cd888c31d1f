"""A result, described once: the terminal's tables, the page and the JSON object follow from its sheet.

`show` of `study.terminal.figures` makes the text or JSON of it, and where the report is there, `write_sheet` a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

from markupsafe import Markup

if TYPE_CHECKING:
    from rich.text import Text


class Column(NamedTuple):
    """A column with its cells; `usual` is the width in letters that a terminal keeps free for it, `is_text` sets it to
    the left."""

    name: str
    cells: Sequence[str | Text]
    usual: int = 0
    is_text: bool = False


class SheetTable(NamedTuple):
    """A table; a terminal that is too narrow omits the `dispensable` columns, in this order."""

    columns: Sequence[Column]
    dispensable: Sequence[str] = ()

    @property
    def rows(self) -> list[tuple[str | Text, ...]]:
        """The cells, row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def table(
    names: Sequence[str], rows: Sequence[Sequence[str]], dispensable: Sequence[str] = (), texts: Sequence[str] = ()
) -> SheetTable:
    """The table of rows under the `names` of its columns, of which the first and `texts` are set to the left."""
    left = (names[0], *texts)
    cells = [[row[index] for row in rows] for index in range(len(names))]
    return SheetTable(
        [Column(name, each, 0, name in left) for name, each in zip(names, cells, strict=True)], dispensable
    )


@final
@dataclass(frozen=True, slots=True)
class PageSection:
    """A section: tables and sentences; and, on the page alone, a drawing with its caption, charts over `axes`, and
    links as (text, address, what follows). The terminal leaves out a section that `is_detail`."""

    title: str
    tables: Sequence[SheetTable] = ()
    notes: Sequence[str] = ()
    drawing: Markup | None = None
    caption: str = ""
    charts: Sequence[Any] = ()  # Of `charts_lines`.
    axes: Sequence[str] = ()
    links: Sequence[tuple[str, str, str]] = ()
    is_detail: bool = False


@final
@dataclass(frozen=True, slots=True)
class Sheet:
    """A result: its title, its subject in a sentence, its sections, all figures for JSON, and what is missing in it."""

    title: str
    lead: str
    parts: Sequence[PageSection]
    data: Any
    missing: str = ""
