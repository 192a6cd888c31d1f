"""When a host that was killed worked again, by its absences."""

from __future__ import annotations

from isthmus.programs.engine.results.absences import Absence
from isthmus.programs.wings.chaos.chaos_trial import back_from_the_dead
from isthmus.runtime.supervision.incidents import Ended, Unseen


def away(begun: float, ended: float | None, host: str = "evaluator/0") -> Absence:
    return Absence(host, 1, "gone", begun, Ended(Unseen()), ended)


def test_a_kill_of_a_life_that_had_not_worked_yet_is_over_when_the_absence_is() -> None:
    absences = [away(10.0, 30.0), away(80.0, 95.0)]
    # It was restarted at 10.1, and is killed again at 20.
    assert [back_from_the_dead(absences, "evaluator/0", at) for at in (10.0, 20.0, 80.0)] == [30.0, 30.0, 95.0]


def test_an_absence_that_is_not_over_and_those_of_others_are_no_return() -> None:
    absences = [away(5.0, 6.0), away(10.0, None), away(12.0, 13.0, "recorder/0")]
    assert back_from_the_dead(absences, "evaluator/0", 10.0) is None
    assert back_from_the_dead(absences, "syncer/0", 10.0) is None
