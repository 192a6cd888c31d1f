"""Replays one tape: the events of its records go into a fresh core, whose commands are compared with those on the tape.

Pure: it gets records and a core, and reads no file. A core that raises has decided otherwise, too: what it raises for
is never on a tape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from isthmus.programs.replay.outcome import Difference
from isthmus.runtime.clock import Instant
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Quorum
from isthmus.runtime.ids import Member
from isthmus.runtime.scheduler.events import (
    BodyFailed,
    CreditGranted,
    FiringEnded,
    ItemArrived,
    ItemsEmitted,
    NodeOpened,
    ReplicaJoined,
    ReplicaLeft,
    RunBody,
)
from isthmus.runtime.scheduler.tape import Record

NOBODY: Final = frozenset[int]()


class Core(Protocol):
    """A state machine: events and the time go in, commands come out."""

    def handle(self, event: Any, now: Instant) -> list[Any]:
        """What an event leads to."""


class Again(NamedTuple):
    """How far a tape was replayed: up to its end, or up to the first difference, whose record counts."""

    records: int
    commands: int
    merges: int
    difference: Difference | None


def again(core: Core, records: Iterable[Any], plan: Plan | None = None, zero_ns: int = 0) -> Again:
    """Feed a fresh core with what a tape has.

    Arguments:
        core: one that has seen nothing.
        records: those of the tape, from its start.
        plan: that of a host; None for a core of a daemon.
        zero_ns: the instant of the tape's clock when the run was submitted.
    """
    count = commands = merges = 0
    mergers = NOBODY if plan is None else _mergers(plan)
    for record in records:
        count += 1
        commands += len(record.commands)
        merges += sum(
            isinstance(command, RunBody) and command.node in mergers and "closed_at" in (command.decision or {})
            for command in record.commands
        )
        try:
            said = core.handle(record.event, record.at)
        except Exception as error:  # Whatever it is: the core that wrote the tape did not raise it.
            found = _difference(count, record, [], zero_ns, plan, f"{type(error).__name__}: {error}")
            return Again(count, commands, merges, found)
        if said != record.commands:
            return Again(count, commands, merges, _difference(count, record, said, zero_ns, plan))
    return Again(count, commands, merges, None)


def _mergers(plan: Plan) -> frozenset[int]:
    """The nodes of a host that fire by Quorum: each firing that a quorum has closed is a merge round."""
    return frozenset(node.index for node in plan.nodes if isinstance(node.fires, Quorum))


def strange(records: Sequence[Record], plan: Plan, member: Member, *, is_alone: bool) -> str:
    """Why the tape of a host cannot be that of this life in this graph, in words; empty where it may be. `is_alone`: it
    had a process of its own, and heard of itself first; in one process all hear of all at once."""
    if not records:
        return ""
    at_first = []
    for record in records:
        if not isinstance(record.event, ReplicaJoined):
            break
        at_first.append(record.event.member)
    if member not in at_first[: 1 if is_alone else None]:
        return f"one that begins with {_first(records[0], at_first)}"
    nodes = {node.index for node in plan.nodes}
    for number, record in enumerate(records, 1):
        found = _unknown(record.event, nodes, plan)
        if found:
            return f"{found} in record {number}"
    return ""


def _first(record: Record, at_first: Sequence[Member]) -> str:
    return f"the life {at_first[0]}" if at_first else f"{type(record.event).__name__}"


def _unknown(event: Any, nodes: set[int], plan: Plan) -> str:
    """What of an event the graph does not have."""
    match event:
        case NodeOpened() | ItemsEmitted() | FiringEnded() | BodyFailed() if event.node not in nodes:
            return f"node {event.node}, which {plan.role} does not have,"
        case ItemArrived() | CreditGranted() if event.edge not in plan.edges:
            return f"edge {event.edge}, which {plan.role} does not have,"
        case ReplicaJoined() | ReplicaLeft() if event.member.replica.role not in plan.replicas:
            return f"a role {event.member.replica.role!r}, which the graph does not have,"
    return ""


def _difference(
    number: int, record: Any, said: Sequence[Any], zero_ns: int, plan: Plan | None, error: str = ""
) -> Difference:
    taped = record.commands
    same = next((i for i, (one, other) in enumerate(zip(taped, said, strict=False)) if one != other), None)
    same = min(len(taped), len(said)) if same is None else same
    place = "" if plan is None else _place(record.event, plan)
    return Difference(number, record.at - zero_ns, record.event, place, same + 1, taped[same:], said[same:], error)


def _place(event: Any, plan: Plan) -> str:
    """The name of the node or edge that an event is about."""
    match event:
        case NodeOpened() | ItemsEmitted() | FiringEnded() | BodyFailed():
            return next(node.name for node in plan.nodes if node.index == event.node)
        case ItemArrived() | CreditGranted():
            return plan.edges[event.edge].name
    return ""
