"""Who may object to what happens in a universe: one small class for each invariant.

A checker sees every item that leaves a host or is delivered to one, is asked now and then, and at the end. It raises
`ViolationError`, and the universe stops there. Those here hold for every program; what holds for one family of programs
is checked where that family is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.host.roster import Row
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home.core import Home
from isthmus.runtime.supervision.incidents import Happened

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

    def told(self, life: Life, rows: Sequence[Row]) -> None:
        """A host is about to hear a roster."""

    def connected(self, life: Life, peer: Member) -> None:
        """A connection of a host with a peer is up, or was lost."""

    def granted(self, life: Life, source: Member, edge: int, count: int) -> None:
        """A host took so many items of a Queue edge, and tells who sent them."""

    def credited(self, life: Life, target: Member, edge: int, count: int) -> None:
        """A host is about to hear that so many items of a Queue edge were taken."""

    def began(self, universe: Universe, member: Member) -> None:
        """A daemon is about to start the process of a life."""

    def happened(self, universe: Universe, happened: Happened) -> None:
        """A home writes down what became of a host."""

    def finished(self, universe: Universe, home: Home) -> None:
        """A home says that the run is over, and nobody is left."""

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
    """Nobody knows an earlier life of a replica than it was told of, nor goes back to one, nor takes what it sends, nor
    what somebody sends whom it does not know: its core would drop that. And nobody is told that a life is back which it
    was told had gone, but by a daemon whose disk has failed: it may not know."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Replica], int] = {}
        self._live: dict[Member, set[Member]] = {}
        self._gone: dict[Member, set[Member]] = {}
        self._back: list[str] = []

    def told(self, life: Life, rows: Sequence[Row]) -> None:
        """Note who is live; one that is not itself among them is not known yet, and listens to none of it."""
        found = [Member(Replica.parse(row[0]), row[1]) for row in rows]
        if life.member in found:
            for member in found:
                self._know(life, member)
            gone = self._gone.setdefault(life.member, set())
            self._back += [
                f"{life.member} is told that {each} is back, which had gone" for each in found if each in gone
            ]
            gone |= self._live.get(life.member, set()) - set(found)
            self._live[life.member] = set(found)

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Look at who sends."""
        newest = self._newest.get((life.member, source.replica), 0)
        if source.incarnation < newest:
            raise ViolationError(f"{life.member} takes an item of {source}, and was told of incarnation {newest}")
        if life.meetings.live.get(source.replica) != source:
            raise ViolationError(f"{life.member} is given an item of {source}, whom it does not know")

    def asked(self, universe: Universe) -> None:
        """Compare whom every host knows with whom it was told of."""
        if self._back and not (universe.disks[universe.home].failures or universe.disks[universe.home].refusals):
            raise ViolationError(self._back[0])
        for life in universe.living():
            for member in life.meetings.live.values():
                newest = self._newest.get((life.member, member.replica), 0)
                if member.incarnation < newest:
                    raise ViolationError(f"{life.member} knows {member}, and was told of incarnation {newest}")
                self._know(life, member)

    def ended(self, universe: Universe) -> None:
        """Once more."""
        self.asked(universe)

    def _know(self, life: Life, member: Member) -> None:
        key = life.member, member.replica
        self._newest[key] = max(self._newest.get(key, 0), member.incarnation)


class TapeFilesChecker(Checker):
    """The files of every tape are the tape, whole up to a record, whatever became of processes and power."""

    def ended(self, universe: Universe) -> None:
        """Look at those of every life."""
        for life in universe.lives:
            try:
                life.tape.check()
            except InvariantError as error:
                raise ViolationError(f"the tape of {life.member}: {error}") from None
