"""Who was away, from when to when and why: facts of a daemon, folded and put into words."""

from __future__ import annotations

import json

import pytest

from isthmus.programs.engine.results.absences import (
    Absence,
    Absences,
    Fact,
    RunCut,
    Waiting,
    Works,
    away,
    back,
    cause,
    cost,
    daemons,
    fact_of,
    facts_in,
    has_gone_on,
    remark,
    with_cuts,
)
from isthmus.runtime.cores.membership_messages import (
    Excused,
    HeardAgain,
    KeepsUp,
    LongExcuse,
    Pace,
    Refused,
    SlowHost,
    Stall,
    Suspected,
)
from isthmus.runtime.supervision.incidents import (
    Adopted,
    BodyRaised,
    Condemned,
    Delayed,
    Departed,
    Ended,
    Exited,
    GivenUp,
    HomeSetAside,
    HomeTaken,
    Incident,
    Joined,
    LedgerRemoved,
    MachineLost,
    MachineTaken,
    NumbersLost,
    Raised,
    ReportRefused,
    Restarted,
    SharesBounded,
    SharesUnbounded,
    Superseded,
    Unseen,
    WentOn,
)
from tests.programs.engine.results.event_lines import KILLED, line, silent

SECOND = 1_000_000_000
SILENT = silent(1.84)
FREE, ROUNDS, RING = Waiting("go on", False), Waiting("wait for rounds", True), Waiting("wait", False)
HEARD, WORKS, RESTARTED = HeardAgain(3 * SECOND), Works(), Restarted()
SIGNALLED = "was killed by signal SIGKILL"


def fold(*facts: tuple[float, str, int, Incident | Works]) -> list[Absence]:
    return Absences(Fact(*fact) for fact in facts).all


def test_a_host_is_away_from_its_end_until_its_next_life_works() -> None:
    (absence,) = fold((10, "learner/2", 1, KILLED), (10.1, "learner/2", 2, RESTARTED), (14, "learner/2", 2, WORKS))
    assert absence == Absence("learner/2", 1, "gone", 10, KILLED, 14, 2)
    assert absence.seconds == 4
    assert away(absence, FREE) == f"learner 2 {SIGNALLED}; the others go on without it"
    assert back(absence).replace("\u202f", " ") == "learner 2 steps again after 4.00 s, as life 2"


def test_the_work_of_the_life_that_died_ends_nothing() -> None:
    (absence,) = fold((10, "learner/2", 1, KILLED), (10.2, "learner/2", 1, WORKS))
    assert (absence.ended, absence.seconds, back(absence)) == (None, None, "")


def test_lives_that_never_work_belong_to_one_absence() -> None:
    crash = Ended(Exited(1))
    (absence,) = fold(
        (10, "learner/2", 1, KILLED),
        (10, "learner/2", 2, RESTARTED),
        (12, "learner/2", 2, BodyRaised(Raised("data", "ValueError", "no such file. Make one.", "mine.py", 3))),
        (12, "learner/2", 2, crash),
        (13, "learner/2", 3, RESTARTED),
        (17, "learner/2", 3, WORKS),
    )
    assert (absence.begun, absence.ended, absence.lives_lost, absence.life_after) == (10, 17, 2, 3)
    told = "learner 2 failed: ValueError: no such file. Make one. (mine.py:3), 2 lives in a row;"
    assert away(absence, FREE).startswith(told)


def test_an_end_that_a_next_daemon_tells_again_is_one() -> None:
    """It finds a life in its ledger that had left, and was told as such."""
    left, unseen = Ended(Exited(0)), Ended(Unseen())
    (absence,) = fold((10, "learner/2", 1, left), (60, "learner/2", 1, unseen), (64, "learner/2", 2, WORKS))
    assert (absence.begun, absence.cause, absence.lives_lost, absence.life_after) == (10, left, 1, 2)


LEFT, KILLED_BY_ITS_DAEMON = Ended(Departed("", Exited(0))), Ended(Departed("", Exited(signal="SIGKILL")))


def test_hosts_that_leave_in_order_with_their_home_are_not_away_and_a_crash_before_is() -> None:
    crash, unseen = Ended(Exited(3)), Ended(Unseen())
    (absence,) = fold(
        (8, "learner/1", 1, crash),
        (10, "daemon/0", 1, HomeSetAside()),
        (11, "learner/0", 1, LEFT),
        (12, "recorder/0", 1, LEFT),
        (12, "syncer/0", 1, KILLED_BY_ITS_DAEMON),
        (60, "learner/0", 1, unseen),
        (60, "syncer/0", 1, unseen),
        (61, "syncer/0", 2, RESTARTED),
    )
    assert (absence.host, absence.cause, absence.ended) == ("learner/1", crash, None)


def test_a_learner_that_had_to_be_killed_when_it_was_to_leave_is_listed() -> None:
    facts = [(10.0, "daemon/0", 1, HomeSetAside()), (24.0, "learner/0", 1, KILLED), (24.0, "syncer/0", 1, LEFT)]
    assert [absence.host for absence in fold(*facts)] == ["learner/0"]


def test_a_silence_ends_where_its_host_leaves_in_order() -> None:
    (absence,) = fold((11.84, "learner/1", 1, SILENT), (13, "learner/1", 1, LEFT))
    assert (absence.kind, absence.ended) == ("silent", 13)


def test_a_daemon_that_left_and_is_followed_by_the_next_did_not_die() -> None:
    facts: list[tuple[float, str, int, Incident | Works]] = [
        (10, "daemon/0", 1, HomeSetAside()),
        (11, "recorder/0", 1, LEFT),
        (60, "recorder/0", 2, RESTARTED),
        (63, "learner/1", 1, Adopted()),
        (64, "learner/2", 1, Adopted()),
        (90, "recorder/0", 2, Adopted()),
    ]
    left, died = fold(*facts)
    assert [(item.begun, item.is_in_order) for item in (left, died)] == [(63, True), (90, False)]
    assert [away(item, FREE).partition(";")[0] for item in (left, died)] == [
        "the daemon had left, as a signal told it to",
        "the daemon died",
    ]
    assert daemons([left, died]) == 3


def test_of_a_machine_that_leaves_each_host_is_told_and_of_the_home_only_that_it_does() -> None:
    of_machine = remark(Fact(1, "learner/1", 1, Ended(Departed("beta", Exited(0)))))
    assert of_machine is not None
    assert (of_machine.topic, of_machine.tone) == ("machines", "odd")
    assert remark(Fact(1, "learner/1", 1, LEFT)) is None


def test_hosts_that_left_before_are_no_part_of_a_cut() -> None:
    """Learner 1, elsewhere, was the only host left, and died, too, before the next daemon looked."""
    unseen = Ended(Unseen())
    facts = [
        Fact(10, "daemon/0", 1, HomeSetAside()),
        Fact(11, "syncer/0", 1, KILLED_BY_ITS_DAEMON),
        Fact(60, "syncer/0", 1, unseen),
        Fact(60, "learner/1", 1, unseen),
    ]
    cut = with_cuts(facts, ["syncer/0", "learner/1"])[-1].what
    assert isinstance(cut, RunCut)
    assert cut.lives == (("learner/1", 1),)
    (absence,) = Absences(with_cuts(facts, ["syncer/0", "learner/1"])).all
    assert (absence.host, absence.is_cut) == ("learner/1", True)


def test_a_death_after_the_return_is_another_absence() -> None:
    facts = [(10, "syncer/0", 1, KILLED), (12, "syncer/0", 2, WORKS), (20, "syncer/0", 2, Ended(Exited(3)))]
    assert [(item.begun, item.ended, item.life) for item in fold(*facts)] == [(10, 12, 1), (20, None, 2)]


def test_a_silence_begins_with_the_last_sign_of_life() -> None:
    (absence,) = fold((11.84, "learner/1", 1, SILENT), (13, "learner/1", 1, HEARD))
    assert (absence.kind, absence.begun, absence.ended) == ("silent", pytest.approx(10.0), 13)
    assert away(absence, FREE) == "learner 1 is silent (suspect): no heartbeat for 1.84 s"
    assert back(absence).replace("\u202f", " ") == "learner 1 is heard again, after 3.00 s"
    assert cost(absence) == "nothing but the time"


def test_who_is_stopped_or_not_to_be_reached_is_called_that() -> None:
    stopped = Excused("stopped", 3_340_000_000, 7, "")
    (absence,) = fold((13.34, "learner/1", 1, stopped), (20, "learner/1", 1, HEARD))
    assert (absence.kind, absence.begun, absence.ended) == ("silent", pytest.approx(10.0), 20)
    told = "learner 1 is stopped by a signal or a debugger; "
    told += "`kill -CONT 7` lets it go on, `kill -KILL 7` has it replaced"
    assert away(absence, FREE) == told
    assert away(absence, ROUNDS) == f"{told}; the others may have to wait for it"
    unheard = Excused("unheard", 4 * SECOND, 7, "beta")
    (absence,) = fold((13, "learner/1", 1, SILENT), (14, "learner/1", 1, unheard))
    assert away(absence, FREE) == "learner 1 is unheard, because its machine beta does not answer"


def test_what_excused_a_silence_is_still_its_cause_when_it_does_so_no_more() -> None:
    stopped = Excused("stopped", 3_340_000_000, 7, "")
    (absence,) = fold((13.34, "learner/1", 1, stopped), (19, "learner/1", 1, Suspected()), (20, "learner/1", 1, HEARD))
    assert (absence.cause, absence.begun, absence.ended) == (stopped, pytest.approx(10.0), 20)
    # With the line before it lost, it is where the silence becomes known.
    (absence,) = fold((19, "learner/1", 1, Suspected()))
    assert (absence.kind, absence.begun) == ("silent", 19)
    assert away(absence, FREE) == "learner 1 is silent (suspect): nothing excuses it any more"


def test_who_was_stuck_is_said_to_have_been() -> None:
    stuck = Condemned(Stall("data", 14_548_000_000, 252.8e6, 2e9, 12.4))
    (absence,) = fold((10, "learner/1", 1, stuck), (10, "learner/1", 1, KILLED), (14, "learner/1", 2, WORKS))
    assert (absence.kind, absence.begun, absence.ended) == ("gone", 10, 14)
    assert (
        cause(absence)
        == "was stuck, without a step for 14.5 s in one firing of its node data, and was killed (run.stuck_seconds)"
    )
    assert away(absence, FREE).endswith("(run.stuck_seconds); the others go on without it")


def test_an_end_says_itself_why_it_came_where_nothing_else_did() -> None:
    verdict = LongExcuse(603 * SECOND, "stopped", 600 * SECOND)
    (absence,) = fold((10, "learner/1", 1, Ended(Exited(signal="SIGKILL"), verdict)))
    told = "was stopped for 10 min 00 s, which is as long as is allowed, and was killed by the daemon"
    assert cause(absence) == told
    (absence,) = fold((10, "evaluator/0", 1, Ended(Exited(1), error=Raised("evaluate", "OSError", "gone", "", 0))))
    assert cause(absence) == "exited with status 1: OSError: gone"


def test_hosts_go_with_a_machine_that_is_lost_and_are_not_away_with_one_that_left() -> None:
    (absence,) = fold((10, "learner/1", 1, Ended(MachineLost("beta", 20 * SECOND))))
    assert cause(absence) == "ended with its machine beta, which has not been heard of for 20.0 s"
    assert fold((10, "learner/1", 1, Ended(MachineTaken("beta", "left")))) == []


def test_a_silence_that_ends_in_death_is_one_absence() -> None:
    (absence,) = fold(
        (11.84, "learner/1", 1, SILENT),
        (29, "learner/1", 1, Condemned(silent(19).silence)),
        (29, "learner/1", 1, KILLED),
        (29, "learner/1", 2, RESTARTED),
        (29.5, "learner/1", 1, HEARD),
        (33, "learner/1", 2, WORKS),
    )
    assert (absence.kind, absence.begun, absence.ended) == ("gone", pytest.approx(10.0), 33)
    assert cause(absence) == "was silent for 19.0 s, and was killed by the daemon (run.silent_seconds)"


def test_a_silence_while_a_host_starts_is_part_of_its_absence() -> None:
    absences = fold(
        (10, "learner/2", 1, KILLED),
        (13, "learner/2", 2, SILENT),
        (14, "learner/2", 2, HEARD),
        (15, "learner/2", 2, WORKS),
    )
    assert [(item.kind, item.begun, item.ended) for item in absences] == [("gone", 10, 15)]


def test_hosts_that_are_adopted_together_tell_of_one_daemon() -> None:
    adopted = Adopted()
    absences = fold((5, "learner/0", 1, adopted), (5.1, "learner/1", 1, adopted), (90, "learner/0", 1, adopted))
    assert [(item.host, item.kind, item.begun, item.ended) for item in absences] == [
        ("daemon", "replaced", 5, 5),
        ("daemon", "replaced", 90, 90),
    ]
    assert daemons(absences) == 3
    assert away(absences[0], FREE) == "the daemon died; a new one has taken over its hosts, which went on meanwhile"
    assert (back(absences[0]), cost(absences[0])) == ("", "nothing")


def test_a_syncer_comes_back_under_an_epoch_and_says_what_it_lost() -> None:
    (absence,) = fold((10, "syncer/0", 1, KILLED), (10, "syncer/0", 2, RESTARTED), (13, "syncer/0", 2, WORKS))
    assert away(absence, FREE).endswith("learners go on stepping, and its fragments are not merged")
    assert back(absence).replace("\u202f", " ") == (
        "syncer 0 merges again after 3.00 s, under epoch 2: it has the newest fragments that hosts held, and "
        "what the recorder keeps of their momentum"
    )
    assert "momentum" in cost(absence)


@pytest.mark.parametrize(
    "odd",
    [
        Refused("ended incarnation"),
        RESTARTED,
        HEARD,
        WORKS,
        Joined("gamma"),
        SlowHost(Pace(410e6, 42e6, 3)),
        KeepsUp(Pace(45.5e6, 42e6, 1)),
        GivenUp(6, KILLED),
        Delayed("no room"),
        NumbersLost(7),
        HomeTaken("beta", 2, "alpha"),
        HomeSetAside(),
        Superseded("beta", 2, 1),
        ReportRefused("beta", "report", "`array`", "None"),
        SharesUnbounded(2),
        SharesBounded(2),
        LedgerRemoved(),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_what_is_no_absence_changes_nothing(odd: Incident | Works) -> None:
    assert fold((1.0, "learner/0", 2, odd)) == []
    gone = (1.0, "learner/0", 2, KILLED)
    (absence,) = fold(gone, (2.0, "learner/0", 2, odd))
    assert (absence.cause, absence.ended, absence.lives_lost) == (KILLED, None, 1)


def test_a_line_is_a_fact_in_seconds() -> None:
    line = {"at": 3_500_000_000, "host": "a/0", "incarnation": 1, "kind": "heard-again", "silence_ns": 7}
    assert fact_of(line, SECOND) == Fact(2.5, "a/0", 1, HeardAgain(7))


@pytest.mark.parametrize(
    "line",
    [
        {"at": None, "host": "a/0", "incarnation": 1, "kind": "restarted"},
        {"at": 1, "host": 7, "incarnation": 1, "kind": "restarted"},
        {"at": 1, "host": "a", "incarnation": 1, "kind": "restarted"},
        {"at": 1, "host": "a/0", "incarnation": 1, "kind": "reborn"},
        {"at": 1, "host": "a/0", "incarnation": 1, "kind": "joined"},
        {"at": 1, "host": "a/0", "incarnation": 1, "what": "restarted"},
        {},
    ],
)
def test_a_line_that_is_no_incident_is_refused(line: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        fact_of(line, SECOND)


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
    assert away(died, waiting) == f"learner 2 {SIGNALLED}{gone}"
    assert away(quiet, waiting).endswith(f"no heartbeat for 1.84 s{silent}")


def test_whether_learners_wait_for_a_syncer_is_said_as_the_graph_has_it() -> None:
    (died,) = fold((10, "syncer/0", 1, KILLED))
    (quiet,) = fold((11.84, "syncer/0", 1, SILENT))
    assert away(died, ROUNDS) == f"syncer 0 {SIGNALLED}; learners wait for it"
    assert away(quiet, ROUNDS).endswith("s; learners wait for it")
    assert away(quiet, FREE).endswith("no heartbeat for 1.84 s")
    assert away(died, None) == f"syncer 0 {SIGNALLED}"


def test_lines_from_before_a_run_went_on_have_the_times_that_they_had() -> None:
    """It was submitted at 100 s of the machine's clock, and went on for the second time after a reboot."""
    rows = [
        line(105 * SECOND, "a/0", 1, RESTARTED),
        line(900 * SECOND, "daemon/0", 1, WentOn(780 * SECOND, 100 * SECOND, 880 * SECOND)),
        line(905 * SECOND, "a/0", 2, RESTARTED),
        line(7 * SECOND, "daemon/0", 1, WentOn(0, 880 * SECOND, -33 * SECOND)),
        line(12 * SECOND, "a/0", 3, RESTARTED),
    ]
    data = "".join(f"{json.dumps(row)}\n" for row in [*rows, {}]).encode()
    facts = facts_in(data, -33 * SECOND)
    assert [None if fact is None else fact.at for fact in facts] == [5, 20, 25, 40, 45, None]
    later = facts_in(data, -33 * SECOND, 3 * SECOND)
    assert [fact.at for fact in later if fact is not None] == [2, 17, 22, 37, 42]
    assert [has_gone_on(text) for text in data.splitlines()] == [False, True, False, True, False, False]
    assert [remark(fact) is not None for fact in facts if fact is not None] == [False, True, False, False, False]


def test_a_run_that_had_ended_in_order_was_not_cut_off() -> None:
    """Its next daemon has not seen the ends of its hosts: nobody has."""
    unseen = Ended(Unseen())
    for was_over, kinds in ((True, [WentOn, Restarted, Restarted]), (False, [WentOn, RunCut, Restarted, Restarted])):
        went_on = WentOn(SECOND, 0, SECOND, was_over)
        found = with_cuts(
            [
                Fact(9.0, "daemon/0", 1, went_on),
                Fact(9.1, "learner/0", 1, unseen),
                Fact(9.1, "syncer/0", 1, unseen),
                Fact(9.2, "learner/0", 2, RESTARTED),
                Fact(9.2, "syncer/0", 2, RESTARTED),
            ],
            ["learner/0", "syncer/0"],
        )
        assert [type(each.what) for each in found] == kinds


def test_a_resume_that_failed_has_moved_no_time() -> None:
    failed = line(800 * SECOND, "daemon/0", 1, WentOn(680 * SECOND, 100 * SECOND, 780 * SECOND))
    rows = [
        line(105 * SECOND, "a/0", 1, RESTARTED),
        failed,
        line(900 * SECOND, "daemon/0", 1, WentOn(780 * SECOND, 100 * SECOND, 880 * SECOND)),
        line(905 * SECOND, "a/0", 2, RESTARTED),
    ]
    facts = facts_in("".join(f"{json.dumps(row)}\n" for row in rows).encode(), 880 * SECOND)
    assert [fact.at for fact in facts if fact is not None and fact.host == "a/0"] == [5, 25]
    assert [remark(fact) is not None for fact in facts if fact is not None] == [False, False, True, False]
    alone = facts_in(f"{json.dumps(rows[0])}\n{json.dumps(failed)}\n".encode(), 100 * SECOND)
    assert [fact.at for fact in alone if fact is not None and fact.host == "a/0"] == [5]
