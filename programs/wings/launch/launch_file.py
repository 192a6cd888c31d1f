"""The file of `isthmus launch`, and the request that it and the command line make up.

The file has the sections [run], [program] and [task], as a cluster file has them, and [launch], which is declared here.
It may be a cluster file: then one of its machines has to be a home, and its islands are how many are launched where
nothing else is said; names, addresses and keys are the engine's business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, final

import msgspec

from isthmus.programs import SHIPPED, settings
from isthmus.programs.command.loop_choice import LOOP_SECTION
from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.machine.island_parts import SIZE_MAX
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.programs.settings import Schema, Setting, collecting
from isthmus.runtime.errors import ConfigError, Fault, nearest
from isthmus.runtime.ids import LEARNER

HOME: Final = "home"
"""The name of the machine that is the home."""
ISLAND: Final = "island-"
"""How the names of islands begin; a number follows."""
AFTER_GRACE_SECONDS: Final = 10
"""Engines are asked for so much more than the grace: for the last files, and for what is late."""
NAME_LENGTH_MAX: Final = 40
"""Kubernetes takes 63 characters, of which 23 are for what its objects add."""
_DEVICES: Final = re.compile(r"[A-Za-z][\w./-]*(:[\w.-]+)?:[1-9]\d*", re.ASCII)
_WORD: Final = re.compile(r"\w[\w.,:/@+-]*", re.ASCII)
_WORDS: Final = ("image", "partition", "namespace", "memory", "time")
"""Keys whose values become words of scripts and manifests."""
_OF_RUN: Final = ("run", "program", "task", LOOP_SECTION)
_SECTIONS: Final = ("launch", *_OF_RUN, "machine", "device", "keys")


class LaunchTable(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of [launch]."""

    image: Annotated[str, Setting("The image with isthmus, on engines that run images.")] = ""
    files: Annotated[tuple[str, ...], Setting("Your own files that machines need, such as that of the task.")] = ()
    partition: Annotated[str, Setting("The partition, or queue. Default: the engine's.")] = ""
    namespace: Annotated[str, Setting("The namespace. Default: the engine's.")] = ""
    devices: Annotated[str, Setting("Accelerators of each node of an island, as `gpu:4`.")] = ""
    cpus: Annotated[
        int | None, Setting("Cores of each node.", ge=1, remedy="Leave it out for what the engine gives.")
    ] = None
    memory: Annotated[str, Setting("Memory of each node, as the engine writes it: `64G`.")] = ""
    time: Annotated[str, Setting("The most time, as the engine writes it: `12:00:00`.")] = ""
    port: Annotated[
        int, Setting("The port of the home. Default: a free one.", ge=0, le=65535, remedy="Leave it out.")
    ] = 0
    invite_by: Annotated[
        Literal["file", "env"], Setting("How islands get the invitation: by a file of a shared folder, or `env`.")
    ] = "file"
    on_machines: Annotated[
        tuple[str, ...],
        Setting(
            "Folders that machines of the run have and this one does not: of their image, or mounted there. What is "
            "below is not looked for here, and the home prepares the request."
        ),
    ] = ()
    extra: Annotated[
        str,
        Setting("What you add, in the engine's words: lines of the scripts, options of actors, keys of a pod's spec."),
    ] = ""

    def is_there_only(self, path: str) -> bool:
        """Whether a path is of the machines of the run, and not looked for here."""
        return any(Path(path).is_relative_to(folder) for folder in self.on_machines)


@final
@dataclass(frozen=True, slots=True)
class LaunchFile:
    """The contents of a file: its path, its launch table, its other sections verbatim, and the islands that its
    machines have, None where there are no machines."""

    path: Path
    table: LaunchTable
    sections: Mapping[str, Any]
    islands: int | None = None

    @property
    def name(self) -> str:
        """The name of its launch: the file's, as all engines take it."""
        return name_of(self.path)

    @classmethod
    def read(cls, path: Path, **chosen: str) -> Self:
        """The contents of a file, with keys of its launch table that were `chosen` elsewhere; ConfigError with all its
        faults."""
        document = settings.read_file(path, "the launch", "Name a file with [run], [program], [task] and [launch].")
        faults = [
            Fault(
                f"Reading {path}", f"one of the sections {', '.join(_SECTIONS)}", repr(name), nearest(name, _SECTIONS)
            )
            for name in document
            if name not in _SECTIONS
        ]
        table, islands = LaunchTable(), None
        with collecting(faults):
            name_of(path)
        with collecting(faults):
            table = _table(document.get("launch", {}), path, chosen)
        if "machine" in document:
            with collecting(faults):
                islands = _islands(path)
        if faults:
            raise ConfigError.of(faults)
        return cls(path, table, {name: document[name] for name in _OF_RUN if name in document}, islands)


@final
@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What is to be launched: a home, and islands."""

    name: str
    table: LaunchTable
    sections: Mapping[str, Mapping[str, Any]]
    """The keys of [run], [program], [task] and [loop] for the home, with their types and absolute paths."""
    islands: int
    """How many."""
    slots_max: int
    """The most islands that the run takes."""
    grace: float
    """Seconds."""
    nodes_per_island: int = 1
    """The machines of each."""
    modules: tuple[str, ...] = ()
    """The user's own code."""
    chosen: frozenset[str] = frozenset()
    """Keys of `sections`, as section.key, that nobody asked for: they follow from the others."""
    names_folder: bool = False
    """Whether the file names the folder in which a script runs."""
    accepts_changes: bool = False
    """A run that goes on may do so with other files."""
    is_for_home: bool = False
    """The home prepares it, by `settling`, because this machine does not have what it names."""

    @property
    def going_on(self) -> str:
        """The options by which the home goes on with the run of an earlier launch."""
        return f"--resume-or-start{' --accept-changes' if self.accepts_changes else ''}"

    @property
    def settling(self) -> str:
        """The command by which the home adds to its cluster file what follows from the number of islands."""
        return f"isthmus launch settle cluster.toml --islands {self.islands}"

    @property
    def run_text(self) -> str:
        """The sections of the home's cluster file that say what is trained."""
        return settings.document({name: table for name, table in self.sections.items() if table})

    @property
    def permits(self) -> dict[str, Any]:
        """The table [programs] of a machine: what of the user's may be loaded and started there."""
        loop, permits = self.sections.get(LOOP_SECTION), dict[str, Any]()
        if self.modules:
            permits["modules"] = self.modules
        if loop is not None:
            script, folder = loop["script"], loop["folder"]
            is_file = script.endswith(".py")  # A file may run in its own folder.
            is_own = is_file and os.path.normpath(os.path.dirname(script)) == os.path.normpath(folder)
            permits["scripts"] = [script, *([] if is_own else [folder])]
            permits |= {"pythons": [loop["python"]]} if loop.get("python") else {}
        return permits

    @property
    def machine_text(self) -> str:
        """The machine.toml of an island: what may be loaded there; the home's also names its key."""
        return settings.document({"programs": self.permits}) if self.permits else ""

    @property
    def home_text(self) -> str:
        """The machine.toml of the home, whose secret key is home.key beside it."""
        tables: dict[str, Mapping[str, Any]] = {"keys": {"secret": f"{HOME}.key"}}
        if self.permits:
            tables["programs"] = self.permits
        return settings.document(tables)

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for of the run, by section.key."""
        keys = {f"{name}.{key}": value for name, table in self.sections.items() for key, value in table.items()}
        return {key: value for key, value in keys.items() if key not in self.chosen}

    @property
    def names(self) -> int:
        """How many machines an invitation has to admit."""
        return self.slots_max * self.nodes_per_island

    def useless(self, engine: str, do: str, *names: str) -> Iterator[Fault]:
        """Faults of keys of [launch] with these names, of which an engine has no use."""
        for name in names:
            if (given := getattr(self.table, name)) != getattr(LaunchTable(), name):
                yield Fault(f"Reading launch.{name}", f"none on {engine}", repr(given), do)

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the numbers."""
        if not 1 <= self.islands <= self.slots_max:
            do = "Launch fewer, or give the run more with --set run.slots_max=N."
            yield Fault(
                "Reading --islands", f"from 1 to {self.slots_max}, which is run.slots_max", f"{self.islands}", do
            )
        if not 1 <= self.nodes_per_island <= SIZE_MAX:
            do = "It is the number of machines of each island."
            yield Fault("Reading --nodes-per-island", f"from 1 to {SIZE_MAX}", f"{self.nodes_per_island}", do)
        elif self.nodes_per_island > 1 and LOOP_SECTION in self.sections:
            do = "Leave it out: each island of a script is one node, with --ranks N processes on it."
            yield Fault("Reading --nodes-per-island", "1 beside --loop", f"{self.nodes_per_island}", do)


def home_table(address: str) -> str:
    """The beginning of the cluster file of a home whose daemon listens at `address`, with its keys beside it."""
    return (
        f'[keys]\nsecret = "{HOME}.key"\n[[machine]]\nname = "{HOME}"\naddress = "{address}"\n'
        f'public_key = "{HOME}.pub"\nroles = ["syncer", "evaluator"]\n'
    )


def name_of(path: Path) -> str:
    """The name of the launch of a file: its own in small letters, digits and '-'; ConfigError if there is none."""
    name = re.sub("[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:NAME_LENGTH_MAX].rstrip("-")
    if not name or not name[0].isalpha():
        do = "Rename the file: its name is that of the launch."
        raise ConfigError(f"Reading the name of {path}", "one that begins with a letter", repr(path.stem), do)
    return name


def modules_of(program: str | None, task: str | None) -> tuple[str, ...]:
    """The files and modules, by absolute path or name, of a program and a task that are not shipped."""
    texts = [program, *([] if task is None else references_of(task))]
    own = [reference.split(text)[0] for text in texts if text is not None and text not in SHIPPED]
    return tuple(dict.fromkeys(own))


def _table(values: Any, path: Path, chosen: Mapping[str, str]) -> LaunchTable:
    doing = f"Reading {path}"
    if not isinstance(values, dict):
        raise ConfigError(doing, "a table [launch]", repr(values), "Write the header [launch] above it.")
    schema = Schema.of("launch", LaunchTable)
    complete = schema.read({**values, **chosen})
    faults = list(schema.out_of_range(complete))
    if complete["devices"] and not _DEVICES.fullmatch(complete["devices"]):
        do = "Write kind and number, as gpu:4 or gpu:a100:8."
        faults.append(Fault("Reading launch.devices", "KIND:NUMBER", repr(complete["devices"]), do))
    for name in _WORDS:
        if complete[name] and not _WORD.fullmatch(complete[name]):
            do = "Write it without spaces and quotes; further options of the engine stand in launch.extra."
            faults.append(Fault(f"Reading launch.{name}", "a word, as the engine has it", repr(complete[name]), do))
    for each in complete["on_machines"]:
        if not Path(each).is_absolute():
            do = "Write the whole path, as machines have it."
            faults.append(Fault("Reading launch.on_machines", "paths that begin with /", repr(each), do))
    complete["on_machines"] = tuple(map(os.path.normpath, complete["on_machines"]))
    complete["files"] = tuple(str(path.absolute().parent / Path(each).expanduser()) for each in complete["files"])
    for each in complete["files"]:
        if not Path(each).exists():
            do = "Correct the path; it starts in the folder of the file."
            faults.append(Fault("Reading launch.files", "a file or a folder", f"nothing at {each}", do))
    if faults:
        raise ConfigError.of(faults)
    return LaunchTable(**complete)


def _islands(path: Path) -> int | None:
    """How many islands the machines of a cluster file have; ConfigError if none of them can be the home."""
    topology = cluster_file.read(path).topology
    if all(machine.roles and set(machine.roles) == {LEARNER} for machine in topology.machines):
        do = 'Give one of them roles = ["syncer", "evaluator"], or leave all [[machine]] out.'
        names = ", ".join(machine.name for machine in topology.machines)
        raise ConfigError(f"Reading the machines of {path}", "one that can be the home", f"{names}: learners only", do)
    return topology.learners_max or None
