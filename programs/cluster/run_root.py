"""The place of run folders that are requested over the wire: below one folder, the root of a machine's daemon.

A request may name a place below the root, in plain words: no absolute path, no `..`, nothing hidden, no way through a
link or through the folder of another run, and no folder that has anything in it. So the files that a daemon writes on
request, some of them in the request's own words (`config.toml`), never lie where another program would read them. Only
the owner of the machine sets the root.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Self, final

from isthmus.programs.request import new_folder
from isthmus.programs.request.run_lock import LOCK
from isthmus.runtime.errors import ConfigError

PARTS_MAX: Final = 8
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Valid names of a run among the daemons of its machines; an outpost's folder has this name."""
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DO: Final = "Name a folder below it with --run-dir, or let its owner set [runs] folder in machine.toml."


@final
@dataclass(frozen=True, slots=True)
class RunRoot:
    """The folder below which the runs of a daemon are, without links."""

    folder: Path

    @classmethod
    def at(cls, folder: Path | None) -> Self:
        """The root that machine.toml names, or else the current folder."""
        return cls(Path(os.path.realpath(folder or Path.cwd())))

    def name_of(self, path: Path, doing: str) -> str:
        """The name of a folder relative to the root; ConfigError if it is not below it."""
        if not path.is_relative_to(self.folder) or path == self.folder:
            raise ConfigError(doing, f"a folder below {self.folder}", str(path), _DO)
        return str(path.relative_to(self.folder))

    def make(self, name: str, program: str, now: datetime, text: str) -> Path:
        """Make the run folder of that name, or, without one, the next free one of the program, with `text` as its
        config.toml; ConfigError for a name that is none, and for a folder that cannot be made."""
        doing = f"Making the run folder {name[:200]!r} below {self.folder}"
        if not name:
            _check_part(program, f"Naming a run folder after the program {program[:200]!r}")
            path = new_folder.choose(None, program, now, self.folder)
        else:
            path = self._place(name, doing)
            new_folder.choose(path, program, now)
        self._check_way(path, doing)
        return new_folder.make(path, text, is_given=bool(name))

    def existing(self, name: str, doing: str) -> Path:
        """The existing folder of that name; ConfigError if there is none."""
        path = self._place(name, doing)
        self._check_links(path, doing)
        if not path.is_dir():
            do = "Copy the run folder there, or name one that is."
            raise ConfigError(doing, f"a folder below {self.folder}", f"{path}, where none is", do)
        return path

    def _place(self, name: str, doing: str) -> Path:
        """The path of a name; ConfigError if the name is invalid."""
        parts = name.split("/")
        if len(parts) > PARTS_MAX:
            raise ConfigError(doing, f"a path of at most {PARTS_MAX} parts", f"{len(parts)} of them", _DO)
        for part in parts:
            _check_part(part, doing)
        return self.folder.joinpath(*parts)

    def _check_way(self, path: Path, doing: str) -> None:
        """ConfigError if the path to a folder contains a symbolic link or a run, or the folder is not empty."""
        self._check_links(path, doing)
        for above in path.parents:
            if above == self.folder:
                break
            if new_folder.has_run(above):
                raise ConfigError(doing, "a folder outside of other runs", f"{path}, in the run {above}", _DO)
        if path.exists() and any(entry.name != LOCK for entry in path.iterdir()):
            raise ConfigError(doing, "a new folder, or an empty one", f"{path}, with something in it", _DO)

    def _check_links(self, path: Path, doing: str) -> None:
        if os.path.realpath(path) != str(path):
            raise ConfigError(doing, "a path without links", f"{path}, which leads to {os.path.realpath(path)}", _DO)


def _check_part(part: str, doing: str) -> None:
    """ConfigError unless `part` is a plain folder name."""
    if not _PART.fullmatch(part):
        expected = "names of letters, digits, '.', '_' and '-', which begin with no '.', between single '/'"
        raise ConfigError(doing, expected, repr(part[:200]), _DO)
