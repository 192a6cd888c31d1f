"""Whether a node of this host could use new items now, or only at the end of a firing.

Decides when a host need not listen. Knows neither the sources nor the kinds of its input.

Theory of operation. A node that *hears* takes items of other hosts. Where all such nodes of a host are free-running,
they wait for no other host, so their firings follow each other; items that arrive during a firing wait until its end in
any case. So while each of them is in a firing, it is enough to check at the end, in the thread that is there. A firing
that follows longer ones, or none, is expected to be long: then the host listens, because credit, links and long
transfers need an answer meanwhile. One that is unexpectedly long is noticed at the next heartbeat of the owner.
"""

from __future__ import annotations

from typing import Final

from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.graph.plans import NodePlan, Plan

BRIEF_MAX: Final = milliseconds(50)
"""The longest delay of a channel's answers: a window of 32 MiB a peer, taken once in this time, is 5 Gbit/s."""


class Attention:
    """The attention of the host of one plan."""

    def __init__(self, plan: Plan) -> None:
        hearing = [node for node in plan.nodes if _hears(plan, node)]
        is_free = all(node.is_free_running for node in hearing)
        self._hearing = frozenset(node.index for node in hearing if is_free)
        self._brief: set[int] = set()
        self._firing: set[int] = set()
        self.is_needed = True
        """Whether the host has to listen by itself."""

    def began(self, node: int) -> None:
        """A firing of a node begins."""
        if node in self._brief:
            self._firing.add(node)
            self.is_needed = self._firing != self._hearing

    def ended(self, node: int, took: Duration) -> None:
        """A firing of a node has ended."""
        if node in self._hearing:
            self._firing.discard(node)
            self.is_needed = True
            if took > BRIEF_MAX:
                self._brief.discard(node)
            elif node not in self._brief:
                self._brief.add(node)


def _hears(plan: Plan, node: NodePlan) -> bool:
    """Whether a node takes items of other hosts."""
    return any(plan.edges[edge].route != "local" for port in node.inputs for edge in port.edges)
