"""machine.toml: what a machine's daemon may run.

`[programs] modules` lists modules (`package.module`) and files (paths from the folder of machine.toml) whose programs
and tasks this daemon may load beside the shipped ones. Nothing is imported here: a reference is judged by its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from isthmus.programs import reference, toml_file
from isthmus.programs.program import SHIPPED
from isthmus.programs.request import SHIPPED_TASK
from isthmus.programs.settings import Schema, collecting
from isthmus.runtime.errors import ConfigError, Fault, nearest

KEYS_TO_COME: Final = "Leave it out: keys are not there yet, and until then a daemon serves its own machine only."


@final
@dataclass(frozen=True, slots=True)
class MachineConfig:
    """What machine.toml says: the modules and absolute files that may be loaded."""

    modules: tuple[str, ...] = ()

    def faults(self, program: str, task: str, machine: str) -> Iterator[Fault]:
        """What this machine may not load, of the references of a program and a task."""
        shipped = {*SHIPPED, *SHIPPED.values(), SHIPPED_TASK}
        for kind, text in (("program", program), ("task", task)):
            if text.partition("(")[0] in shipped or self._permits(text):
                continue
            where = text.partition(":")[0]
            expected = "a shipped one, or one of a module that its machine.toml lists"
            do = f'Let the operator add it, and start the daemon with that file: [programs] modules = ["{where}"]'
            yield Fault(f"Handing a {kind} to the daemon {machine!r}", expected, repr(text), do)

    def _permits(self, text: str) -> bool:
        where = text.partition(":")[0]
        if reference.is_file(where):
            return os.path.realpath(where) in self.modules
        return any(f"{where}.".startswith(f"{module}.") for module in self.modules)


def read(file: Path | None) -> MachineConfig:
    """What a machine.toml says, or the default without one; ConfigError with all that is wrong with it."""
    if file is None:
        return MachineConfig()
    document = toml_file.read(file, "the machine's configuration", "Name a file with --config.")
    faults: list[Fault] = []
    if "keys" in document:
        faults.append(Fault(f"Reading {file}", "a machine without keys", "[keys]", KEYS_TO_COME))
    sections: dict[str, Callable[..., tuple[str, ...]]] = {"programs": _programs}
    for name, table in document.items():
        if name == "keys":
            continue
        if name not in sections:
            faults.append(Fault(f"Reading {file}", "the section [programs]", repr(name), nearest(name, sections)))
        elif not isinstance(table, dict):
            faults.append(Fault(f"Reading {file}", f"a table [{name}]", repr(table), f"Write [{name}] above it."))
    modules: tuple[str, ...] = ()
    if not faults:
        with collecting(faults):
            modules = _programs(**Schema.of("programs", _programs).read(document.get("programs", {})))
    if faults:
        raise ConfigError.of(faults)
    return MachineConfig(tuple(_module(text, file.absolute().parent) for text in modules))


def _programs(*, modules: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The keys of [programs]."""
    return modules


def _module(text: str, folder: Path) -> str:
    """A module's name as it is, a file's path resolved."""
    if not reference.is_file(text):
        return text
    return os.path.realpath(os.path.join(folder, os.path.expanduser(text)))
