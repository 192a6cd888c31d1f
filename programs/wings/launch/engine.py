"""What `isthmus launch` demands of an engine, and which engines there are. None of them imports another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, final

from isthmus.programs.wings.launch.folder import Launch
from isthmus.programs.wings.launch.launch_file import HOME, LaunchRequest
from isthmus.runtime.errors import Fault

ENGINES: Final = MappingProxyType(
    {
        "slurm": "isthmus.programs.wings.launch.slurm",
        "ray": "isthmus.programs.wings.launch.ray",
        "kubernetes": "isthmus.programs.wings.launch.kubernetes",
    }
)
"""The module of each engine; its `ENGINE` is one."""


ENDS: Final = ("done", "failed")
"""Outcomes of runs that no home goes on with."""


@final
@dataclass(frozen=True, slots=True)
class PrintedFile:
    """A file of a launch folder. A secret one has mode 0600, and is never shown."""

    name: str
    text: str
    is_secret: bool = False


@final
@dataclass(frozen=True, slots=True)
class LaunchedMachine:
    """A home, or a machine of an island, as the engine has it: `home` or `island-3`, its id, state and node there."""

    name: str
    id: str
    state: str
    node: str = ""

    @property
    def is_home(self) -> bool:
        return self.name == HOME


@final
@dataclass(frozen=True, slots=True)
class LaunchState:
    """What an engine has of a launch: what waits or works, the outcome of its run as in summary.json, empty while it
    is not over or where nobody knows, and what to type for a run folder that is not in the launch folder."""

    machines: Sequence[LaunchedMachine] = ()
    outcome: str = ""
    keeps: str = ""

    @property
    def has_home(self) -> bool:
        """Whether its home waits or works."""
        return any(machine.is_home for machine in self.machines)

    @property
    def phase(self) -> str:
        """'waiting' until the home has a node, 'running' from then on; the outcome of what is over, else empty."""
        home = next((machine for machine in self.machines if machine.is_home), None)
        if home is None or self.outcome in ENDS:
            return self.outcome
        return "running" if home.node else "waiting"


class Engine(Protocol):
    """An engine. Methods with a launch find whatever belongs to it by its name and folder, so that a launcher that was
    killed half-way, and files that were submitted by hand, make no difference."""

    def faults(self, request: LaunchRequest, folder: Path) -> Iterator[Fault]:
        """What is wrong with a request here: the engine is not there, or lacks what the request names. Nothing is
        submitted."""

    def files(self, request: LaunchRequest) -> Sequence[PrintedFile]:
        """What is submitted, in the order in which it is shown."""

    def by_hand(self, request: LaunchRequest) -> str:
        """The commands that submit the files, typed in their folder."""

    def submit(self, launch: Launch) -> None:
        """Submit the files of a launch folder; ConfigError, with nothing left, if the engine refuses any."""

    def scale(self, launch: Launch, islands: int) -> None:
        """Add or remove islands until there are so many; ConfigError if the engine refuses."""

    def state(self, launch: Launch) -> LaunchState:
        """What there is of a launch; ConfigError if the engine does not answer."""

    def down(self, launch: Launch) -> LaunchState:
        """Have all of it leave, and free what was allocated; returns when nothing is left: the machines that there
        were, how the run ended, and what is kept. RunError if it stays."""


def engine_of(name: str) -> Engine:
    """The engine of that name, which has to be one."""
    engine: Engine = import_module(ENGINES[name]).ENGINE
    return engine
