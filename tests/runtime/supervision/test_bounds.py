"""Each bound on a user's code is named before it is reached, by its setting, and a longer one holds for longer."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.clock import seconds
from isthmus.runtime.cores.membership_messages import Silence, Stall
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision import bounds
from isthmus.runtime.supervision.bounds import Bound
from isthmus.runtime.supervision.home_events import HomeCommand, Places, RunRoles, SetAside, UserTerms
from isthmus.runtime.supervision.incidents import Condemned, Ended, Exited, Lingered, Lingers
from isthmus.runtime.supervision.messages import Heartbeat, Over, Seen
from tests.runtime.supervision.supervision_stories import KILLED, HomeStory, gone, life

HERE = Places(home="alpha")


def home(**terms: Any) -> HomeStory:
    """A home of two learners of a task."""
    roles = RunRoles(roles={"learner": 2, "recorder": 1}, least={"learner": 1}, user=UserTerms(**terms))
    return HomeStory(roles, HERE)


def says(name: str, beats: int, phase: Any = "stepping", **more: Any) -> Seen:
    return Seen(life(name), 4711, beats, heartbeat=Heartbeat(phase, **more))


def stepped(story: HomeStory, until: int = 40) -> int:
    """Both learners step four times a second; the number of their last heartbeats."""
    for number in range(1, until + 1):
        told = [says(f"learner/{slot}", number, steps=number, busy=seconds(number / 4)) for slot in (0, 1)]
        story.hears(number / 4, "alpha", *told)
    return until


def told(commands: list[HomeCommand], kind: type, name: str = "learner/0") -> list[Any]:
    return [
        each.incident  # type: ignore[union-attr]
        for each in commands
        if isinstance(getattr(each, "incident", None), kind) and str(each.member.replica) == name  # type: ignore[union-attr]
    ]


def silent(story: HomeStory, lasts: float) -> list[tuple[float, HomeCommand]]:
    """learner/0 is silent from 10 s on for so long, and the other goes on; each command with its instant."""
    last, commands = stepped(story), list[tuple[float, HomeCommand]]()
    for beat in range(1, int(lasts * 4)):
        at = 10 + beat / 4
        number = last + beat
        other = says("learner/1", number, steps=number, busy=seconds(number / 4))
        came = story.hears(at, "alpha", says("learner/0", last, steps=last, busy=seconds(10)), other)
        came += story.fire(at)
        came += story.beat(at) if beat % 2 == 0 else []
        commands += [(at, each) for each in came]
    return commands


def stalled(story: HomeStory, lasts: float) -> list[tuple[float, HomeCommand]]:
    """learner/0 makes no step from 10 s on for so long, in one firing."""
    last, commands = stepped(story), list[tuple[float, HomeCommand]]()
    for beat in range(1, int(lasts * 4)):
        at, number = 10 + beat / 4, last + beat
        stuck = says("learner/0", number, steps=last, busy=seconds(at), firing=seconds(beat / 4), node="inner-step")
        other = says("learner/1", number, steps=number, busy=seconds(at))
        came = story.hears(at, "alpha", stuck, other)
        came += story.beat(at) if beat % 2 == 0 else []
        commands += [(at, each) for each in came]
    return commands


def verdict_and_warning(commands: list[tuple[float, HomeCommand]], kind: type) -> tuple[Any, Any, float, float]:
    """The only verdict and the only warning, and after how many seconds they came."""
    (warned,) = [(at, each) for at, command in commands for each in told([command], Lingers)]
    (ended,) = [(at, each.verdict) for at, command in commands for each in told([command], Condemned)]
    assert isinstance(ended[1], kind)
    return ended[1], warned[1], ended[0] - 10, warned[0] - 10


@pytest.mark.parametrize(("limit", "told_at"), [(10, 5), (60, 30), (120, 60), (600, 540), (0, 0)])
def test_a_bound_is_named_a_minute_before_or_at_half_of_a_shorter_one(limit: float, told_at: float) -> None:
    assert Bound("run.x", seconds(limit)).told_at == (seconds(told_at) if limit else 0)


@pytest.mark.parametrize(("setting", "least"), [(20, 7), (120, 40)])
def test_a_silent_host_is_named_before_its_end_and_may_be_silent_for_longer_by_its_setting(
    setting: float, least: float
) -> None:
    _, warned, ended_at, warned_at = verdict_and_warning(silent(home(silent=seconds(setting)), 2 * setting), Silence)
    assert warned.setting == bounds.SILENT
    assert least <= ended_at <= setting
    assert ended_at / 2 - 1 <= warned_at <= max(ended_at / 2 + 1, ended_at - 60)
    assert warned.left_ns / 1e9 == pytest.approx(ended_at - warned_at, abs=1)


@pytest.mark.parametrize("setting", [14, 140])
def test_a_learner_without_a_step_is_named_before_its_end_by_the_setting(setting: float) -> None:
    _, warned, ended_at, warned_at = verdict_and_warning(stalled(home(stuck=seconds(setting)), 2 * setting), Stall)
    assert warned.setting == bounds.STUCK
    assert setting <= ended_at <= 1.1 * setting + 1
    assert warned_at == pytest.approx(max(ended_at / 2, ended_at - 60), abs=1)


def test_one_that_steps_again_is_named_again() -> None:
    story = home()
    assert len(told([each for _, each in stalled(story, 10)], Lingers)) == 1
    last = 40
    for beat in range(1, 30):
        at = 20 + beat / 4
        story.hears(at, "alpha", says("learner/0", 900 + beat, steps=last + beat, busy=seconds(at)))
        story.beat(at)
    assert not story.core.lives[Replica("learner", 0)].warned


def test_a_learner_that_goes_on_behind_a_notice_is_named_and_its_end_has_the_reason() -> None:
    story = home()
    last = stepped(story)
    story.does(10, SetAside(seconds(14)))
    commands = []
    for beat in range(1, 28):
        at = 10 + beat / 2
        others = says("learner/1", last + beat, "gone")
        story.hears(at, "alpha", says("learner/0", last + beat, "leaving", steps=last, busy=seconds(at)), others)
        commands += story.beat(at)
    assert told(commands, Lingers) == [Lingers(bounds.GRACE, seconds(7), seconds(7))]
    assert told(commands, Lingers, "learner/1") == []
    commands = story.hears(23.6, "alpha", gone("learner/0", KILLED))  # As a station that counts beats kills it.
    (ended,) = told(commands, Ended)
    assert isinstance(ended.verdict, Lingered)
    assert (ended.verdict.setting, ended.verdict.bound_ns) == (bounds.GRACE, seconds(14))


def test_a_learner_that_leaves_in_time_has_no_such_reason() -> None:
    story = home()
    stepped(story)
    story.does(10, SetAside(seconds(14)))
    (ended,) = told(story.hears(12, "alpha", gone("learner/0", Exited(0))), Ended)
    assert ended.verdict is None


def test_nothing_is_named_of_a_run_that_is_over() -> None:
    story = home()
    last = stepped(story)
    recorder = Seen(life("recorder/0"), 4713, 500, heartbeat=Heartbeat("final"), over=Over())
    story.hears(10, "alpha", recorder)
    commands = []
    for beat in range(1, 18):
        story.hears(10 + beat / 2, "alpha", says("learner/0", last, steps=last))
        commands += story.beat(10 + beat / 2)
    assert told(commands, Lingers) == []
