"""Who was away, from when to when and why: facts of a daemon, folded and put into words."""

from __future__ import annotations

import pytest

from isthmus.programs.command.absence_words import away, back, cause, cost
from isthmus.programs.command.absences import WORKS, Absence, Absences, Fact, daemons, fact_of
from isthmus.programs.command.paces import pace
from isthmus.programs.command.waiting import Waiting

KILLED = "killed by signal SIGKILL"
SILENT = "no heartbeat for 1840.0 ms: 295.8 ms +- 500.0 ms are usual, phi is 3.0"
FREE, ROUNDS, RING = Waiting("go on", False), Waiting("wait for rounds", True), Waiting("wait", False)
HEARD = "heard again after 3000.0 ms"


def fold(*facts: tuple[float, str, int, str]) -> list[Absence]:
    return Absences(Fact(*fact) for fact in facts).all


def test_a_host_is_away_from_its_end_until_its_next_life_works() -> None:
    (absence,) = fold((10, "learner/2", 1, KILLED), (10.1, "learner/2", 2, "restarted"), (14, "learner/2", 2, WORKS))
    assert absence == Absence("learner/2", 1, "gone", 10, KILLED, 10.1, 14, 2)
    assert absence.seconds == 4
    assert away(absence, FREE) == "learner 2 was killed by signal SIGKILL; the others go on without it"
    assert back(absence).replace("\u202f", " ") == "learner 2 steps again after 4.00 s, as life 2"


def test_the_work_of_the_life_that_died_ends_nothing() -> None:
    (absence,) = fold((10, "learner/2", 1, KILLED), (10.2, "learner/2", 1, WORKS))
    assert (absence.ended, absence.seconds, back(absence)) == (None, None, "")


def test_lives_that_never_work_belong_to_one_absence() -> None:
    crash = "exited with status 1"
    (absence,) = fold(
        (10, "learner/2", 1, KILLED),
        (10, "learner/2", 2, "restarted"),
        (12, "learner/2", 2, "failed: ValueError: no such file. Make one."),
        (12, "learner/2", 2, crash),
        (13, "learner/2", 3, "restarted"),
        (17, "learner/2", 3, WORKS),
    )
    assert (absence.begun, absence.ended, absence.lives_lost, absence.life_after) == (10, 17, 2, 3)
    assert away(absence, FREE).startswith("learner 2 failed: ValueError: no such file, 2 lives in a row;")


def test_a_death_after_the_return_is_another_absence() -> None:
    facts = [(10, "syncer/0", 1, KILLED), (12, "syncer/0", 2, WORKS), (20, "syncer/0", 2, "exited with status 3")]
    assert [(item.begun, item.ended, item.life) for item in fold(*facts)] == [(10, 12, 1), (20, None, 2)]


def test_a_silence_begins_with_the_last_sign_of_life() -> None:
    (absence,) = fold((11.84, "learner/1", 1, SILENT), (13, "learner/1", 1, HEARD))
    assert (absence.kind, absence.begun, absence.ended) == ("silent", pytest.approx(10.0), 13)
    assert away(absence, FREE).replace("\u202f", " ") == "learner 1 is silent (suspect): no heartbeat for 1.84 s"
    assert back(absence).replace("\u202f", " ") == "learner 1 is heard again, after 3.00 s"
    assert cost(absence) == "nothing but the time"


def test_who_is_stopped_or_not_to_be_reached_is_called_that() -> None:
    stopped = "no heartbeat for 3340.0 ms: stopped by a signal or a debugger; `kill -CONT 7` lets it go on"
    (absence,) = fold((13.34, "learner/1", 1, stopped), (20, "learner/1", 1, HEARD))
    assert (absence.kind, absence.begun, absence.ended) == ("silent", pytest.approx(10.0), 20)
    told = "learner 1 is stopped by a signal or a debugger; `kill -CONT 7` lets it go on"
    assert away(absence, FREE) == told
    assert away(absence, ROUNDS) == f"{told}; the others may have to wait for it"
    unheard = "no heartbeat for 4000.0 ms: unheard, because its machine beta does not answer"
    (absence,) = fold((13, "learner/1", 1, SILENT), (14, "learner/1", 1, unheard))
    assert away(absence, FREE) == "learner 1 is unheard, because its machine beta does not answer"


def test_who_was_stuck_is_said_to_have_been() -> None:
    usual = "252.8 ms +- 2000.0 ms are usual, phi is 12.4"
    stuck = f"killed: stuck: no step for 14548.0 ms, in one firing of node 'data': {usual}"
    (absence,) = fold((10, "learner/1", 1, stuck), (10, "learner/1", 1, KILLED), (14, "learner/1", 2, WORKS))
    assert (absence.kind, absence.begun, absence.ended) == ("gone", 10, 14)
    told = "was stuck, without a step for 14.5 s in one firing of its node data, and was killed"
    assert cause(absence).replace("\u202f", " ") == told
    assert away(absence, FREE).endswith(", and was killed; the others go on without it")


def test_who_is_slow_is_not_away() -> None:
    slow = Fact(10, "learner/2", 1, "slow: 410.0 ms a step, the others 42.0 ms")
    again = Fact(20, "learner/2", 1, "keeps up again: 45.5 ms a step, the other 42.0 ms")
    assert fold(slow, again) == []
    told = "learner 2 is slow: 410 ms a step, the others 42.0 ms"
    found = [pace(slow), pace(slow, FREE), pace(slow, RING), pace(again, RING)]
    assert [item.text.replace("\u202f", " ") for item in found if item is not None] == [
        told,
        f"{told}; nobody waits for it",
        f"{told}; the others wait for it",
        "learner 2 keeps up again: 45.5 ms a step, the other 42.0 ms",
    ]
    assert [item.is_slow for item in found if item is not None] == [True, True, True, False]
    assert pace(Fact(10, "learner/2", 1, KILLED)) is None


def test_a_silence_that_ends_in_death_is_one_absence() -> None:
    (absence,) = fold(
        (11.84, "learner/1", 1, SILENT),
        (29, "learner/1", 1, "killed: no heartbeat for 19000.0 ms: 295.8 ms are usual"),
        (29, "learner/1", 1, KILLED),
        (29, "learner/1", 2, "restarted"),
        (29.5, "learner/1", 1, HEARD),
        (33, "learner/1", 2, WORKS),
    )
    assert (absence.kind, absence.begun, absence.ended) == ("gone", pytest.approx(10.0), 33)
    assert cause(absence).replace("\u202f", " ") == "was silent for 19.0 s, and was killed by the daemon"


def test_a_silence_while_a_host_starts_is_part_of_its_absence() -> None:
    absences = fold(
        (10, "learner/2", 1, KILLED),
        (13, "learner/2", 2, SILENT),
        (14, "learner/2", 2, HEARD),
        (15, "learner/2", 2, WORKS),
    )
    assert [(item.kind, item.begun, item.ended) for item in absences] == [("gone", 10, 15)]


def test_hosts_that_are_adopted_together_tell_of_one_daemon() -> None:
    adopted = "adopted by a new daemon"
    absences = fold((5, "learner/0", 1, adopted), (5.1, "learner/1", 1, adopted), (90, "learner/0", 1, adopted))
    assert [(item.host, item.kind, item.begun, item.ended) for item in absences] == [
        ("daemon", "replaced", 5, 5),
        ("daemon", "replaced", 90, 90),
    ]
    assert daemons(absences) == 3
    assert away(absences[0], FREE) == "the daemon died; a new one has taken over its hosts, which went on meanwhile"
    assert (back(absences[0]), cost(absences[0])) == ("", "nothing")


def test_a_syncer_comes_back_under_an_epoch_and_says_what_it_lost() -> None:
    (absence,) = fold((10, "syncer/0", 1, KILLED), (10, "syncer/0", 2, "restarted"), (13, "syncer/0", 2, WORKS))
    assert away(absence, FREE).endswith("learners go on stepping, and its fragments are not merged")
    assert back(absence).replace("\u202f", " ") == (
        "syncer 0 merges again after 3.00 s, under epoch 2: it has the newest fragments that learners held; "
        "its momentum was lost and is zero"
    )
    assert "momentum" in cost(absence)


def test_what_is_not_known_changes_nothing() -> None:
    odd = ("refused: incarnation 1 has ended", "restarted", HEARD, WORKS, "something new")
    assert fold(*((1.0, "learner/0", 2, what) for what in odd)) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"at": 3_500_000_000, "host": "a/0", "incarnation": 1, "what": "x"}, Fact(2.5, "a/0", 1, "x")),
        ({"at": None, "host": "a/0", "incarnation": 1, "what": "x"}, None),
        ({"at": 1, "host": 7, "incarnation": 1, "what": "x"}, None),
        ({}, None),
    ],
)
def test_a_line_is_read_or_left_out(line: dict[str, object], expected: Fact | None) -> None:
    assert fact_of(line, 1_000_000_000) == expected


@pytest.mark.parametrize(
    ("waiting", "gone", "silent"),
    [
        (FREE, "; the others go on without it", ""),
        (ROUNDS, "; the others no longer wait for it", "; the others may have to wait for it"),
        (RING, "; the others wait for it", "; the others wait for it"),
        (None, "", ""),
    ],
)
def test_what_a_learner_means_to_the_others_is_said_as_the_graph_has_it(
    waiting: Waiting | None, gone: str, silent: str
) -> None:
    (died,) = fold((10, "learner/2", 1, KILLED))
    (quiet,) = fold((11.84, "learner/2", 1, SILENT))
    assert away(died, waiting) == f"learner 2 was {KILLED}{gone}"
    assert away(quiet, waiting).endswith(f"no heartbeat for 1.84\u202fs{silent}")


def test_whether_learners_wait_for_a_syncer_is_said_as_the_graph_has_it() -> None:
    (died,) = fold((10, "syncer/0", 1, KILLED))
    (quiet,) = fold((11.84, "syncer/0", 1, SILENT))
    assert away(died, ROUNDS) == f"syncer 0 was {KILLED}; learners wait for it"
    assert away(quiet, ROUNDS).endswith("s; learners wait for it")
    assert away(quiet, FREE).endswith("no heartbeat for 1.84\u202fs")
    assert away(died, None) == f"syncer 0 was {KILLED}"
