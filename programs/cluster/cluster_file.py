"""cluster.toml: the machines of a run, their keys, and beside them the keys of its configuration.

Each `[[machine]]` has a name and an `address` (tcp://HOST:PORT, where its daemon listens), which a machine that only
dials out omits; its other keys are in `cluster_tables`. `[[device]]` adds kinds of devices, or a price to one that is
known. `[keys] secret` is the file of the secret key that a command here uses. `[run]`, `[program]` and `[task]` are
those of a configuration file; their readers check them. `placement` checks whether the graph of a run fits, and the
caller whether the machines are there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.cluster import cluster_tables
from isthmus.programs.request import toml
from isthmus.programs.request.settings import Schema, collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.devices import CATALOGUE
from isthmus.runtime.graph.placement import Machine, Topology

__all__ = ["Cluster", "Machine", "read"]

_ARRAYS: Final = ("machine", "device")
_OWN: Final = (*_ARRAYS, "keys")


@final
@dataclass(frozen=True, slots=True)
class Cluster:
    """Contents of a cluster file: machines in its order, configuration sections verbatim, and the secret key's file.

    `secret` is None without keys.
    """

    file: Path
    machines: tuple[Machine, ...]
    sections: Mapping[str, Any]
    secret: Path | None = None

    @property
    def topology(self) -> Topology:
        """The machines as `placement` takes them."""
        return Topology(self.machines)


def read(file: Path) -> Cluster:
    """The contents of a cluster file; ConfigError with all faults of its machines, devices and keys."""
    document = toml.read_file(file, "the cluster", "Name a file with --cluster.")
    faults: list[Fault] = []
    secret = None
    with collecting(faults):
        secret = _secret(document, file)
    catalogue = list(CATALOGUE)
    for number, table in enumerate(_tables(document, "device", file, faults), 1):
        with collecting(faults):
            catalogue.insert(0, cluster_tables.read_device(table, f"{file}, device {number}"))
    machines = []
    tables = _tables(document, "machine", file, faults)
    for number, table in enumerate(tables, 1):
        with collecting(faults):
            where, folder = f"{file}, machine {number}", file.absolute().parent
            machines.append(cluster_tables.read_machine(table, where, folder, catalogue, has_keys="keys" in document))
    faults += _shared([table.get("name") for table in tables], machines, file)
    faults += _apart(machines, file)
    if "machine" not in document:
        do = 'Write [[machine]] with name = "..." and address = "tcp://127.0.0.1:PORT".'
        faults.append(Fault(f"Reading {file}", "at least one [[machine]]", "none", do))
    if faults:
        raise ConfigError.of(faults)
    sections = {name: value for name, value in document.items() if name not in _OWN}
    return Cluster(file, _joined(machines), sections, secret)


def _joined(machines: list[Machine]) -> tuple[Machine, ...]:
    """The same machines, each with the others of its island, in the order of the file."""
    names: dict[str, tuple[str, ...]] = {}
    for machine in machines:
        if machine.island is not None:
            names[machine.island] = (*names.get(machine.island, ()), machine.name)
    return tuple(
        machine if machine.island is None else replace(machine, together=names[machine.island], islands=1)
        for machine in machines
    )


def _apart(machines: list[Machine], file: Path) -> Iterator[Fault]:
    """Faults of machines that are declared as one island."""
    for name in dict.fromkeys(machine.island for machine in machines if machine.island is not None):
        doing, them = f"Reading island {name!r} of {file}", [each for each in machines if each.island == name]
        devices = {f"{each.devices} x {None if each.device is None else each.device.kind}" for each in them}
        if len(them) == 1:
            do = f"Give the others the same island = {name!r}, or leave it out."
            yield Fault(doing, "two machines or more that are one island", f"{them[0].name!r} alone", do)
        if len(devices) > 1:
            do = "Give all of them the same `device` and `devices`: each is a part of one mesh."
            yield Fault(doing, "as many devices of one kind on each machine", ", ".join(sorted(devices)), do)
        if any(each.islands not in (None, 1) for each in them):
            yield Fault(doing, "islands = 1, or nothing, on each machine", "another number", "Leave `islands` out.")
        if them[0].address is None:
            do = 'Give it an address = "tcp://HOST:PORT": the others go to the first.'
            yield Fault(doing, f"an address of {them[0].name!r}, its first machine", "none", do)


def _tables(document: Mapping[str, Any], name: str, file: Path, faults: list[Fault]) -> list[Mapping[str, Any]]:
    """The tables [[name]]; adds a fault if that is something else."""
    tables = document.get(name, [])
    if isinstance(tables, list) and all(isinstance(table, dict) for table in tables):
        return tables
    faults.append(Fault(f"Reading {file}", f"[[{name}]]", f"another `{name}`", f"Write [[{name}]], in brackets."))
    return []


def _secret(document: Mapping[str, Any], file: Path) -> Path | None:
    """The file of the secret key, which relative paths in [keys] name from the cluster file's folder."""
    if "keys" not in document:
        return None
    table = document["keys"]
    do = 'Write [keys], and below it secret = "NAME.key", which `isthmus keygen NAME` makes.'
    if not isinstance(table, dict) or "secret" not in table:
        raise ConfigError(f"Reading [keys] of {file}", "the file of a secret key", repr(table), do)
    text = Schema.of("keys", _keys).read(table)["secret"]
    return Path(os.path.normpath(file.absolute().parent / Path(text).expanduser()))


def _keys(*, secret: str) -> None:
    """The keys of [keys]."""


def _shared(names: list[Any], machines: list[Machine], file: Path) -> Iterator[Fault]:
    """Faults of names, addresses and keys that several machines share; `names` includes those of faulty machines."""
    values: Mapping[str, list[str | None]] = {
        "name": [name for name in names if isinstance(name, str)],
        "address": [machine.address for machine in machines],
        "public_key": [machine.public_key for machine in machines],
    }
    for what, found in values.items():
        for value, count in Counter(found).items():
            if value is None or count == 1:
                continue
            whose = ", ".join(repr(machine.name) for machine in machines if getattr(machine, what) == value)
            told = f"{count} named {value!r}" if what == "name" else f"{value} for {whose}"
            do = "A machine has one daemon, which has one name, one address and one key: correct the others."
            yield Fault(f"Reading {file}", f"each {what} once", told, do)
