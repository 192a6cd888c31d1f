"""machine.toml: what a machine's daemon may run, its key, and whose keys it admits.

`[programs] modules` lists modules (`package.module`) and files (paths from the folder of machine.toml) whose programs
and tasks this daemon may load beside the shipped ones. Nothing is imported here: a reference is judged by its name.

`[keys] secret` is the file of the machine's own secret key; with it the daemon may listen where others can reach it.
`[keys] admitted` lists who may connect: NAME.pub, whose stem is the machine's name, or the name and the key itself,
"NAME KEY". A key alone has no other name than itself. Paths are relative to the folder of machine.toml.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs import machine_name, reference, toml_file
from isthmus.programs.program import SHIPPED
from isthmus.programs.request import SHIPPED_TASK
from isthmus.programs.settings import Schema, collecting
from isthmus.runtime import keys
from isthmus.runtime.errors import ConfigError, Fault, nearest
from isthmus.runtime.keys import KeyPair

DO_KEYS: Final = 'Write [keys], and below it secret = "NAME.key", which `isthmus keygen NAME` makes.'


@final
@dataclass(frozen=True, slots=True)
class MachineConfig:
    """What machine.toml says: the modules and absolute files that may be loaded, the machine's own pair of keys, None
    without keys, whom it admits, public key -> name, and the file of its secret key."""

    modules: tuple[str, ...] = ()
    pair: KeyPair | None = None
    admitted: Mapping[str, str] = field(default_factory=dict)
    secret: Path | None = None

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
    folder = file.absolute().parent
    sections: dict[str, Callable[..., Any]] = {"programs": _programs, "keys": _keys}
    told: dict[str, dict[str, Any]] = {}
    for name, table in document.items():
        if name not in sections:
            expected = "the sections [programs] and [keys]"
            faults.append(Fault(f"Reading {file}", expected, repr(name), nearest(name, sections)))
        elif not isinstance(table, dict):
            faults.append(Fault(f"Reading {file}", f"a table [{name}]", repr(table), f"Write [{name}] above it."))
        else:
            with collecting(faults):
                told[name] = Schema.of(name, sections[name]).read(table)
    pair, admitted, secret = None, {}, None
    if "keys" in told:
        with collecting(faults):
            pair = _pair(told["keys"]["secret"], folder)
            secret = folder / os.path.expanduser(told["keys"]["secret"])
        with collecting(faults):
            admitted = _admitted(told["keys"]["admitted"], folder)
    if faults:
        raise ConfigError.of(faults)
    modules = told.get("programs", {}).get("modules", ())
    return MachineConfig(tuple(_module(text, folder) for text in modules), pair, admitted, secret)


def _programs(*, modules: tuple[str, ...] = ()) -> None:
    """The keys of [programs]."""


def _keys(*, secret: str = "", admitted: tuple[str, ...] = ()) -> None:
    """The keys of [keys]."""


def _pair(text: str, folder: Path) -> KeyPair:
    """The machine's own pair."""
    if not text:
        raise ConfigError("Reading keys.secret", "the file of a secret key", "nothing", DO_KEYS)
    return keys.read_pair(folder / os.path.expanduser(text))


def _admitted(texts: Iterable[str], folder: Path) -> dict[str, str]:
    """Public key -> name of those who are listed."""
    faults: list[Fault] = []
    admitted: dict[str, str] = {}
    for text in texts:
        doing = f"Reading keys.admitted, {text!r}"
        name, _, last = text.rpartition(" ")
        with collecting(faults):
            key = keys.read_public(last if keys.is_key(last) else text, folder, doing)
            if not name or key != last:
                name = key if keys.is_key(text) else Path(text).stem
            if name != key:
                machine_name.checked(name.strip(), doing, 'a NAME.pub, or "NAME KEY"')
            keys.check(admitted, name.strip(), key, doing)
            admitted[key] = name.strip()
    if faults:
        raise ConfigError.of(faults)
    return admitted


def _module(text: str, folder: Path) -> str:
    """A module's name as it is, a file's path resolved."""
    if not reference.is_file(text):
        return text
    return os.path.realpath(os.path.join(folder, os.path.expanduser(text)))
