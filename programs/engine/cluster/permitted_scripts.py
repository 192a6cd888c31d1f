"""The scripts of users that a machine starts for runs: those that its owner lists in machine.toml, and no others.

A home sends a path, a module's name, arguments, a working folder and perhaps an interpreter. What of it decides which
code runs has to be listed: `scripts` has files of Python, folders, whose files are permitted and in which scripts may
run, modules as `-m NAME`, and programs; `pythons` has interpreters. A file may always run in its own folder. Python
looks for modules in the working folder of a module first, so that folder has to be listed for each `-m`; a program has
to be listed by itself, because a folder may have an interpreter in it. Arguments are the home's: whoever lists a script
permits whatever it does with any.

Whether it is there, and what it is, is a second question, which only machines are asked that run it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

from isthmus.programs.engine.request.reference import script_of
from isthmus.programs.loop_script import FILE, MODULE, PROGRAM, LoopScript
from isthmus.programs.settings import collecting, inline
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.wire import security_keys

FORMS: Final = (FILE, MODULE, PROGRAM)
RANKS_MAX: Final = 1024
"""Processes of one island of a script."""
LOOK_SECONDS_MAX: Final = 40.0
"""For an interpreter to look for modules: it imports the packages that a module is in."""
_MODULE: Final = "-m "
_LOOK: Final = """
import importlib.util, sys
sys.path.insert(0, "")
for name in sys.argv[1:]:
    try:
        is_there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        print("isthmus-lacks", name)
"""
"""What an interpreter is asked with the names of modules: it says which of them it does not find."""
_BLOCK_BYTES: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class PermittedScripts:
    """Those of a machine: files and folders by paths without links, modules as `-m NAME`, and interpreters, whose
    paths may be links, as those of environments are."""

    scripts: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()

    @classmethod
    def of(cls, scripts: Sequence[str], pythons: Sequence[str], folder: Path) -> Self:
        """Those that a machine.toml in a folder lists."""

        def path(text: str) -> str:
            return os.path.abspath(os.path.join(folder, os.path.expanduser(text)))

        own = [text if text.startswith(_MODULE) else os.path.realpath(path(text)) for text in scripts]
        return cls(tuple(own), tuple(map(path, pythons)))

    def reading_faults(self) -> Iterator[Fault]:
        """What is wrong with the list: files and folders that another user could write, who would then decide what
        runs here. A missing one is refused when it is requested."""
        faults: list[Fault] = []
        for key, paths in (("scripts", self.scripts), ("pythons", self.pythons)):
            for text in paths:
                if not text.startswith(_MODULE) and os.path.exists(text):
                    with collecting(faults):
                        security_keys.check_owned(os.stat(text), Path(text), f"Reading programs.{key}, {text!r}")
        yield from faults

    def faults(self, script: LoopScript, machine: str) -> Iterator[Fault]:
        """Why a machine's owner does not permit a script; nothing is looked at but names."""
        doing = f"Handing a script to the daemon {machine!r}"
        if not _is_plain(script):
            do = "Use one version everywhere."
            expected = f"whole paths without `..`, or the name of a module, of 1 to {RANKS_MAX} ranks"
            yield Fault(doing, expected, shortened(repr(script), 200), do)
            return
        lacking = {"scripts": self._lacking(script), "pythons": self._lacking_pythons(script)}
        if not any(lacking.values()):
            return
        lines = "; ".join(inline({key: texts}) for key, texts in lacking.items() if texts)
        do = f"Let its owner add it below [programs] of its machine.toml, and start the daemon with that file: {lines}"
        found = ", ".join(each for texts in lacking.values() for each in texts)
        yield Fault(doing, "scripts that its machine.toml lists", f"others: {found}", do)

    def _lacking(self, script: LoopScript) -> list[str]:
        """What the list of scripts would have to have besides."""
        real, needed = os.path.realpath(script.script), list[str]()
        if script.form == MODULE:
            parts = script.script.split(".")
            above = [_MODULE + ".".join(parts[: count + 1]) for count in range(len(parts))]
            if not set(above) & set(self.scripts):
                needed.append(_MODULE + script.script)
        elif real not in self.scripts and not (script.form == FILE and self._is_in_listed(real)):
            needed.append(script.script)
        folder = os.path.realpath(script.folder)
        is_own = script.form == FILE and folder == os.path.dirname(real)
        if not is_own and folder not in self.scripts and not self._is_in_listed(folder):
            needed.append(script.folder)
        return needed

    def _lacking_pythons(self, script: LoopScript) -> list[str]:
        is_listed = not script.python or os.path.abspath(script.python) in self.pythons
        return [] if is_listed else [script.python]

    def _is_in_listed(self, path: str) -> bool:
        """Whether a path is below one that is listed."""
        return any(not each.startswith(_MODULE) and Path(path).is_relative_to(each) for each in self.scripts)


NO_SCRIPTS: Final = PermittedScripts()


def _is_plain(script: LoopScript) -> bool:
    """Whether a script names what it starts in one way only.

    What is looked up in the list is what the interpreter gets: a relative path would be looked up from the folder of
    this daemon and started in another one, a word that begins with a hyphen is an option, and `realpath` cancels a
    folder that does not exist against `..`, which the kernel does not.
    """
    paths = [script.folder, *([] if script.form == MODULE else [script.script])]
    paths += [script.python] if script.python else []
    if script.form == MODULE and not all(part.isidentifier() for part in script.script.split(".")):
        return False
    is_known = script.form in FORMS and 1 <= script.ranks <= RANKS_MAX
    return is_known and all(os.path.isabs(path) and path == os.path.normpath(path) for path in paths)


def absences(script: LoopScript, machine: str) -> Iterator[Fault]:
    """What a machine lacks of a script, or could have from another user; it may start the script's interpreter."""
    doing = f"Looking for {script.name} on the machine {machine!r}"
    do = "Put it there: a script has the same path, folder and interpreter on every machine that runs it."
    found: list[Fault] = []
    if script.form != MODULE:
        if (what := _other_than_file(script.script, must_run=script.form == PROGRAM)) is not None:
            found.append(Fault(doing, f"the script {script.script}", what, do))
        else:
            with collecting(found):
                path = Path(os.path.realpath(script.script))
                security_keys.check_owned(path.stat(), path, doing)
    if not os.path.isdir(script.folder):
        found.append(Fault(doing, f"its working folder {script.folder}", "none", do))
    if script.python and (what := _other_than_file(script.python, must_run=True)) is not None:
        found.append(Fault(doing, f"the interpreter {script.python}", what, do))
    yield from found
    modules = [*([script.script] if script.form == MODULE else []), *(["isthmus"] if script.python else [])]
    if modules and not found:
        for name in _unfound(script, modules):
            install = f"Install {name} where {script.interpreter} finds it, or in {script.folder}."
            yield Fault(doing, f"the module {name}", "none", install)


def checked_digest(task: str, machine: str) -> str:
    """The digest of the script of a task, which is looked for on this machine; '' for a task without one. ConfigError
    with what is missing."""
    script = script_of(task)
    if script is None:
        return ""
    if faults := list(absences(script, machine)):
        raise ConfigError.of(faults)
    return digest(script)


def _other_than_file(path: str, *, must_run: bool) -> str | None:
    """What is there in place of a file, in words; None for a file."""
    if not os.path.exists(path):
        return "nothing there"
    if not os.path.isfile(path):
        return "a folder" if os.path.isdir(path) else "another file"
    return "one that cannot be run" if must_run and not os.access(path, os.X_OK) else None


def _unfound(script: LoopScript, modules: Sequence[str]) -> list[str]:
    """Those of the modules that the script's interpreter does not find in its folder."""
    command = [script.interpreter, "-c", _LOOK, *modules]
    how = {"cwd": script.folder, "capture_output": True, "text": True, "check": False, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, timeout=LOOK_SECONDS_MAX, **how)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return []  # It will be seen as it is started.
    said = (line.split() for line in done.stdout.splitlines())
    return [words[1] for words in said if words[:1] == ["isthmus-lacks"]]


def are_unlike(one: str, other: str) -> bool:
    """Whether two digests say that the scripts differ; '' where there is nothing to compare."""
    return bool(one and other) and one != other


def digest(script: LoopScript) -> str:
    """SHA-256 of a script's file, or of that of its module where it lies in the working folder; '' for others."""
    paths = [Path(script.script)]
    if script.form == MODULE:
        place = Path(script.folder, *script.script.split("."))
        paths = [place.with_name(f"{place.name}.py"), place / "__main__.py"]
    for path in paths:
        if path.is_file():
            hasher = hashlib.sha256()
            try:
                with open_regular(path) as file:
                    while block := file.read(_BLOCK_BYTES):
                        hasher.update(block)
            except OSError as error:
                do = "Let the user of the daemon read it."
                raise ConfigError(f"Reading {path}", "a file that can be read", str(error), do) from None
            return hasher.hexdigest()
    return ""
