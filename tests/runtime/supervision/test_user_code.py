"""The time of a host that is the user's: it is not stuck, has bounds that are named, and runs wait for scripts."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import HomeCommand, Places, RunRoles, ScriptSpoke, StopAsked, UserTerms
from isthmus.runtime.supervision.incidents import (
    CodePlace,
    Condemned,
    Ended,
    Exited,
    Lingered,
    Lingers,
    NeverStepped,
    NotEnded,
    ScriptGoesOn,
    ScriptUnfinished,
    Unseen,
    WasAway,
)
from isthmus.runtime.supervision.messages import Heartbeat, Over, Seen
from tests.runtime.supervision.supervision_stories import BOOM, KILLED, HomeStory, gone, life, written

HOME: Final = Places(home="alpha")
IDLE, AWAY = "run.loop_idle_seconds", "run.loop_away_max"
FIRST: Final = Replica("learner", 0)


def script(*, idle: float = 0, away: float = 0, recorder: int = 0, **more: Any) -> HomeStory:
    """A home of two learners that are processes of a script."""
    terms = UserTerms(seconds(idle), seconds(away), ("learner",))
    roles = {"learner": 2, **({"recorder": 1} if recorder else {})}
    return HomeStory(RunRoles(roles=roles, least={"learner": 1}, user=terms, **more), HOME)


def says(name: str, beats: int, phase: Any = "stepping", *, idle: float = 0, **more: Any) -> Seen:
    """What a station says of a learner: in this phase, and for how long the user's code has done nothing."""
    return Seen(life(name), 4711, beats, heartbeat=Heartbeat(phase, **more), idle=seconds(idle))


def verdicts(commands: list[HomeCommand]) -> list[Any]:
    """Why lives are killed."""
    told = [getattr(each, "incident", None) for each in commands]
    return [each.verdict for each in told if isinstance(each, Condemned)]


def incidents(commands: list[HomeCommand], *kinds: type) -> list[Any]:
    told = [getattr(each, "incident", None) for each in commands]
    return [each for each in told if isinstance(each, kinds)]


def stepped(story: HomeStory, name: str = "learner/0", until: int = 40) -> int:
    """A learner steps four times a second; the number of its last heartbeat."""
    for number in range(1, until + 1):
        story.hears(number / 4, "alpha", says(name, number, steps=number, busy=seconds(number / 4)))
    return until


def away(story: HomeStory, begin: float, lasts: float, name: str = "learner/0", **more: Any) -> list[HomeCommand]:
    """A learner says for so long that it is away; all commands."""
    commands: list[HomeCommand] = []
    for beat in range(1, int(lasts * 2) + 1):
        at = begin + beat / 2
        commands += story.hears(at, "alpha", says(name, 1000 + beat, "away", outside=seconds(beat / 2), **more))
        commands += story.beat(at)
    return commands


@pytest.mark.slow
def test_one_that_is_away_is_not_stuck_however_long_that_lasts_and_says_so() -> None:
    story = script()
    stepped(story)
    assert verdicts(away(story, 10, 3600, steps=40)) == []
    assert (story.core.state(FIRST), story.core.phase(FIRST)) == ("away", "away")
    assert story.core.kept_by_user(FIRST) == seconds(3600)


def test_what_an_absence_has_cost_is_written_once_it_is_known() -> None:
    story = script()
    stepped(story)
    away(story, 10, 40, steps=40)
    story.hears(50.25, "alpha", says("learner/0", 2000, steps=41))
    told = story.beat(50.5)
    story.hears(51, "alpha", says("learner/0", 2001, steps=42, overwritten=512))
    told += [*story.beat(51.5), *story.beat(52.5), *story.beat(54)]
    assert incidents(told, WasAway) == [WasAway(seconds(40.25), 512)]
    assert story.core.state(FIRST) == "alive"


def test_an_absence_that_begins_and_ends_between_two_beats_is_written_too() -> None:
    story = script()
    stepped(story)
    story.beat(10)
    story.hears(13.1, "alpha", says("learner/0", 1000, "away", outside=seconds(3.1), steps=40))
    story.hears(13.35, "alpha", says("learner/0", 1001, steps=41))
    told = [command for at in (13.4, 13.9, 15.4, 15.9) for command in story.beat(at)]
    assert incidents(told, WasAway) == [WasAway(seconds(3.35), 0)]


def test_a_bound_is_named_a_minute_before_and_then_holds() -> None:
    story = script(away=600)
    stepped(story)
    told = away(story, 10, 539, steps=40)
    assert incidents(told, Lingers) == []
    told = [command for beat in range(4) for command in away(story, 549 + beat / 2, 0.5, steps=40)]
    assert [each.setting for each in incidents(told, Lingers)] == [AWAY]
    told = away(story, 540, 75, steps=40)
    assert [(each.setting, each.bound_ns) for each in verdicts(told)] == [(AWAY, seconds(600))]


@pytest.mark.parametrize(("bound", "told_at"), [(4, 2), (60, 30), (90, 45), (120, 60), (1800, 1740)])
def test_what_does_nothing_is_named_before_its_bound_and_ended_by_it(bound: float, told_at: float) -> None:
    story = script(idle=bound)
    stepped(story)
    named, killed = None, None
    for beat in range(1, int(bound * 2) + 20):
        at = 10 + beat / 2
        idle = max(0.0, beat / 2 - 3)
        story.hears(at, "alpha", says("learner/0", 1000 + beat, "away", outside=seconds(beat / 2), idle=idle, steps=40))
        commands = story.beat(at)
        named = idle if incidents(commands, Lingers) else named
        killed = idle if verdicts(commands) else killed
    assert (named, killed) == (told_at, bound)


def test_one_that_works_is_never_idle_and_nor_is_one_that_steps() -> None:
    story = script(idle=10)
    stepped(story)
    assert verdicts(away(story, 10, 900, steps=40)) == []
    steps = [story.hears(910 + n / 4, "alpha", says("learner/0", 3000 + n, steps=50 + n, idle=99)) for n in range(9)]
    assert verdicts([*(each for row in steps for each in row), *story.beat(913)]) == []


def test_a_script_may_do_what_it_likes_before_its_with_and_a_task_has_a_minute() -> None:
    story = script(recorder=1)
    story.hears(1, "alpha", Seen(life("learner/0"), 4711), Seen(life("recorder/0"), 4712))
    told = [command for beat in range(4, 400) for command in story.beat(beat / 2)]
    assert [getattr(each, "kind", type(each).__name__) for each in verdicts(told)] == ["NoFirstHeartbeat"]
    assert [each.waited_ns for each in incidents(told, NeverStepped)] == [seconds(30)]


def test_one_that_does_nothing_before_its_with_is_ended_by_the_bound() -> None:
    story = script(idle=60)
    told = []
    for second in range(1, 100):
        story.hears(second, "alpha", Seen(life("learner/0"), 4711, idle=seconds(second)))
        told += story.beat(second)
    assert [(each.setting, each.lasted_ns) for each in verdicts(told)] == [(IDLE, seconds(60))]


def test_a_silent_one_that_was_away_is_excused_and_a_silent_one_in_our_code_is_not() -> None:
    for outside, idle, state in ((1, 9, "away"), (0, 0, "away"), (0, 9, "gone")):
        story = script()
        last = stepped(story)
        held = says("learner/0", last, steps=last, outside=seconds(outside), idle=idle)
        story.hears(10, "alpha", held)
        for beat in range(100):
            at = 10 + beat / 2
            story.hears(at, "alpha", held)  # The same heartbeat: none has come since.
            story.beat(at)
            story.fire(at)
        found = story.core.state(FIRST)
        assert (found == state) or (state == "gone" and found not in ("away", "alive")), (outside, idle, found)


# -- the end -----------------------------------------------------------------------------------------------------------


def over(story: HomeStory, at: float, *phases: Any) -> list[HomeCommand]:
    """The recorder says that the run is over; the learners are in these phases."""
    learners = [says(f"learner/{slot}", 500, phase, steps=40) for slot, phase in enumerate(phases)]
    recorder = Seen(life("recorder/0"), 4713, 500, heartbeat=Heartbeat("final"), over=Over())
    return story.hears(at, "alpha", *learners, recorder)


def ending(**terms: Any) -> HomeStory:
    """A run that is over; the script of learner/0 is behind its `with`, that of learner/1 has come to its end."""
    story = script(recorder=1, **terms)
    stepped(story)
    stepped(story, "learner/1")
    story.hears(10, "alpha", Seen(life("recorder/0"), 4713, 1, heartbeat=Heartbeat("serving")))
    over(story, 11, "gone", "gone")
    story.hears(12, "alpha", gone("learner/1", Exited(0)), gone("recorder/0", Exited(0)))
    return story


def test_a_run_waits_for_the_end_of_its_scripts_however_long_they_work() -> None:
    story = ending(idle=60)
    for second in range(13, 1000):
        story.hears(second, "alpha", says("learner/0", 500, "gone", steps=40))
        assert verdicts([*story.beat(second), *story.fire(second)]) == []
    assert (story.core.outcome, story.core.is_finished) == ("done", False)
    assert (story.core.awaited, story.core.state(FIRST)) == ([FIRST], "awaited")
    story.hears(1001, "alpha", gone("learner/0", Exited(0)))
    assert (story.core.is_finished, story.core.unfinished) == (True, {})


def test_one_that_does_nothing_behind_its_with_is_ended_and_unfinished() -> None:
    story = ending(idle=60)
    told = []
    for second in range(13, 90):
        story.hears(second, "alpha", says("learner/0", 500, "gone", idle=second - 13, steps=40))
        told += story.beat(second)
    assert [(each.setting, each.bound_ns) for each in verdicts(told)] == [(IDLE, seconds(60))]
    killed = msgspec.structs.replace(KILLED, places=(CodePlace("train.py", 9, "save"),))
    told = story.hears(91, "alpha", gone("learner/0", killed))
    (why,) = incidents(told, ScriptUnfinished)
    assert (why.last.end, type(why.last.verdict)) == (killed, Lingered)
    assert story.core.unfinished == {FIRST: why.last}
    assert (story.core.outcome, story.core.is_finished) == ("done", True)


def test_one_that_leaves_with_another_status_behind_its_with_is_unfinished() -> None:
    story = ending()
    story.hears(20, "alpha", gone("learner/0", Exited(3)))
    assert story.core.unfinished == {FIRST: Ended(Exited(3))}
    assert story.core.is_finished


def test_one_that_dies_before_it_has_the_last_model_is_begun_again_in_a_run_that_is_over() -> None:
    story = script(recorder=1)
    stepped(story)
    stepped(story, "learner/1")
    story.hears(10, "alpha", Seen(life("recorder/0"), 4713, 1, heartbeat=Heartbeat("serving")))
    over(story, 11, "stepping", "gone")
    story.hears(12, "alpha", gone("learner/0"), gone("learner/1", Exited(0)), gone("recorder/0", Exited(0)))
    assert not story.core.is_finished
    assert life("learner/0#2") in story.noted
    story.hears(13, "alpha", says("learner/0#2", 1, "gone"))
    story.hears(14, "alpha", gone("learner/0#2", Exited(0)))
    assert (story.core.is_finished, story.core.unfinished) == (True, {})


@pytest.mark.parametrize("end", [KILLED, Unseen()])
def test_one_of_another_machine_that_dies_before_it_has_the_last_model_is_unfinished(end: Any) -> None:
    """No life there would get the model, which is at home."""
    terms = UserTerms(seconds(0), seconds(0), ("learner",))
    roles = RunRoles(roles={"learner": 2, "recorder": 1}, least={"learner": 1}, user=terms)
    story = HomeStory(roles, Places(home="alpha", machines={FIRST: "beta"}))
    for number in range(1, 41):
        story.hears(number / 4, "beta", says("learner/0", number, steps=number, busy=seconds(number / 4)))
    stepped(story, "learner/1")
    recorder = Seen(life("recorder/0"), 4713, 500, heartbeat=Heartbeat("final"), over=Over())
    story.hears(11, "alpha", says("learner/1", 500, "gone", steps=40), recorder)
    story.hears(12, "alpha", gone("learner/1", Exited(0)), gone("recorder/0", Exited(0)))
    assert story.core.awaited == [FIRST]
    (why,) = incidents(story.hears(13, "beta", gone("learner/0", end)), ScriptUnfinished)
    assert story.core.unfinished == {FIRST: why.last}
    assert why.last.end == end
    assert life("learner/0#2") not in story.noted
    assert story.core.outcome == "done"


def test_one_that_raises_as_the_run_ends_is_begun_again_and_given_up_in_the_end() -> None:
    story = script(recorder=1)
    stepped(story)
    stepped(story, "learner/1")
    story.hears(10, "alpha", Seen(life("recorder/0"), 4713, 1, heartbeat=Heartbeat("serving")))
    over(story, 11, "stepping", "gone")
    story.hears(12, "alpha", gone("learner/1", Exited(0)), gone("recorder/0", Exited(0)))
    at = 13.0
    for number in range(1, 9):
        name = f"learner/0#{number}"
        story.hears(at, "alpha", Seen(life(name), 4711, 1, error=BOOM, heartbeat=Heartbeat("gone")))
        story.hears(at + 1, "alpha", gone(name, Exited(1), BOOM))
        at += 20
        story.fire(at)
        if story.core.is_finished:
            break
    assert story.core.is_finished
    assert story.core.unfinished == {FIRST: Ended(Exited(1), None, BOOM)}


def test_a_host_that_could_leave_and_does_not_is_ended() -> None:
    story = script(recorder=1, exit_seconds=5.0)
    stepped(story)
    stepped(story, "learner/1")
    story.hears(10, "alpha", Seen(life("recorder/0"), 4713, 1, heartbeat=Heartbeat("serving")))
    over(story, 11, "final", "gone")
    told = []
    for second in range(12, 30):
        story.hears(second, "alpha", says("learner/0", 500 + second, "final", steps=40))
        told += story.beat(second)
    assert verdicts(told) == [NotEnded(seconds(5))]


def test_one_that_is_away_as_its_run_ends_is_waited_for() -> None:
    story = script(recorder=1, exit_seconds=5.0)
    stepped(story)
    stepped(story, "learner/1")
    story.hears(10, "alpha", Seen(life("recorder/0"), 4713, 1, heartbeat=Heartbeat("serving")))
    over(story, 11, "away", "gone")
    told = away(story, 12, 300, steps=40)
    told += story.fire(300)
    assert verdicts(told) == []
    assert not [each for each in told if "learner/0!" in str(each)]


def test_a_stop_ends_the_scripts_that_are_awaited_and_leaves_none_unfinished() -> None:
    story = ending()
    commands = story.at(20, StopAsked())
    assert story.orders("learner/0!") in commands or "is_condemned=True" in str(commands)
    story.hears(21, "alpha", gone("learner/0"))
    assert (story.core.outcome, story.core.is_finished, story.core.unfinished) == ("done", True, {})
    assert FIRST in story.core.dismissed, "it can be started again"


def test_the_end_of_one_that_is_killed_while_it_is_away_says_for_how_long_it_was() -> None:
    story = script()
    stepped(story)
    away(story, 10, 40, steps=40)
    told = story.hears(50.25, "alpha", gone("learner/0"))
    assert [each.away_ns for each in incidents(told, Ended)] == [seconds(40.25)]
    stepping = script()
    stepped(stepping)
    assert [each.away_ns for each in incidents(stepping.hears(10.25, "alpha", gone("learner/0")), Ended)] == [0]


def test_a_script_that_goes_on_stepping_is_told() -> None:
    story = ending()
    told = story.at(20, ScriptSpoke(life("learner/0")))
    assert told == [written("learner/0", ScriptGoesOn())]
    assert story.core.reason(FIRST) == ScriptGoesOn()


@pytest.mark.parametrize("end", [Unseen(), Exited()])
def test_one_of_which_nobody_knows_how_it_ended_is_begun_again(end: Any) -> None:
    story = ending()
    story.hears(20, "alpha", gone("learner/0", end))
    assert story.noted[-1] == life("learner/0#2")
    story.hears(22, "alpha", gone("learner/0#2", Exited(0)))
    assert (story.core.is_finished, story.core.unfinished) == (True, {})


def test_a_learner_that_is_a_task_is_not_awaited() -> None:
    terms = UserTerms(idle=seconds(60))
    story = HomeStory(RunRoles(roles={"learner": 1, "recorder": 1}, user=terms), HOME)
    stepped(story)
    story.hears(10, "alpha", Seen(life("recorder/0"), 4713, 1, heartbeat=Heartbeat("serving")))
    over(story, 11, "final")
    told = story.fire(22)
    assert "learner/0!" in str(told) or "is_condemned=True" in str(told)
    assert story.core.awaited == []


def test_a_task_that_is_away_in_its_batches_has_the_same_bounds_and_begins_again() -> None:
    terms = UserTerms(idle=seconds(60))
    story = HomeStory(RunRoles(roles={"learner": 1, "recorder": 1}, user=terms), HOME)
    stepped(story)
    told = []
    for second in range(11, 90):
        story.hears(second, "alpha", says("learner/0", second, "away", outside=seconds(second - 10), idle=second - 11))
        told += story.beat(second)
    (why,) = verdicts(told)
    assert why == Lingered(IDLE, Duration(seconds(60)), seconds(60))
    told = story.hears(91, "alpha", gone("learner/0"))
    assert incidents(told, Ended) == [Ended(KILLED, why, away_ns=seconds(81))]
    assert story.noted[-1] == life("learner/0#2")


def test_a_run_that_all_of_its_loops_leave_comes_to_its_end_and_one_of_tasks_does_not() -> None:
    for scripts, is_stopping in ((("learner",), True), ((), False)):
        story = HomeStory(RunRoles(roles={"learner": 2}, user=UserTerms(scripts=scripts)), HOME)
        stepped(story)
        stepped(story, "learner/1")
        story.hears(11, "alpha", says("learner/0", 500, "leaving", steps=40))
        story.beat(11)
        assert not story.core.is_stopping, "the other one goes on"
        story.hears(12, "alpha", says("learner/1", 500, "leaving", steps=40))
        story.beat(12)
        assert story.core.is_stopping == is_stopping
