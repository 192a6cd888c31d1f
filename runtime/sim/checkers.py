"""Checkers of a universe: one small class for each invariant.

A checker sees every item that leaves a host or is delivered to one, and is called periodically and at the end. It
raises `ViolationError`, and the universe stops there. Those here hold for every program; invariants of one family of
programs are checked where that family is known.
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
    """An invariant did not hold; the message states which, where, and what was found."""


class Checker:
    """Checks nothing. Invariants override the callbacks that they need."""

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """A host sends an item."""

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """A host is about to receive an item."""

    def told(self, life: Life, rows: Sequence[Row]) -> None:
        """A host is about to receive a roster."""

    def connected(self, life: Life, peer: Member) -> None:
        """A connection of a host with a peer is up, or was lost."""

    def granted(self, life: Life, source: Member, edge: int, count: int) -> None:
        """A host took `count` items of a Queue edge, and reports that to their sender."""

    def credited(self, life: Life, target: Member, edge: int, count: int) -> None:
        """A host is about to receive `count` credits for a Queue edge."""

    def began(self, universe: Universe, member: Member) -> None:
        """A daemon is about to start the process of a life."""

    def happened(self, universe: Universe, happened: Happened) -> None:
        """A home records an incident of a host."""

    def finished(self, universe: Universe, home: Home) -> None:
        """A home reports that the run is over, and no process is left."""

    def asked(self, universe: Universe) -> None:
        """Called every few hundred events."""

    def ended(self, universe: Universe) -> None:
        """The run is over."""


class WaitsChecker(Checker):
    """A free-running node never waits for another host. `nodes` names those of each role."""

    def __init__(self, nodes: Mapping[str, frozenset[str]]) -> None:
        self._nodes = nodes

    def asked(self, universe: Universe) -> None:
        """Check the waiting times of every host's nodes."""
        for life in universe.living():
            for node in sorted(self._nodes.get(life.member.replica.role, ())):
                waited = life.host.traffic.waited.get(node, 0)
                if waited:
                    raise ViolationError(f"{life.member}: free-running node {node!r} waited {waited / 1e6:.1f} ms")

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.asked(universe)


class BoundsChecker(Checker):
    """Cores keep their own invariants, and no host hoards items."""

    def asked(self, universe: Universe) -> None:
        """Check every core; count the items held."""
        for life in universe.living():
            life.host.scheduler.check()
            held = life.host.payloads_count
            if held > PAYLOADS_MAX:
                raise ViolationError(f"{life.member} holds {held} items; at most {PAYLOADS_MAX} are expected")
            if life.host.refused:
                raise ViolationError(f"{life.member} refused what a sound peer sent: {dict(life.host.refused)}")

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.asked(universe)


class RosterChecker(Checker):
    """A host follows its rosters.

    It never knows an earlier life of a replica than its rosters named, nor goes back to one, nor accepts its items, nor
    those of a member that it does not know: its core would drop them. And no roster brings back a life that an earlier
    one left out, unless the disk of its daemon has failed, which may not know.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Replica], int] = {}
        self._live: dict[Member, set[Member]] = {}
        self._gone: dict[Member, set[Member]] = {}
        self._back: list[str] = []

    def told(self, life: Life, rows: Sequence[Row]) -> None:
        """Record the live members; a host that is not in the roster is not known yet, and ignores it."""
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
        """Check the sender."""
        newest = self._newest.get((life.member, source.replica), 0)
        if source.incarnation < newest:
            raise ViolationError(f"{life.member} takes an item of {source}, and was told of incarnation {newest}")
        if life.meetings.live.get(source.replica) != source:
            raise ViolationError(f"{life.member} is given an item of {source}, whom it does not know")

    def asked(self, universe: Universe) -> None:
        """Compare the members that every host knows with its rosters."""
        if self._back and not (universe.disks[universe.home].failures or universe.disks[universe.home].refusals):
            raise ViolationError(self._back[0])
        for life in universe.living():
            for member in life.meetings.live.values():
                newest = self._newest.get((life.member, member.replica), 0)
                if member.incarnation < newest:
                    raise ViolationError(f"{life.member} knows {member}, and was told of incarnation {newest}")
                self._know(life, member)

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.asked(universe)

    def _know(self, life: Life, member: Member) -> None:
        key = life.member, member.replica
        self._newest[key] = max(self._newest.get(key, 0), member.incarnation)


class TapeFilesChecker(Checker):
    """The files of every tape are the tape, whole up to a record, after any kill or power failure."""

    def ended(self, universe: Universe) -> None:
        """Check the files of every life."""
        for life in universe.lives:
            try:
                life.tape.check()
            except InvariantError as error:
                raise ViolationError(f"the tape of {life.member}: {error}") from None
