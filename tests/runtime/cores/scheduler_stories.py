"""Help to tell a scheduler a story: small graphs of nameless bodies, and events at milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Any

from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.cores.scheduler_events import (
    Command,
    Event,
    Fields,
    FiringEnded,
    ItemArrived,
    NodeOpened,
    Output,
    ReplicaJoined,
    RunBody,
)
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Graph
from isthmus.runtime.ids import Handle, Member, Replica

MS = milliseconds(1)


def body(required: str = "", sampled: str = "", outputs: str = "") -> type:
    """A body with these ports, named in one text each."""

    def call(self: Any) -> None:
        raise NotImplementedError

    ports = [Parameter(port, Parameter.KEYWORD_ONLY) for port in required.split()]
    ports += [Parameter(port, Parameter.KEYWORD_ONLY, default=None) for port in sampled.split()]
    call.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *ports])  # type: ignore[attr-defined]
    names = tuple(port.name for port in ports)  # What a port gives its body concerns no core.
    return type("Body", (), {"__call__": call, "outputs": tuple(outputs.split()), "collects": names})


def life(text: str, incarnation: int = 1) -> Member:
    """'here/0' in its first life."""
    return Member(Replica.parse(text), incarnation)


def run(node: int, firing: int, *inputs: tuple[int, Sequence[tuple[Any, ...]]], decision: Any = None) -> RunBody:
    """RunBody; entries are ('here/0', handle) or ('here/0', key, handle)."""
    ports = []
    for port, entries in inputs:
        full = [(Replica.parse(entry[0]), entry[1] if len(entry) == 3 else None, entry[-1]) for entry in entries]
        ports.append((port, tuple(full)))
    return RunBody(node, firing, tuple(ports), decision)


def ended(node: int, *outputs: tuple[Any, ...], idle: bool = False, finished: bool = False) -> FiringEnded:
    """FiringEnded; outputs are (port, handle) or (port, handle, fields)."""
    return FiringEnded(node, tuple(Output(*output) for output in outputs), idle, finished)


def arrived(edge: int, source: Member | str, handle: int, fields: Fields = None) -> ItemArrived:
    """ItemArrived."""
    return ItemArrived(edge, life(source) if isinstance(source, str) else source, Handle(handle), fields)


class Story:
    """The scheduler of 'here/0', with these others live and every body open."""

    def __init__(self, graph: Graph, *others: str, is_open: bool = True) -> None:
        self.core = Scheduler(lower(graph.freeze())["here"], life("here/0"))
        self.begun: list[Command] = []
        for text in ("here/0", *others):
            self.begun += self.at(0, ReplicaJoined(life(text)))
        if is_open:
            for node in self.core.plan.nodes:
                self.begun += self.at(0, NodeOpened(node.index))

    def at(self, ms: float, *events: Event) -> list[Command]:
        commands: list[Command] = []
        for event in events:
            commands += self.core.handle(event, Instant(round(ms * MS)))
            self.core.check()
        return commands
