"""The files that a training run reads.

It decides the list of files and their order, and reads none of them: `corpus` does. Without paths it is Python's own
standard library, which is on every machine that can run this, so that a first run needs no download.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

READING = "Reading the training data"

_NAME_OTHERS = "Name other files or folders with --data."

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


class DataError(ValueError):
    """Data that cannot be trained on: what was being done, what was expected, what was found, what to do."""

    def __init__(self, doing: str, expected: str, found: str, do: str) -> None:
        self.doing, self.expected, self.found, self.do = doing, expected, found, do
        super().__init__(f"{doing}: expected {expected}, found {found}.\n  {do}")


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read. Size and time of change make a changed file another Source, so that it can be a cache's key."""

    path: str
    size_bytes: int
    changed_ns: int

    @property
    def holds_tokens(self) -> bool:
        """Whether it holds token ids and not text, by its name."""
        return self.path.endswith((".npy", ".bin"))


def find(paths: Sequence[str] = ()) -> tuple[Source, ...]:
    """The files under `paths` in a fixed order; without paths, those of the standard library.

    Folders recursively and sorted, hidden and empty files left out, a file that is named twice once. DataError if a
    path does not exist or cannot be listed, or if nothing is left.
    """
    sources: dict[str, Source] = {}
    try:
        for file in [file for path in paths for file in _files(Path(path))] if paths else _standard_library():
            status = file.stat()
            if status.st_size:
                sources[os.path.realpath(file)] = Source(str(file), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise DataError(
            READING, "files that can be listed", str(error), "Correct --data, or the permissions."
        ) from error
    if not sources:
        where = ", ".join(paths) if paths else f"Python's standard library, {sysconfig.get_path('stdlib')}"
        raise DataError(READING, f"text or tokens in {where}", "no file that is neither hidden nor empty", _NAME_OTHERS)
    return tuple(sources.values())


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        return iter((root,))
    if root.is_dir():
        return _walk(root, lambda name: not name.startswith("."))
    raise DataError(READING, f"a file or a folder at {root}", "nothing there", _NAME_OTHERS)


def _standard_library() -> Iterator[Path]:
    """Its Python files, without tests, installed packages, and files generated for one machine."""

    def keep(name: str) -> bool:
        return name not in _TEST_FOLDERS | _FOREIGN_FOLDERS and not name.startswith(("config-", "_sysconfigdata"))

    return (file for file in _walk(Path(sysconfig.get_path("stdlib")), keep) if file.suffix == ".py")


def _walk(root: Path, keep: Callable[[str], bool]) -> Iterator[Path]:
    """Every regular file under `root`; `keep` selects the name of each file and folder below it."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(filter(keep, folders))
        yield from (file for name in sorted(filter(keep, names)) if (file := Path(folder, name)).is_file())
