"""The verdicts of the membership core on hosts that live: stuck, slow, stopped. Virtual time, four beats a second."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.cores.membership_core import MembershipCore, MembershipOptions
from isthmus.runtime.cores.membership_messages import (
    AdmitMember,
    Excused,
    ExcuseEnded,
    HeardAgain,
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    KeepsUp,
    LongExcuse,
    MembershipCommand,
    MembershipEvent,
    MembershipTimerFired,
    NoteMember,
    Pace,
    RemoveMember,
    SetMembershipTimer,
    Silence,
    SilenceExcused,
    SlowHost,
    Stall,
    Suspected,
)
from isthmus.runtime.cores.membership_suspicion import phi
from isthmus.runtime.ids import Member, Replica
from tests.effort import examples

BEAT = milliseconds(250)
FOREVER = seconds(1e6)
OPTIONS = MembershipOptions(slots_max={"learner": 8, "syncer": 1}, interval_first=BEAT, deviation_first=seconds(1))


def life(slot: int, incarnation: int = 1) -> Member:
    return Member(Replica("learner", slot), incarnation)


class Learner:
    """A life that makes steps of `lasting` ns each, one after another, from `begins` on; it waits where `waits` says so
    instead of computing. `phase` is what it says of itself."""

    def __init__(self, member: Member, lasting: list[int], begins: int = 0, waits: bool = False) -> None:
        self.member, self.begins, self.waits = member, begins, waits
        self.ends = list(accumulate(lasting, initial=begins))
        self.phase: Any = "stepping"

    def beat(self, now: int) -> HeartbeatArrived:
        steps = max(0, bisect_right(self.ends, now) - 1)
        busy, firing = max(0, now - self.begins), max(0, now - self.ends[steps])
        if self.waits:
            busy, firing = steps * milliseconds(4), 0
        node = "inner-step" if firing else ""
        return HeartbeatArrived(self.member, self.phase, steps, Duration(busy), Duration(firing), node)


class Story:
    """A core, and learners whose heartbeats it hears."""

    def __init__(self, *learners: Learner) -> None:
        self.core, self.now, self.timer_at = MembershipCore(OPTIONS), 0, None
        self.learners = list(learners)
        self.told: list[tuple[float, MembershipCommand]] = []
        for learner in learners:
            self.tell(HostAnnounced(learner.member, learner.phase))

    def tell(self, event: MembershipEvent) -> None:
        for command in self.core.handle(event, Instant(self.now)):
            if isinstance(command, SetMembershipTimer):
                self.timer_at: int | None = command.at
            elif not isinstance(command, AdmitMember):
                self.told.append((self.now / 1e9, command))
                if isinstance(command, RemoveMember):
                    self.learners = [each for each in self.learners if each.member != command.member]
        self.core.check()

    def go_on(self, for_seconds: float, silent: tuple[int, ...] = ()) -> list[MembershipCommand]:
        """Let so much time pass; what was said of members in it. Those in the slots `silent` say nothing."""
        before, until = len(self.told), self.now + round(for_seconds * 1e9)
        while (beat_at := self.now + BEAT - self.now % BEAT) <= until:
            if self.timer_at is not None and self.timer_at <= beat_at:
                self.now, self.timer_at = self.timer_at, None
                self.tell(MembershipTimerFired())
                continue
            self.now = beat_at
            for learner in list(self.learners):
                if learner.member.replica.slot not in silent:
                    self.tell(learner.beat(self.now))
        self.now = until
        return [command for _, command in self.told[before:]]

    def admit(self, learner: Learner) -> None:
        self.learners.append(learner)
        self.tell(HostAnnounced(learner.member, learner.phase))


def regular(slot: int, lasting: float, count: int = 20_000, incarnation: int = 1, begins: int = 0) -> Learner:
    """Steps of so many seconds each, and then one that never ends."""
    return Learner(life(slot, incarnation), [seconds(lasting)] * count + [FOREVER], begins)


def stall_of(commands: list[MembershipCommand], slot: int = 0, incarnation: int = 1) -> Stall:
    """The finding of the one command that there is, which removes a life that is stuck."""
    [command] = commands
    assert isinstance(command, RemoveMember)
    assert (command.member, command.cause) == (life(slot, incarnation), "stuck")
    found = command.finding
    assert isinstance(found, Stall)
    assert found.node == "inner-step"
    assert found.phi == phi(found.stalled_ns, found.usual_ns, found.deviation_ns)
    return found


def pace_of(commands: list[MembershipCommand]) -> Pace:
    """The finding of the one command that there is, which says that learner/0 is slow."""
    [command] = commands
    assert isinstance(command, NoteMember)
    assert isinstance(command.incident, SlowHost)
    assert command.member == life(0)
    return command.incident.pace


# -- stuck -------------------------------------------------------------------------------------------------------------


def test_who_makes_no_step_any_more_is_stuck_after_what_its_steps_make_likely() -> None:
    story = Story(regular(0, 0.01, count=2000), regular(1, 0.01))
    assert story.go_on(20 + 14) == []
    found = stall_of(story.go_on(1))
    assert (found.stalled_ns, found.deviation_ns) == (seconds(14.5), seconds(2))
    assert found.usual_ns == pytest.approx(BEAT, rel=0.01)
    assert found.phi == pytest.approx(12.28, abs=0.01)
    assert (found.is_of_role, found.patience_times) == (False, 1)
    assert story.core.statistics()["stuck"] == 1


@pytest.mark.parametrize(("lasting", "at_most"), [(0.004, 15), (1.0, 25), (10.0, 60), (60.0, 300)])
def test_the_deadline_follows_the_length_of_the_steps(lasting: float, at_most: float) -> None:
    count = max(20, round(40 / lasting))
    story = Story(regular(0, lasting, count=count))
    story.go_on(count * lasting + at_most)
    [(at, removed)] = story.told
    assert isinstance(removed, RemoveMember)
    assert 2 * lasting < at - count * lasting <= at_most


@given(
    st.sampled_from([0.002, 0.05, 0.3, 2.0, 30.0]),
    st.lists(st.floats(0.5, 3.0), min_size=5, max_size=40),
    st.integers(1, 3),
)
@settings(max_examples=examples(60), deadline=None)
def test_steps_that_differ_by_six_make_nobody_stuck(lasting: float, factors: list[float], learners: int) -> None:
    times = [round(seconds(lasting) * factor) for factor in factors]
    story = Story(*(Learner(life(slot), times * max(1, round(60 / sum(times) * 1e9))) for slot in range(learners)))
    assert story.go_on(min(story.learners[0].ends) / 1e9 + len(factors) * lasting) == []


@given(st.integers(1, 10_000))
@settings(max_examples=examples(20), deadline=None)
def test_who_waits_for_others_is_never_stuck(waited: int) -> None:
    learner = Learner(life(0), [milliseconds(100)] * 200 + [seconds(waited), FOREVER], waits=True)
    assert Story(learner, regular(1, 0.005)).go_on(20 + min(waited, 60)) == []


@pytest.mark.parametrize("phase", ["compiling", "recovering", "serving", "final"])
def test_only_who_says_that_it_steps_can_be_stuck(phase: str) -> None:
    learner = regular(0, 0.01, count=1000)
    story = Story(learner, regular(1, 0.01))
    story.go_on(10)
    learner.phase = phase
    assert story.go_on(100) == []


def test_whose_other_nodes_go_on_firing_is_not_stuck() -> None:
    """A step that never comes, while no firing lasts: a gate that others keep shut, say."""
    story = Story(regular(1, 0.01))
    story.admit(Learner(life(0), []))
    for _ in range(400):
        story.go_on(0.25, silent=(0,))
        told = HeartbeatArrived(life(0), "stepping", 7, Duration(story.now), Duration(milliseconds(3)), "gate")
        story.tell(told)
    assert story.told == []


def test_a_first_step_is_judged_by_those_of_others_and_by_nothing_where_there_are_none() -> None:
    alone = Story(Learner(life(0), [FOREVER]))
    assert alone.go_on(3600) == []
    among = Story(Learner(life(0), [FOREVER]), regular(1, 0.01))
    assert among.go_on(34) == []
    found = stall_of(among.go_on(3))
    assert (found.stalled_ns, found.deviation_ns) == (seconds(35.5), seconds(5))
    assert found.usual_ns == pytest.approx(BEAT, rel=0.01)
    assert found.phi == pytest.approx(12.05, abs=0.02)
    assert (found.is_of_role, found.patience_times) == (True, 1)


def test_a_life_after_one_that_was_stuck_is_given_twice_the_time() -> None:
    story = Story(regular(0, 0.01, count=2000), regular(1, 0.01))
    story.go_on(36)
    story.tell(HostEnded(life(0)))
    story.admit(regular(0, 0.01, count=2000, incarnation=2, begins=story.now))
    assert story.go_on(20 + 28) == []
    found = stall_of(story.go_on(2), incarnation=2)
    assert (found.stalled_ns, found.deviation_ns, found.patience_times) == (seconds(28.75), seconds(2), 2)
    assert found.phi == pytest.approx(45.6, abs=0.05)


def test_everybody_who_is_stuck_is_counted() -> None:
    story = Story(regular(0, 0.01, count=2000), regular(1, 0.01, count=2000), regular(2, 0.01))
    assert [type(command) for command in story.go_on(36)] == [RemoveMember, RemoveMember]
    assert story.core.statistics()["stuck"] == 2


def test_time_in_which_it_was_stopped_is_no_time_without_a_step() -> None:
    story = Story(regular(0, 0.01, count=2000), regular(1, 0.01))
    story.go_on(20)
    story.tell(SilenceExcused(life(0), "stopped"))
    story.go_on(100, silent=(0,))
    assert story.go_on(14) == [NoteMember(life(0), HeardAgain(seconds(100) + BEAT))]
    assert stall_of(story.go_on(1)).stalled_ns == seconds(14.5)


# -- slow --------------------------------------------------------------------------------------------------------------


def test_who_takes_much_longer_than_the_others_is_called_slow_and_nothing_else() -> None:
    story = Story(regular(0, 0.41), regular(1, 0.04), regular(2, 0.042), regular(3, 0.044))
    pace = pace_of(story.go_on(60))
    assert pace.usual_ns == pytest.approx(milliseconds(42), rel=1e-3)
    assert 390 < pace.own_ns / 1e6 < 430
    assert pace.others == 3
    assert [state for _, _, state in story.core.roster()] == ["slow", "alive", "alive", "alive"]


def test_who_keeps_up_again_is_said_to() -> None:
    times = [milliseconds(10)] * 1000 + [milliseconds(100)] * 300 + [milliseconds(10)] * 3000
    story = Story(Learner(life(0), times), regular(1, 0.01))
    found = story.go_on(60)
    noted, cleared = [command.incident for command in found if isinstance(command, NoteMember)]
    assert [at for at, _ in story.told] == [pytest.approx(17, abs=2), pytest.approx(46, abs=3)]
    assert isinstance(noted, SlowHost)
    assert isinstance(cleared, KeepsUp)
    assert [command.member for command in found if isinstance(command, NoteMember)] == [life(0), life(0)]
    for pace in (noted.pace, cleared.pace):
        assert pace.usual_ns == pytest.approx(milliseconds(10), rel=1e-3)
        assert pace.others == 1
    assert noted.pace.own_ns >= 3 * noted.pace.usual_ns
    assert cleared.pace.own_ns <= 2 * cleared.pace.usual_ns
    assert story.core.statistics()["slow no more"] == 1


def test_everybody_who_is_slow_is_counted_and_compared_with_the_others_of_its_role() -> None:
    times = [milliseconds(10)] * 1000 + [milliseconds(100)] * 300 + [milliseconds(10)] * 3000
    story = Story(*(Learner(life(slot), times) for slot in (0, 1)), *(regular(slot, 0.01) for slot in range(2, 5)))
    noted = [command for command in story.go_on(60) if isinstance(command, NoteMember)]
    assert [type(command.incident) for command in noted] == [SlowHost, SlowHost, KeepsUp, KeepsUp]
    assert [command.member for command in noted] == [life(0), life(1), life(0), life(1)]
    counts = story.core.statistics()
    assert (counts["slow"], counts["slow no more"]) == (2, 2)


def test_with_two_others_it_is_compared_with_what_is_between_them() -> None:
    story = Story(regular(0, 0.4), regular(1, 0.025), regular(2, 0.05))
    pace = pace_of(story.go_on(60))
    assert (pace.usual_ns, pace.others) == (pytest.approx(milliseconds(37.5), rel=1e-3), 2)


@pytest.mark.slow
@given(st.lists(st.floats(0.02, 0.055), min_size=2, max_size=6))
@settings(max_examples=examples(30), deadline=None)
def test_paces_that_differ_by_less_than_three_are_nobodys_fault(paces: list[float]) -> None:
    assert Story(*(regular(slot, pace) for slot, pace in enumerate(paces))).go_on(30) == []


def test_one_long_pause_makes_nobody_slow() -> None:
    times = [milliseconds(10)] * 1500 + [seconds(10)] + [milliseconds(10)] * 3000
    assert Story(Learner(life(0), times), regular(1, 0.01)).go_on(50) == []


def test_who_waits_is_not_slow_and_who_is_waited_for_is() -> None:
    """In lock-step all make as many steps; the time of their own tells them apart."""
    waiting = Learner(life(1), [milliseconds(400)] * 1000, waits=True)
    pace = pace_of(Story(regular(0, 0.4), waiting).go_on(60))
    assert (pace.usual_ns, pace.others) == (pytest.approx(milliseconds(4), rel=1e-3), 1)
    assert pace.own_ns == pytest.approx(milliseconds(400), rel=0.05)


def test_a_newcomer_is_not_slow_for_what_it_compiled() -> None:
    newcomer = Learner(life(0), [seconds(8)] + [milliseconds(10)] * 5000)
    assert Story(newcomer, regular(1, 0.01), regular(2, 0.01)).go_on(40) == []


# -- stopped and unheard -----------------------------------------------------------------------------------------------


def test_a_silence_that_is_excused_costs_no_life() -> None:
    story = Story(regular(0, 0.01, count=70_000))
    story.go_on(10)
    story.go_on(1, silent=(0,))
    story.tell(SilenceExcused(life(0), "stopped"))
    story.tell(SilenceExcused(life(0), "stopped"))
    assert story.go_on(590, silent=(0,)) == []
    assert [command for _, command in story.told] == [NoteMember(life(0), Excused("stopped", seconds(1)))]
    assert story.core.state(life(0).replica) == "stopped"
    assert story.go_on(1) == [NoteMember(life(0), HeardAgain(milliseconds(591_250)))]
    assert story.core.state(life(0).replica) == "alive"


def test_nobody_is_excused_for_ever() -> None:
    story = Story(regular(0, 0.01))
    story.go_on(10)
    story.go_on(1, silent=(0,))
    story.tell(SilenceExcused(life(0), "unheard"))
    [removed] = story.go_on(601, silent=(0,))
    assert removed == RemoveMember(life(0), "silent", LongExcuse(seconds(601), "unheard", seconds(600)))


def test_when_the_excuse_ends_it_has_to_speak() -> None:
    story = Story(regular(0, 0.01))
    story.go_on(5)
    story.tell(SilenceExcused(life(0), "stopped"))
    story.go_on(60, silent=(0,))
    story.tell(ExcuseEnded(life(0)))
    assert story.told[-1][1] == NoteMember(life(0), Suspected())
    [removed] = story.go_on(6, silent=(0,))
    assert isinstance(removed, RemoveMember)
    assert (removed.member, removed.cause) == (life(0), "silent")
    # It is the silence since the excuse ended that counts.
    assert isinstance(removed.finding, Silence)
    assert removed.finding.silence_ns == round((story.told[-1][0] - 65) * 1e9)
    assert removed.finding.phi == pytest.approx(12.0, abs=1e-4)


def test_excuses_for_strangers_are_ignored() -> None:
    story = Story(regular(0, 0.01))
    for member in (life(0, 2), life(1)):
        story.tell(SilenceExcused(member, "stopped"))
        story.tell(ExcuseEnded(member))
    story.tell(ExcuseEnded(life(0)))
    assert story.told == []


def test_who_is_due_is_known_before_the_timer_fires() -> None:
    story = Story(regular(0, 0.01), regular(1, 0.01))
    story.go_on(10)
    assert story.core.late(Instant(story.now + milliseconds(1700))) == ()
    assert story.core.late(Instant(story.now + milliseconds(1900))) == (life(0), life(1))
    story.tell(SilenceExcused(life(0), "stopped"))
    assert story.core.late(Instant(story.now + milliseconds(1900))) == (life(1),)
