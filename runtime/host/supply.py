"""Whether a node waits for a source on its own host: data that are too slow for the step.

Judged from figures that the host measures anyway. A *source* is a node that needs no connected input, its *consumer*
one that it feeds by a Queue within the host. The source is the bottleneck where it is in a firing nearly all of the
time, so that it never waits for room, and the consumer waits most of the time. Both conditions matter: a source may be
busy beside a consumer that is as busy, and a consumer may wait for another node. Decided over windows of time; the
first begins when the consumer has waited once: before it is ready, it is idle.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.host.contract import Traffic
from isthmus.runtime.supervision.incidents import Starved

WINDOW: Final = seconds(5)
ITEMS_MIN: Final = 8
"""Items of a source in a window, which lasts until there are so many: a slow and rare source is reported later."""
BUSY_MIN: Final = 0.8
"""The share of the time that the source is in a firing."""
WAITING_MIN: Final = 0.5
"""The share of the time that the consumer waits: data that take longer than everything else in a step."""


class _Count(NamedTuple):
    """Counts at an instant."""

    at: Instant
    emitted: int
    spent: int
    waited: int


class Supply:
    """Judges the sources of the host that runs a plan."""

    def __init__(self, plan: Plan) -> None:
        nodes = {node.index: node for node in plan.nodes}
        sources = {
            node.index for node in plan.nodes if not any(port.edges and port.is_required for port in node.inputs)
        }
        self._pairs = [
            (nodes[edge.source].name, nodes[edge.target].name)
            for edge in plan.edges.values()
            if edge.kind == "queue" and edge.route == "local" and edge.source in sources and edge.target in nodes
        ]
        self._begun: dict[str, _Count] = {}
        self._found: dict[str, Starved] = {}

    def look(self, traffic: Traffic, now: Instant) -> Starved | None:
        """The starved consumer, by the last complete window of each source; None if there is none."""
        for source, consumer in self._pairs:
            waited = traffic.waited.get(consumer, Duration(0))
            count = _Count(now, traffic.emitted.get(source, 0), traffic.spent.get(source, Duration(0)), waited)
            begun = self._begun.setdefault(source, count)
            if not begun.waited:
                self._begun[source] = count
            elif now - begun.at >= WINDOW and count.emitted - begun.emitted >= ITEMS_MIN:
                self._begun[source] = count
                self._judge(source, consumer, begun, count)
        return next(iter(self._found.values()), None)

    def _judge(self, source: str, consumer: str, begun: _Count, ended: _Count) -> None:
        """Judge a window."""
        self._found.pop(source, None)
        took, items = ended.at - begun.at, ended.emitted - begun.emitted
        spent, waited = ended.spent - begun.spent, ended.waited - begun.waited
        if spent >= BUSY_MIN * took and waited >= WAITING_MIN * took:
            rest = max(0, took - waited)
            self._found[source] = Starved(consumer, source, round(spent / items), round(rest / items))
