"""Who may object to what happens in a universe: one small class for each invariant.

A checker sees every item that leaves a host or is delivered to one, is asked now and then, and at the end. It raises
`ViolationError`, and the universe stops there. Those here hold for every program; what holds for one family of programs
is checked where that family is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.lowering import EdgePlan

if TYPE_CHECKING:
    from isthmus.runtime.sim.life import Life
    from isthmus.runtime.sim.universe import Universe

PAYLOADS_MAX: Final = 400
"""Items that a host of a small run may hold at once: a few for each key of each edge and peer."""


class ViolationError(Exception):
    """An invariant did not hold; the story says which, where, and what was found."""


class Checker:
    """Objects to nothing. Invariants override what they want to see."""

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """A host sends an item."""

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """An item is about to be given to a host."""

    def asked(self, universe: Universe) -> None:
        """Some hundred events have happened."""

    def ended(self, universe: Universe) -> None:
        """The run is over."""


class WaitsChecker(Checker):
    """A free-running node never waits for another host. `nodes` names those of each role."""

    def __init__(self, nodes: Mapping[str, frozenset[str]]) -> None:
        self._nodes = nodes

    def asked(self, universe: Universe) -> None:
        """Ask every host how long its nodes were kept waiting."""
        for life in universe.living():
            for node in sorted(self._nodes.get(life.member.replica.role, ())):
                waited = life.host.traffic.waited.get(node, 0)
                if waited:
                    raise ViolationError(f"{life.member}: free-running node {node!r} waited {waited / 1e6:.1f} ms")

    def ended(self, universe: Universe) -> None:
        """Once more."""
        self.asked(universe)


class BoundsChecker(Checker):
    """Cores keep their own invariants, and nobody hoards items."""

    def asked(self, universe: Universe) -> None:
        """Check every core; count what waits."""
        for life in universe.living():
            life.host.scheduler.check()
            held = life.host.payloads_count
            if held > PAYLOADS_MAX:
                raise ViolationError(f"{life.member} holds {held} items; at most {PAYLOADS_MAX} are expected")
            if life.host.refused:
                raise ViolationError(f"{life.member} refused what a sound peer sent: {dict(life.host.refused)}")

    def ended(self, universe: Universe) -> None:
        """Once more."""
        self.asked(universe)


class RosterChecker(Checker):
    """Nobody knows two lives of a replica at once, nor goes back to an earlier one."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Replica], int] = {}

    def asked(self, universe: Universe) -> None:
        """Compare whom every host knows with whom it knew."""
        for life in universe.living():
            for replica, member in life.meetings.live.items():
                newest = self._newest.get((life.member, replica), 0)
                if member.incarnation < newest:
                    raise ViolationError(f"{life.member} knows {member}, after incarnation {newest}")
                self._newest[life.member, replica] = member.incarnation
