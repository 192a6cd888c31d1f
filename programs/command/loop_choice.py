"""The script whose loop is the learners': as the option `--loop` names it, or the table [loop] of a file.

Where a run is alone on its machine, the script has to be here; on the machines of a cluster it may be, and their
daemons say whether it is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, final

import msgspec

from isthmus.programs.engine.request.reference import called
from isthmus.programs.loop_script import FILE, LOOP, MODULE, PROGRAM, LoopScript
from isthmus.programs.settings import Schema, Setting
from isthmus.runtime.errors import ConfigError

LOOP_SECTION: Final = "loop"
"""The table of a file that names a script: `--loop` in a file."""
_MODULE: Final = "-m "


class LoopTable(msgspec.Struct, kw_only=True):
    """The keys of [loop]."""

    script: Annotated[str, Setting("What `--loop` takes: FILE.py, `-m package.module`, or a program.")]
    arguments: Annotated[tuple[str, ...], Setting("What stands behind `--`.")] = ()
    folder: Annotated[str, Setting("The folder in which it runs. Default: that of the file.")] = ""
    python: Annotated[str, Setting("What `--python` takes: the interpreter of a file or module.")] = ""
    ranks: Annotated[
        int, Setting("Processes of each learner's script.", ge=1, remedy="Leave it out for one process.")
    ] = 1


def table_of(script: LoopScript) -> dict[str, Any]:
    """The table [loop] that names a script."""
    named = f"{_MODULE}{script.script}" if script.form == MODULE else script.script
    table: dict[str, Any] = {"script": named}
    table |= {"arguments": list(script.arguments)} if script.arguments else {}
    table["folder"] = script.folder
    table |= {"python": script.python} if script.python else {}
    return table | ({"ranks": script.ranks} if script.ranks != 1 else {})


@final
@dataclass(frozen=True, slots=True)
class LoopChoice:
    """What was said of a script: its name, arguments, folder, ranks and interpreter; names are relative to the folder
    `base`. `source` says where; `is_here`: it has to be on this machine."""

    named: str
    arguments: tuple[str, ...]
    folder: Path
    base: Path
    ranks: int
    python: str | None
    source: str
    python_source: str
    is_here: bool

    @classmethod
    def of_table(cls, table: Any, file: Path, *, is_here: bool) -> LoopChoice:
        """That of the table [loop] of a file; ConfigError with its faults."""
        doing = f"Reading [loop] of {file}"
        if not isinstance(table, Mapping):
            raise ConfigError(doing, "a table [loop]", repr(table), 'Write [loop], and below it script = "train.py".')
        schema = Schema.of(LOOP_SECTION, LoopTable)
        values = schema.read(table)
        if faults := list(schema.out_of_range(values)):
            raise ConfigError.of(faults)
        base = file.absolute().parent
        folder = Path(os.path.normpath(base / os.path.expanduser(values["folder"])))
        words = values["script"], values["arguments"], folder, base, values["ranks"], values["python"] or None
        return cls(*words, f"{doing}: script", f"{doing}: python", is_here)

    @property
    def reference(self) -> str:
        """The reference to its task; ConfigError if there is no such script."""
        form, script = self._script()
        made = LoopScript(script, self.arguments, str(self.folder), self.ranks, form, self._interpreter(form))
        return called(LOOP, made.keywords)

    def _script(self) -> tuple[str, str]:
        """What the script is, and its path, or the name of its module."""
        if self.named.startswith(_MODULE):
            return MODULE, self.named.removeprefix(_MODULE).strip()
        path = Path(os.path.abspath(self.base / os.path.expanduser(self.named)))
        if path.is_file():
            is_program = path.suffix != ".py" and os.access(path, os.X_OK)
            return (PROGRAM if is_program else FILE), str(path)
        if os.sep not in self.named and not path.exists() and (program := shutil.which(self.named)) is not None:
            return PROGRAM, os.path.abspath(program)
        if not self.is_here and not path.exists() and os.path.isabs(os.path.expanduser(self.named)):
            return (FILE if path.suffix == ".py" else PROGRAM), str(path)
        found = "a folder" if path.is_dir() else "nothing there"
        do = f"Name your script; paths start in {self.base}. A module is named by -m package.module."
        do += "" if self.is_here else " A script that only the machines have is named by its whole path."
        raise ConfigError(self.source, f"a Python file {path}", found, do)

    def _interpreter(self, form: str) -> str:
        """The path of what runs the script; empty for that of isthmus."""
        if self.python is None:
            return ""
        if form == PROGRAM:
            do = "Leave it out: a program has its own. Or name a FILE.py, or -m MODULE."
            raise ConfigError(self.python_source, "a script that Python runs", "a program", do)
        named = os.path.expanduser(self.python)
        named = str(self.base / named) if os.sep in named else named
        path = shutil.which(named)
        if path is None and (self.is_here or os.sep not in named):
            do = "Name the Python of an environment, such as ~/venv/bin/python."
            raise ConfigError(self.python_source, f"a program {self.python}", "none that can be run", do)
        return os.path.abspath(path or named)  # Not what it links to: the path of the link says of which environment.


def of_options(named: str, arguments: Sequence[str], ranks: int, python: str | None, *, is_here: bool) -> LoopChoice:
    """That of the options of a command that is typed in this folder."""
    here = Path.cwd()
    return LoopChoice(named, tuple(arguments), here, here, ranks, python, "Reading --loop", "Reading --python", is_here)
