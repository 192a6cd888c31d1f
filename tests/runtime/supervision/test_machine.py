"""One machine as its home knows it: the lives that are tracked there, and for how long it has said nothing."""

from __future__ import annotations

from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.fleet import LOST_BEATS, SILENT_BEATS, MachineLives
from isthmus.runtime.supervision.messages import Wanted
from tests.runtime.supervision.supervision_stories import life

ONE, TWO = Replica("learner", 0), Replica("learner", 1)


def test_a_life_is_tracked_from_when_it_is_wanted_until_its_end_is_known() -> None:
    machine = MachineLives("beta")
    machine.track(life("learner/1#2"))
    machine.track(life("learner/0"))
    assert machine.has(life("learner/1#2"))
    assert not machine.has(life("learner/1"))
    assert not machine.has(life("syncer/0"))
    assert machine.members() == [life("learner/0"), life("learner/1#2")]
    machine.forget(life("learner/0"))
    assert machine.members() == [life("learner/1#2")]


def test_what_is_to_be_killed_is_wanted_until_its_end_is_known() -> None:
    machine = MachineLives("beta")
    machine.track(life("learner/0"))
    machine.track(life("learner/1"))
    machine.condemned.add(ONE)
    assert machine.wanted() == (Wanted(life("learner/0"), is_condemned=True), Wanted(life("learner/1")))
    machine.forget(life("learner/0"))
    machine.forget(life("learner/1"))
    assert (machine.wanted(), machine.condemned) == ((), set())
    machine.track(life("learner/0#2"))
    assert machine.wanted() == (Wanted(life("learner/0#2")),)


def test_a_life_that_is_new_is_new_until_its_end() -> None:
    machine = MachineLives("beta")
    machine.track(life("learner/0"), is_new=True)
    machine.track(life("learner/1"))
    assert machine.wanted() == (Wanted(life("learner/0"), is_new=True), Wanted(life("learner/1")))
    machine.forget(life("learner/0"))
    machine.track(life("learner/0#2"))
    assert machine.wanted() == (Wanted(life("learner/0#2")), Wanted(life("learner/1")))


def test_a_machine_is_silent_then_lost_once_and_there_again_with_its_first_word() -> None:
    machine = MachineLives("beta")
    for beats in range(1, LOST_BEATS):
        assert not machine.beat()
        assert machine.is_silent == (beats >= SILENT_BEATS)
        assert machine.is_reached
    assert machine.beat()
    assert (machine.is_silent, machine.is_lost, machine.is_reached) == (True, True, False)
    assert not any(machine.beat() for _ in range(2 * LOST_BEATS))
    machine.heard()
    assert (machine.is_silent, machine.is_lost, machine.is_reached) == (False, False, True)
    assert [machine.beat() for _ in range(LOST_BEATS)] == [False] * (LOST_BEATS - 1) + [True]


def test_a_machine_that_takes_no_part_is_not_reached() -> None:
    assert not MachineLives("beta", is_away=True).is_reached
