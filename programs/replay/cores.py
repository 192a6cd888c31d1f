"""Replays one tape: the events of its records go into a fresh core, whose commands are compared with those on the tape.

The core begins in the state with which the first segment begins. Where the next segment follows on it, the core goes
on, and has to have come to that state by itself; where records are missing before it, it begins anew from that state.
Pure: it gets segments and cores, and reads no file. A core that raises has decided otherwise, too: an event at which it
raises is never on a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from isthmus.programs.replay.outcome import Difference
from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import (
    BodyFailed,
    CreditGranted,
    FiringEnded,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    NodeOpened,
    ReplicaJoined,
    ReplicaLeft,
    RunBody,
)
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Quorum
from isthmus.runtime.ids import Member
from isthmus.runtime.tape.reading import Reading, Segment

NOBODY: Final = frozenset[int]()


class Core(Protocol):
    """A state machine: events and the time go in, commands come out."""

    def handle(self, event: Any, now: Instant) -> list[Any]:
        """The commands that follow from an event."""

    def saved(self) -> bytes:
        """The state between two events."""

    def restore(self, state: bytes) -> None:
        """Load the state of another core; ValueError for bytes that are no state of such a core."""


class Again(NamedTuple):
    """The extent of a replay: up to the tape's end, or up to and including the record of the first difference."""

    records: int
    commands: int
    merges: int
    difference: Difference | None


def again(make: Callable[[], Core], segments: Iterable[Segment], plan: Plan | None = None, zero_ns: int = 0) -> Again:
    """Feed a core with the events of a tape, and compare its commands.

    Arguments:
        make: makes a fresh core.
        segments: the available ones of the tape.
        plan: that of a host; None for a core of a daemon.
        zero_ns: the instant of the tape's clock when the run was submitted.

    ValueError if a segment does not begin with a state of such a core.
    """
    done, core, end, at = Again(0, 0, 0, None), make(), -1, Instant(zero_ns)
    for segment in segments:
        opening = segment.opening
        if opening.before != end or not opening.before:
            core = make()
            core.restore(opening.state)
        elif core.saved() != opening.state:
            told = f"came to another state than that with which segment {opening.segment} begins"
            return done._replace(difference=Difference(end, at - zero_ns, StateTaken(), "", 1, [], [], told))
        done = _segment_again(done, core, segment, plan, zero_ns)
        if done.difference is not None:
            break
        end, at = segment.end, segment.records[-1].at if segment.records else at
    return done


def _segment_again(done: Again, core: Core, segment: Segment, plan: Plan | None, zero_ns: int) -> Again:
    """Feed a core with the events of a segment; `done` is the extent replayed before."""
    count, commands, merges, _ = done
    mergers = NOBODY if plan is None else _mergers(plan)
    for number, record in enumerate(segment.records, segment.opening.before + 1):
        count += 1
        commands += len(record.commands)
        merges += sum(
            isinstance(command, RunBody) and command.node in mergers and "closed_at" in (command.decision or {})
            for command in record.commands
        )
        try:
            said = core.handle(record.event, record.at)
        except Exception as error:  # The core that wrote the tape did not raise any error.
            found = _difference(number, record, [], zero_ns, plan, f"raised {type(error).__name__}: {error}")
            return Again(count, commands, merges, found)
        if said != record.commands:
            return Again(count, commands, merges, _difference(number, record, said, zero_ns, plan))
    return Again(count, commands, merges, None)


class StateTaken(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The begin of a segment, in place of an event."""


def _mergers(plan: Plan) -> frozenset[int]:
    """The nodes of a host that fire by Quorum: each firing that a quorum has closed is a merge round."""
    return frozenset(node.index for node in plan.nodes if isinstance(node.fires, Quorum))


def strange(tape: Reading, plan: Plan, member: Member, *, is_alone: bool) -> str:
    """Why a tape cannot be that of this life in this graph, in words; empty if it can.

    `is_alone`: the host had a process of its own, and so heard of itself first; in one process all hear of all at once.
    """
    records = tape.records
    if records and not tape.begins and (found := _another(records, member, is_alone=is_alone)):
        return found
    nodes = {node.index for node in plan.nodes}
    for number, record in enumerate(records, tape.begins + 1):
        found = _unknown(record.event, nodes, plan)
        if found:
            return f"{found} in record {number}"
    return ""


def _another(records: Sequence[HostRecord], member: Member, *, is_alone: bool) -> str:
    """The other life to which a tape with these first records belongs; empty if it is this one's."""
    at_first = []
    for record in records:
        if not isinstance(record.event, ReplicaJoined):
            break
        at_first.append(record.event.member)
    if member not in at_first[: 1 if is_alone else None]:
        return f"one that begins with {_first(records[0], at_first)}"
    return ""


def _first(record: HostRecord, at_first: Sequence[Member]) -> str:
    return f"the life {at_first[0]}" if at_first else f"{type(record.event).__name__}"


def _unknown(event: Any, nodes: set[int], plan: Plan) -> str:
    """The node, edge or role of an event that the graph lacks; empty if it lacks none."""
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
