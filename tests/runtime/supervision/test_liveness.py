"""The liveness of hosts: what becomes of each word of the membership core, and which silence is excused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import pytest

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.cores.membership_messages import (
    Excuse,
    Excused,
    HeardAgain,
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    KeepsUp,
    LongExcuse,
    MembershipEvent,
    Refused,
    SlowHost,
    Suspected,
)
from isthmus.runtime.cores.membership_suspicion import SLOW_RATIO
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Hurried
from isthmus.runtime.supervision.liveness import HURRY, PATIENCE, Findings, HostLiveness
from tests.runtime.supervision.supervision_stories import GONE, SUSPECT, life, silence

LEARNER, SYNCER = life("learner/0"), life("syncer/0")
SLOTS: Final = {"learner": 2, "syncer": 1}


class Story:
    """The liveness of hosts, fed with events at seconds; `excuses` says what excuses whose silence."""

    def __init__(self, patience: Duration = PATIENCE) -> None:
        self.excuses: dict[Member, Excuse] = {}
        self.liveness = HostLiveness(SLOTS, patience, self.excuses.get, lambda member: (4711, f"machine of {member}"))

    def take(self, now: float, *events: MembershipEvent) -> Findings:
        """What events lead to."""
        found = Findings()
        for event in events:
            assert self.liveness.handle(event, Instant(seconds(now)), found) is found
            self.liveness.check()
        return found

    def hello(self, now: float, *members: Member) -> Findings:
        return self.take(now, *(HostAnnounced(member, "starting") for member in members))

    def fire(self, now: float) -> Findings:
        found = self.liveness.fire(Instant(seconds(now)))
        self.liveness.check()
        return found

    def review(self, now: float, *, is_hurried: bool = False) -> Findings:
        found = self.liveness.review(Instant(seconds(now)), is_hurried=is_hurried)
        self.liveness.check()
        return found


@pytest.fixture
def story() -> Iterator[Story]:
    told = Story()
    yield told
    told.liveness.check()


def test_who_is_let_in_and_who_goes_changes_who_is_live(story: Story) -> None:
    assert story.liveness.timer_at is None
    assert story.hello(1, LEARNER, SYNCER) == Findings(has_changed=True)
    assert story.liveness.members() == [LEARNER, SYNCER]
    assert story.liveness.has(LEARNER)
    assert not story.liveness.has(life("learner/0#2"))
    assert story.liveness.state(LEARNER.replica) == "alive"
    assert story.liveness.timer_at == seconds(1) + math.ceil(SUSPECT * 1e9)
    assert story.take(2, HeartbeatArrived(SYNCER, "serving")) == Findings()
    assert story.take(2, HostEnded(LEARNER)) == Findings(condemned=[(LEARNER, None)], has_changed=True)
    assert story.liveness.state(LEARNER.replica) is None
    assert story.liveness.members() == [SYNCER]


def test_who_is_no_member_is_written_down(story: Story) -> None:
    stranger = Member(Replica("learner", 2), 1)
    assert story.hello(1, stranger) == Findings(written=[(stranger, Refused("no slot"))])


def test_a_silence_is_written_down_and_then_somebody_is_condemned_for_it(story: Story) -> None:
    story.hello(1, LEARNER)
    assert story.fire(1 + SUSPECT) == Findings(written=[(LEARNER, Suspected(silence(SUSPECT)))])
    assert story.liveness.timer_at == seconds(1 + GONE)
    assert story.fire(1 + GONE) == Findings(condemned=[(LEARNER, silence(GONE))], has_changed=True)
    assert story.liveness.timer_at is None


def test_who_speaks_again_is_heard_again(story: Story) -> None:
    story.hello(1, LEARNER)
    story.fire(1 + SUSPECT)
    assert story.take(9, HeartbeatArrived(LEARNER, "serving")) == Findings(written=[(LEARNER, HeardAgain(seconds(8)))])


def test_a_host_with_regular_heartbeats_is_suspect_after_three_seconds_and_gone_after_seven(story: Story) -> None:
    story.hello(0, LEARNER)
    for number in range(1, 400):
        story.take(0.25 * number, HeartbeatArrived(LEARNER, "serving"))
        story.fire(0.25 * number)
    found: list[float] = []
    while story.liveness.timer_at is not None:
        now = story.liveness.timer_at / 1e9
        told = story.fire(now)
        found += [now - 0.25 * 399] * bool(told.written or told.condemned)
    assert found == pytest.approx([3.34, 7.28], abs=0.01)


def test_nobody_is_waited_for_longer_than_patience_is_long() -> None:
    story = Story(seconds(3))
    story.hello(1, LEARNER)
    (condemned,) = story.fire(4).condemned
    assert condemned[0] == LEARNER
    assert getattr(condemned[1], "is_longest", False)


@pytest.mark.parametrize("excuse", ["stopped", "unheard"])
def test_a_silence_is_excused_when_it_would_be_suspicious(story: Story, excuse: Excuse) -> None:
    story.hello(1, LEARNER)
    story.excuses[LEARNER] = excuse
    excused = Excused(excuse, seconds(SUSPECT), 4711, "machine of learner/0#1")
    assert story.fire(1 + SUSPECT) == Findings(written=[(LEARNER, excused)])
    assert story.review(100) == Findings()
    story.excuses.clear()
    assert story.review(101) == Findings(written=[(LEARNER, Suspected())])
    assert story.review(102) == Findings()


def test_only_those_that_are_late_are_asked_about(story: Story) -> None:
    story.hello(1, LEARNER)
    story.hello(2, SYNCER)
    story.excuses |= {LEARNER: "stopped", SYNCER: "stopped"}
    assert [member for member, _ in story.fire(1 + SUSPECT).written] == [LEARNER]
    assert story.liveness.state(SYNCER.replica) == "alive"


def test_an_excuse_that_comes_too_late_for_suspicion_comes_in_time_for_the_verdict(story: Story) -> None:
    story.hello(1, LEARNER)
    story.fire(1 + SUSPECT)
    story.excuses[LEARNER] = "stopped"
    assert story.review(8) == Findings()
    excused = Excused("stopped", seconds(GONE), 4711, "machine of learner/0#1")
    assert story.fire(1 + GONE) == Findings(written=[(LEARNER, excused)])


def test_one_excuse_may_follow_another(story: Story) -> None:
    story.hello(1, LEARNER)
    story.excuses[LEARNER] = "unheard"
    story.fire(1 + SUSPECT)
    story.excuses[LEARNER] = "stopped"
    excused = Excused("stopped", seconds(9), 4711, "machine of learner/0#1")
    assert story.review(10) == Findings(written=[(LEARNER, excused)])
    assert story.review(11) == Findings()


def test_no_excuse_lasts_for_ever(story: Story) -> None:
    story.hello(1, LEARNER)
    story.excuses[LEARNER] = "stopped"
    story.fire(1 + SUSPECT)
    why = LongExcuse(seconds(SUSPECT + 600), "stopped", seconds(600))
    assert story.fire(1 + SUSPECT + 600) == Findings(condemned=[(LEARNER, why)], has_changed=True)


def test_learners_that_are_silent_are_hurried_and_nobody_else(story: Story) -> None:
    story.hello(1, LEARNER, SYNCER)
    story.fire(1 + SUSPECT)
    assert story.review(8, is_hurried=True) == Findings()
    assert story.review(8 + HURRY / 1e9 - 0.001, is_hurried=True) == Findings()
    hurried = Findings(condemned=[(LEARNER, Hurried())])
    assert story.review(8 + HURRY / 1e9, is_hurried=True) == hurried
    assert story.review(14, is_hurried=True) == hurried  # Until somebody has done something about it.


def test_an_excuse_does_not_help_who_is_hurried(story: Story) -> None:
    story.hello(1, LEARNER)
    story.excuses[LEARNER] = "stopped"
    story.fire(1 + SUSPECT)
    story.review(8, is_hurried=True)
    assert story.review(13, is_hurried=True) == Findings(condemned=[(LEARNER, Hurried())])


@pytest.mark.parametrize("is_heard", [False, True])
def test_hurry_begins_anew_with_each_silence(story: Story, is_heard: bool) -> None:
    story.hello(1, LEARNER)
    story.fire(1 + SUSPECT)
    story.review(8, is_hurried=True)
    if is_heard:
        story.take(9, HeartbeatArrived(LEARNER, "serving"))
    story.review(10, is_hurried=is_heard)
    story.fire(15)
    assert story.review(15, is_hurried=True) == Findings()


def test_a_learner_that_becomes_slow_is_written_down_and_that_it_keeps_up_again(story: Story) -> None:
    other, written = life("learner/1"), []
    story.hello(0, LEARNER, other)
    busy, steps = [0, 0], [0, 0]
    for number in range(1, 200):
        now = 0.25 * number
        for index, member in enumerate((LEARNER, other)):
            slow = 8 if index == 0 and number < 100 else 1
            busy[index] += seconds(0.25)
            steps[index] = steps[index] + 8 // slow
            beat = HeartbeatArrived(member, "stepping", steps[index], Duration(busy[index]))
            written += story.take(now, beat).written
    assert [(member, type(incident)) for member, incident in written] == [(LEARNER, SlowHost), (LEARNER, KeepsUp)]
    paces = [incident.pace for _, incident in written if isinstance(incident, SlowHost | KeepsUp)]
    assert paces[0].own_ns > SLOW_RATIO * paces[0].usual_ns
    assert paces[1].own_ns < SLOW_RATIO * paces[1].usual_ns


def test_what_is_wrong_in_the_membership_core_is_found() -> None:
    story = Story()
    story.hello(1, LEARNER)
    story.liveness._core._newest.clear()
    with pytest.raises(InvariantError, match="membership: learner/0#1 is live"):
        story.liveness.check()
