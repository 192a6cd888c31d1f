"""Invariants of the supervision of hosts in every universe, under all faults of daemons, ledgers and links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.membership.messages import Stall
from isthmus.runtime.roles import leader
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.faults import Cut, DaemonFault, Fault, Mute, RefuseStarts
from isthmus.runtime.sim.universe import HOME, Universe
from isthmus.runtime.supervision.home.core import Home
from isthmus.runtime.supervision.home.service import BEAT, LAST_BEATS
from isthmus.runtime.supervision.incidents import (
    Bereft,
    Condemned,
    Ended,
    GivenUp,
    Happened,
    Hurried,
    ItemRefused,
    RecorderFailed,
    Undermanned,
    Unreached,
    Unserved,
)

SLOWING: Final = frozenset({"stick", "slow", "pause", "hang"})
"""Kinds of faults that make a firing long."""
DEAFENING: Final = frozenset({"mute", "cut", "one-way cut", "clog", "lose", "throttle"})
"""Kinds of faults that separate a host from the others."""
STARTS_REFUSED_MIN: Final = 6
"""From this many on, eight seconds apart, a machine has no room for as long as the end of a run is awaited."""
RECORDER: Final = Replica("recorder", 0)


class LivesChecker(Checker):
    """Each number is used once: no process is ever started for a life that had one before. And all cores are sound."""

    def __init__(self) -> None:
        self._began: set[Member] = set()

    def began(self, universe: Universe, member: Member) -> None:
        """Check for a second start."""
        if member in self._began:
            raise ViolationError(f"{member} is started a second time")
        self._began.add(member)

    def asked(self, universe: Universe) -> None:
        """Check every core of the live daemons."""
        for daemon in universe.daemons:
            if not daemon.clock.is_dead:
                daemon.station.check()
                if daemon.home is not None:
                    daemon.home.check()

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.asked(universe)


class VerdictsChecker(Checker):
    """Verdicts have a cause.

    A host that no fault concerned is killed neither for silence nor for being stuck, and is not given up; a daemon
    reports the end of a life once.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, Member]] = set()

    def happened(self, universe: Universe, happened: Happened) -> None:
        member, incident = happened.member, happened.incident
        # At the end of a run nothing excuses a silence, neither a cut link nor a stopped process.
        is_ending = universe.phase == "final" or universe.injector.counts["stop"]
        match incident:
            case Condemned(verdict=Unreached()):
                is_stopped = bool(is_ending) and member.replica in universe.injector.touched
                if not (is_stopped or DEAFENING & set(universe.injector.counts)):
                    raise ViolationError(f"{member} is killed, and no way was broken: {incident.verdict}")
            case Condemned(verdict=Bereft() | Undermanned()):
                # A process whose machine is unheard is left out, too, and may be one too many.
                is_touched = any(leader(each) == leader(member.replica) for each in universe.injector.touched)
                if not (is_touched or DEAFENING & set(universe.injector.counts)):
                    raise ViolationError(f"{member} is killed for its island, and no fault was about that")
            case Condemned():
                is_late = isinstance(incident.verdict, Hurried) or _is_cut_off(universe, member.replica)
                if member.replica not in universe.injector.touched and not (is_late and is_ending):
                    raise ViolationError(f"{member} is killed, and no fault was about it: {incident.verdict}")
                if isinstance(incident.verdict, Stall) and not SLOWING & set(universe.injector.counts):
                    raise ViolationError(f"{member} is called stuck, and nothing was slow: {incident.verdict}")
            case ItemRefused():
                if member.replica not in universe.injector.forgeries:
                    raise ViolationError(f"an item of {member} is refused, and nobody forged any: {incident.refusal}")
            case GivenUp():
                if not (universe.injector.counts["crash loop"] or member.replica in universe.injector.forgeries):
                    raise ViolationError(f"{member} is given up after {incident.lives} lives, and no life had to end")
            case Ended():
                told = universe.home_name, member
                if told in self._told:
                    raise ViolationError(f"{told[0]} tells the end of {member} twice")
                self._told.add(told)


class EndChecker(Checker):
    """A run ends once, with no process left.

    It is done when its recorder reported so, stopped where a stop was requested, and failed only where its end was
    requested, or a required replica was given up.
    """

    def __init__(self) -> None:
        self._outcome: str | None = None

    def finished(self, universe: Universe, home: Home) -> None:
        if self._outcome not in (None, home.outcome):
            raise ViolationError(f"the run is over as {home.outcome!r}, and was as {self._outcome!r}")
        self._outcome = home.outcome
        asked, has_crashed = universe.asked, universe.injector.counts["crash loop"]
        if universe.is_stopped and home.outcome == "done":
            raise ViolationError("the run is over as 'done', and somebody was told that it stops")
        if home.outcome == "stopped" and "stop" not in asked:
            raise ViolationError("the run is over as 'stopped', and no one has asked for it")
        if home.outcome == "done" and universe.last(RECORDER) is None:
            raise ViolationError("the run is over as 'done', and there was no recorder")
        is_told = isinstance(home.failure, RecorderFailed)  # A program's own checkers judge whether it is right.
        is_told |= isinstance(home.failure, Unserved) and _is_barred(universe.injector.happened)
        if home.outcome == "failed" and not ("end" in asked or has_crashed or is_told):
            raise ViolationError(f"the run has failed: {home.failure}")

    def ended(self, universe: Universe) -> None:
        """Check that no process is left."""
        left = [str(life.member) for life in universe.living()]
        if left:
            raise ViolationError(f"the run is over, and {', '.join(left)} are there")


def _is_cut_off(universe: Universe, replica: Replica) -> bool:
    """Whether the path between a host's machine and the home was cut, at least one way, or lacked a daemon."""
    life = universe.last(replica)
    ends = {life.machine if life else HOME, HOME, universe.home}
    happened = [fault for fault, _ in universe.injector.happened]
    if any(isinstance(fault, DaemonFault) and fault.machine in ends for fault in happened):
        return True
    cuts = [fault for fault in happened if isinstance(fault, Cut)]
    return any(cut.machine in ends and (cut.target is None or cut.target in ends) for cut in cuts)


def _is_barred(happened: Sequence[tuple[Fault, str]]) -> bool:
    """Whether faults may have kept a replica from serving for as long as the end of a run waits for it."""
    mute = max((fault.seconds for fault, _ in happened if isinstance(fault, Mute)), default=0.0)
    refused = sum(isinstance(fault, RefuseStarts) for fault, _ in happened)
    return mute * 1e9 >= LAST_BEATS * BEAT or refused >= STARTS_REFUSED_MIN


def supervision_checkers() -> list[Checker]:
    """A checker for each invariant, new for each universe."""
    return [LivesChecker(), VerdictsChecker(), EndChecker()]
