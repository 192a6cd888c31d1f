"""cluster.toml: the machines of a run, and beside them the keys of its configuration.

Each `[[machine]]` has a `name`, an `address` (tcp://HOST:PORT, where its daemon listens), the `roles` that may be
placed on it (all, where nothing is said) and its number of `islands`, each for one learner. For now there is exactly
one machine. `[run]`, `[program]` and `[task]` are those of a configuration file; who reads them checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs import machine_address, toml_file
from isthmus.programs.machine_config import KEYS_TO_COME
from isthmus.programs.settings import Schema, collecting
from isthmus.runtime.errors import ConfigError, Fault, PlacementError, nearest
from isthmus.runtime.graph import Graph, Job

ROLES: Final = ("learner", "syncer", "evaluator")
RECORDER: Final = "recorder"
"""The role that every graph has, and that goes wherever the others are."""


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a cluster. `roles` is empty where nothing was said, `islands` None."""

    name: str
    address: str
    roles: tuple[str, ...]
    islands: int | None

    def place(self, graph: Graph, job: Job) -> None:
        """PlacementError if a graph's roles cannot all be on this machine."""
        faults = []
        missing = [role.name for role in graph.roles if role.name not in (*self.roles, RECORDER)]
        if self.roles and missing:
            doing, expected = f"Placing the roles of {graph.name!r}", f"a machine for {', '.join(missing)}"
            do = f"Add it to the roles of {self.name!r}, or leave `roles` out: then it takes every role."
            faults.append(Fault(doing, expected, f"{self.name!r} with {', '.join(self.roles)}", do))
        if self.islands is not None and job.learners > self.islands:
            doing, expected = f"Placing {job.learners} learners", "an island for each"
            do = "Lower run.learners, or raise `islands`."
            faults.append(Fault(doing, expected, f"{self.islands} on {self.name!r}", do))
        if faults:
            raise PlacementError.of(faults)


@final
@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster file says: its one machine, and the sections of the configuration as they stand there."""

    file: Path
    machine: Machine
    sections: Mapping[str, Any]


def read(file: Path) -> Cluster:
    """What is in a cluster file; ConfigError with all that is wrong with its machines."""
    document = toml_file.read(file, "the cluster", "Name a file with --cluster.")
    faults: list[Fault] = []
    if "keys" in document:
        faults.append(Fault(f"Reading {file}", "a cluster without keys", "[keys]", KEYS_TO_COME))
    tables = document.get("machine", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        faults.append(Fault(f"Reading {file}", "[[machine]]", "another `machine`", "Write [[machine]], in brackets."))
        tables = []
    machines = []
    for number, table in enumerate(tables, 1):
        with collecting(faults):
            machines.append(_machine(table, f"{file}, machine {number}"))
    faults += _several(machines, file)
    if not tables and not faults:
        do = 'Write [[machine]] with name = "..." and address = "tcp://127.0.0.1:PORT".'
        faults.append(Fault(f"Reading {file}", "one [[machine]]", "none", do))
    if faults:
        raise ConfigError.of(faults)
    sections = {name: value for name, value in document.items() if name not in ("machine", "keys")}
    return Cluster(file, machines[0], sections)


def _several(machines: list[Machine], file: Path) -> list[Fault]:
    """What is wrong with machines that are more than one."""
    faults = []
    for what, values in (
        ("address", [machine.address for machine in machines]),
        ("name", [machine.name for machine in machines]),
    ):
        for value in dict.fromkeys(value for value in values if values.count(value) > 1):
            names = ", ".join(repr(m.name) for m in machines if value in (m.address, m.name))
            found = f"{value} for {names}" if what == "address" else f"{values.count(value)} named {value!r}"
            do = "A machine has one daemon, which has one name: leave the others out."
            faults.append(Fault(f"Reading {file}", f"each {what} once", found, do))
    if len(machines) > 1:
        do = "Leave the others out: more than one is not possible yet."
        faults.append(Fault(f"Reading {file}", "exactly one [[machine]]", str(len(machines)), do))
    return faults


def _machine(table: Mapping[str, Any], where: str) -> Machine:
    faults: list[Fault] = []
    if "public_key" in table:
        faults.append(Fault(f"Reading {where}", "a machine without a key", "public_key", KEYS_TO_COME))
    schema = Schema.of("machine", _keys)
    given = {name: value for name, value in table.items() if name != "public_key"}
    for name, example in (("name", "alpha"), ("address", "tcp://127.0.0.1:7400")):
        if name not in table:
            do = f'Write for example {name} = "{example}" below [[machine]].'
            faults.append(Fault(f"Reading {where}", f"`{name}`", "nothing", do))
            given[name] = example
    machine = None
    with collecting(faults):
        values = schema.read(given)
        machine = Machine(
            values["name"],
            machine_address.checked(values["address"], f"Reading the address of {where}"),
            values["roles"],
            values["islands"],
        )
        faults += [
            Fault(f"Reading the roles of {where}", f"of {', '.join(ROLES)}", repr(role), nearest(role, ROLES))
            for role in machine.roles
            if role not in ROLES
        ]
        if machine.islands is not None and machine.islands < 1:
            do = "Give at least one, or leave it out for as many as there are learners."
            faults.append(Fault(f"Reading the islands of {where}", "1 or more", str(machine.islands), do))
    if faults or machine is None:
        raise ConfigError.of(faults)
    return machine


def _keys(*, name: str, address: str, roles: tuple[str, ...] = (), islands: int | None = None) -> None:
    """The keys of a [[machine]]."""
