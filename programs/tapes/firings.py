"""What a host did, by its tape alone: for lives that were killed, which leave no spans. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import FiringEnded, HostRecord, RunBody
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.host.contract import Span


def firings_of(plan: Plan, host: str, records: Sequence[HostRecord]) -> Iterator[Span]:
    """The completed firings of the nodes of `plan` on the tape of `host`, ordered by their ends.

    Transfers are on no tape: the sender of an item does not learn of its arrival.
    """
    names = {node.index: node.name for node in plan.nodes}
    begun: dict[int, Instant] = {}
    for record in records:
        event = record.event
        if isinstance(event, FiringEnded) and event.node in begun and event.node in names:
            yield Span(host, names[event.node], begun.pop(event.node), record.at)
        for command in record.commands:
            if isinstance(command, RunBody):
                begun[command.node] = record.at
