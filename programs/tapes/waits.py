"""The number of times that an inner step waited for another host, by the tape of its learner alone. Pure.

A wait lies between the end of one step and the beginning of the next. It was ended by the event that began the next
step; where that is the end of a firing beside it, which itself began during the wait, the wait was ended by the event
that began that firing, and so on. The wait was for another host if the last of these is an item or a credit that came
from one, and for this host's own work, or for a core, if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from isthmus.runtime.cores.scheduler_events import (
    CreditGranted,
    FiringEnded,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    RunBody,
)
from isthmus.runtime.graph.plans import Plan

STEP: Final = "inner-step"
BATCH: Final = "batch"
WAIT_NS_MIN: Final = 1_000_000
"""Shorter waits are hops of a loop, as for `stall_seconds` of summary.json."""


class Wait(NamedTuple):
    """A wait for another host, in nanoseconds of the run's clock."""

    begun: int
    ended: int


def waits_on_others(plan: Plan, records: Sequence[HostRecord]) -> Iterator[Wait]:
    """The waits for other hosts of the inner steps on the tape of a learner of `plan`, by their times."""
    node = next(node for node in plan.nodes if node.name == STEP)
    batch = [port.name for port in node.inputs].index(BATCH)
    began_at: dict[int, int] = {}
    """Node -> the record at which its present firing, or its last one, began."""
    ended: int | None = None
    is_step = False
    for number, record in enumerate(records):
        event = record.event
        for command in record.commands:
            if isinstance(command, RunBody) and command.node == node.index:
                has_batch = batch in dict(command.inputs)
                is_wait = ended is not None and is_step and has_batch and record.at - ended > WAIT_NS_MIN
                if ended is not None and is_wait and _is_of_another(records, number, ended, began_at):
                    yield Wait(ended, record.at)
                is_step = has_batch
        if isinstance(event, FiringEnded) and event.node == node.index:
            ended = record.at
        for command in record.commands:
            if isinstance(command, RunBody):
                began_at[command.node] = number


def _is_of_another(records: Sequence[HostRecord], number: int, since: int, began_at: dict[int, int]) -> bool:
    """Whether the cause of a record, after `since`, is an item or a credit of another host.

    Each turn of the loop goes to an earlier record, so it ends.
    """
    while True:
        event = records[number].event
        if isinstance(event, ItemArrived | CreditGranted):
            return True
        if not isinstance(event, FiringEnded | ItemsEmitted):
            return False
        begun = began_at.get(event.node, number)
        if begun >= number or records[begun].at <= since:
            return False
        number = begun
