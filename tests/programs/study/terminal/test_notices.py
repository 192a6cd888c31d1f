"""Whoever watches is told of deaths and returns, each once, as they happen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.results.absences import Absence
from isthmus.programs.study.terminal.live import NoticeFeed, newest, notices_of
from isthmus.runtime.cores.membership_messages import KeepsUp, Pace, SlowHost
from isthmus.runtime.supervision.incidents import (
    Adopted,
    BodyRaised,
    Departed,
    Ended,
    Exited,
    GivenUp,
    HomeSetAside,
    Incident,
    Joined,
    MachineTaken,
    NumbersLost,
    Raised,
    Restarted,
    Starved,
    Unseen,
    WentOn,
)
from tests.programs.engine.results import event_lines
from tests.programs.engine.results.event_lines import KILLED

SECOND = 1_000_000_000
SUBMITTED = 500 * SECOND
SILENT = event_lines.silent(1.84)


class Watched:
    """A run folder whose daemon writes, and the clock of whoever watches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, 0.0
        (folder / "spec.json").write_text(json.dumps({"zero_ns": SUBMITTED}))
        self.news = NoticeFeed(folder, lambda: SUBMITTED + round(self.seconds * SECOND))

    def write(self, at: float, host: str, life: int, incident: Incident, end: str = "\n") -> None:
        line = event_lines.line(SUBMITTED + round(at * SECOND), host, life, incident)
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(line) + end)

    def told(self, seconds: float, **status: Any) -> list[str]:
        """What is new `seconds` after the submission; the first step was 5 s after it."""
        self.seconds = seconds
        new = self.news.update({"zero": 5 * SECOND, "phase": "training", **status})
        return [f"{notice.at} {notice.tone} {notice.text.split(';')[0]}".replace("\u202f", " ") for notice in new]


def host(name: str, phase: str, life: int) -> dict[str, Any]:
    return {"name": name, "role": name.partition("/")[0], "phase": phase, "incarnation": life, "state": "alive"}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_death_is_told_once_and_so_is_the_return(watched: Watched) -> None:
    assert watched.told(6) == []
    watched.write(15, "learner/2", 1, KILLED)
    watched.write(15, "learner/2", 2, Restarted())
    assert watched.told(15.5) == ["10.0 bad learner 2 was killed by signal SIGKILL"]
    assert watched.told(16, hosts=[host("learner/2", "compiling", 2)]) == []
    assert watched.told(19, hosts=[host("learner/2", "stepping", 2)]) == [
        "14.0 good learner 2 steps again after 4.00 s, as life 2"
    ]
    assert watched.told(20, hosts=[host("learner/2", "stepping", 2)]) == []
    assert len(watched.news.notices) == 2


def test_what_is_refused_of_a_loop_is_left_to_the_end_of_the_run(watched: Watched) -> None:
    for slot, is_refusal in ((0, True), (1, False)):
        error = Raised("inner-step", "ConfigError", "expected", "train.py", 7 + slot, is_refusal=is_refusal)
        watched.write(15, f"learner/{slot}", 1, BodyRaised(error))
        watched.write(15, f"learner/{slot}", 1, Ended(Exited(1), error=error))
    assert [line.split(":")[0] for line in watched.told(16)] == ["10.0 bad learner 1 failed"]


def test_a_learner_that_is_slow_is_told_of_and_that_it_keeps_up_again(watched: Watched) -> None:
    watched.write(15, "learner/2", 1, SlowHost(Pace(410e6, 42e6, 3)))
    assert watched.told(15.5) == ["10.0 odd learner 2 is slow: 410 ms a step, the others 42.0 ms"]
    watched.write(25, "learner/2", 1, KeepsUp(Pace(45e6, 42e6, 3)))
    assert watched.told(26) == ["20.0 good learner 2 keeps up again: 45.0 ms a step, the others 42.0 ms"]
    assert watched.news.absences.all == []


def test_machines_that_come_and_go_hosts_that_are_given_up_and_a_lost_ledger_are_told_of(watched: Watched) -> None:
    watched.write(15, "learner/3", 1, Joined("gamma"))
    watched.write(16, "learner/3", 1, Ended(MachineTaken("gamma", "left")))
    watched.write(17, "learner/4", 6, GivenUp(6, Ended(Exited(3))))
    watched.write(18, "daemon/0", 1, NumbersLost(1_000_001))
    assert watched.told(19) == [
        "10.0 good learner 3 joined with its machine gamma",
        "11.0 odd learner 3 left with its machine gamma",
        "12.0 bad learner 4 was given up after 6 lives",
        "13.0 odd the daemon lost its ledger, or a part of it: lives are numbered from 1000001 on",
    ]
    assert [notice.text.partition("; ")[2] for notice in watched.news.notices[1:3]] == 2 * ["the others go on"]
    assert watched.news.absences.all == []


def test_hosts_that_leave_in_order_are_no_news_and_the_daemon_after_a_home_that_left_followed_no_death(
    watched: Watched,
) -> None:
    watched.write(15, "learner/3", 1, Ended(Departed("beta", Exited(0))))
    watched.write(16, "daemon/0", 1, HomeSetAside())
    watched.write(17, "learner/0", 1, Ended(Departed("", Exited(0))))
    watched.write(17, "syncer/0", 1, Ended(Departed("", Exited(signal="SIGKILL"))))
    assert [text.partition(" ")[0] for text in watched.told(18)] == ["10.0", "11.0"]
    watched.write(40, "syncer/0", 2, Restarted())
    watched.write(41, "learner/1", 1, Adopted())
    assert watched.told(42) == ["36.0 odd the daemon had left, as a signal told it to"]
    assert [absence.host for absence in watched.news.absences.all] == ["daemon"]


def test_times_of_a_run_that_is_resumed_while_somebody_looks_go_on_from_where_they_were(watched: Watched) -> None:
    watched.write(15, "learner/2", 1, KILLED)
    assert watched.told(15.5) == ["10.0 bad learner 2 was killed by signal SIGKILL"]
    moved = SUBMITTED + 3600 * SECOND
    (watched.folder / "spec.json").write_text(json.dumps({"zero_ns": moved}))
    watched.write(3620, "daemon/0", 1, WentOn(3600 * SECOND, SUBMITTED, moved))
    watched.write(3625, "learner/1", 2, KILLED)
    assert watched.told(3626) == [
        "15.0 odd the run goes on, after 1 h 00 min in which nothing of it lived: they are no time of it",
        "20.0 bad learner 1 was killed by signal SIGKILL",
    ]


def test_a_stale_phase_of_the_dead_life_is_no_return(watched: Watched) -> None:
    watched.write(15, "learner/2", 1, KILLED)
    assert len(watched.told(15.1, hosts=[host("learner/2", "stepping", 1)])) == 1


def test_a_syncer_is_back_when_it_merges_under_its_epoch(watched: Watched) -> None:
    watched.write(15, "syncer/0", 1, KILLED)
    watched.write(15, "syncer/0", 2, Restarted())
    serving = [host("syncer/0", "serving", 2)]
    assert len(watched.told(17, hosts=serving, epochs={0: 1})) == 1
    (back,) = watched.told(18, hosts=serving, epochs={"0": 2})
    assert back.startswith("13.0 good syncer 0 merges again after 3.00 s, under epoch 2")
    assert "keeps of their momentum" in watched.news.notices[-1].text


def test_a_store_that_is_away_and_is_back_is_told_once(watched: Watched) -> None:
    store = {"url": "s3://bucket/run", "number": 3, "error": None}
    assert watched.told(6, snapshots={"store": store}) == []
    away = {"store": {**store, "error": "No route to host"}}
    (told,) = watched.told(7, snapshots=away)
    assert told.endswith("bad snapshots do not reach s3://bucket/run: No route to host")
    assert watched.told(8, snapshots=away) == []
    (told,) = watched.told(9, snapshots={"store": {**store, "number": 5}})
    assert told.endswith("good snapshots reach s3://bucket/run again")


def test_what_a_learner_goes_on_with_is_told_once_a_life(watched: Watched) -> None:
    first = {"incarnation": 1, "began": None}
    assert watched.told(6, learners={"0": first, "1": first}) == []
    later = {"0": {"incarnation": 2, "began": ["copy", 1, 40]}, "1": {"incarnation": 2, "began": ["anew", 0, 0]}}
    told = watched.told(7, learners=later)
    source = "from the copy that this left"
    assert told[0].endswith(f"learner 0 goes on as life 2 with its moments after step 40 of life 1, {source}")
    assert "learner 1 goes on as life 2 with moments that begin anew" in told[1]
    assert watched.told(8, learners=later) == []
    lent = {**later, "1": {"incarnation": 2, "began": ["peer", 0, 70]}}
    (line,) = watched.told(9, learners=lent)
    assert line.endswith("learner 1 goes on as life 2 with the moments of learner 0 after step 70")
    assert watched.told(10, learners=lent) == []


def test_a_line_that_is_not_whole_is_read_when_it_is(watched: Watched) -> None:
    watched.write(15, "evaluator/0", 1, KILLED, end="")
    assert watched.told(15.5) == []
    with (watched.folder / "events.jsonl").open("a") as file:
        file.write('\nnot json\n[]\n{"at": 1, "host": "learner/0", "incarnation": 1, "kind": "reborn"}\n')
    assert watched.told(16) == ["10.0 bad evaluator 0 was killed by signal SIGKILL"]


def test_hosts_that_close_at_the_end_are_not_silent(watched: Watched) -> None:
    watched.write(15, "learner/1", 1, SILENT)
    assert watched.told(15, phase="done") == []
    watched.write(16, "learner/0", 1, SILENT)
    (told,) = watched.told(16)
    assert told.startswith("9.16 odd learner 0 is silent (suspect)")


def test_before_the_first_step_there_is_no_time(watched: Watched) -> None:
    watched.write(3, "learner/0", 1, KILLED)
    assert watched.told(3, zero=None)[0].startswith("None bad")
    watched.write(4, "learner/1", 1, KILLED)
    assert watched.told(6)[0].startswith("None bad")


def test_a_new_daemon_that_knows_nothing_yet_costs_no_time(watched: Watched) -> None:
    assert watched.told(6) == []
    watched.write(15, "learner/0", 1, Adopted())
    watched.seconds = 15
    (told,) = watched.news.update({"hosts": []})
    assert (told.at, told.tone) == (10.0, "odd")


def test_a_run_in_one_process_has_no_news(tmp_path: Path) -> None:
    assert NoticeFeed(tmp_path).update({"hosts": [host("learner/0", "stepping", 2)]}) == []


def test_a_run_that_is_over_is_told_in_order() -> None:
    first = Absence("learner/2", 1, "gone", 10, KILLED, 20, 2)
    second = Absence("daemon", 1, "replaced", 12, Adopted(), 12, 2)
    third = Absence("learner/1", 1, "silent", -3, SILENT)
    notices = notices_of([first, second, third], None)
    assert [(notice.at, notice.tone) for notice in notices] == [(None, "odd"), (10, "bad"), (12, "odd"), (20, "good")]
    assert newest(notices, 2) == notices[2:]
    assert newest(notices, 0) == newest(notices, -1) == []


def test_an_error_is_told_once_and_then_only_that_it_came_again(watched: Watched) -> None:
    boom = BodyRaised(Raised("data", "ValueError", "row 31", "mine.py", 5))
    alike = BodyRaised(Raised("data", "ValueError", "row 32", "mine.py", 5))
    other = BodyRaised(Raised("data", "ValueError", "row 31", "mine.py", 6))
    for at, name, error in ((15, "learner/0", boom), (16, "learner/1", alike), (17, "learner/2", other)):
        watched.write(at, name, 1, error)
        watched.write(at, name, 1, Ended(Exited(1), error=error.error))
    assert watched.told(18) == [
        "10.0 bad learner 0 failed: ValueError: row 31 (mine.py:5)",
        "11.0 bad learner 1 failed in the same way",
        "12.0 bad learner 2 failed: ValueError: row 31 (mine.py:6)",
    ]


def test_slow_data_are_told_once_for_all_learners(watched: Watched) -> None:
    slow = Starved("inner-step", "data", SECOND // 2, SECOND // 100)
    for at, name in ((15, "learner/0"), (16, "learner/1")):
        watched.write(at, name, 1, slow)
    told = "data is the bottleneck: batch() takes 500 ms, a step 10.0 ms (learner 0)"
    assert watched.told(18) == [f"10.0 odd {told}"]


def test_what_happened_before_the_first_look_has_no_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path)

    def status(step: int, time: float) -> dict[str, Any]:
        return {"time": time, "learners": {"0": {"incarnation": 1, "sick_step": step}}}

    [before] = watched.news.update(status(7, 100.0))
    assert (before.at, before.is_earlier) == (None, True)
    [seen] = watched.news.update(status(9, 130.0))
    assert (seen.at, seen.is_earlier) == (130.0, False)


HOSTS = ("evaluator/0", "learner/0", "learner/1", "recorder/0", "syncer/0")
GONE = Ended(Unseen())


class Cut(Watched):
    """A run of two learners; the last line before it is cut off is 7.6 s after the first step."""

    def __init__(self, folder: Path, *, is_resumed: bool = False) -> None:
        super().__init__(folder)
        roles = {"learner": 2, "syncer": 1, "evaluator": 1, "recorder": 1}
        (folder / "spec.json").write_text(json.dumps({"zero_ns": SUBMITTED, "roles": roles}))
        fields = {"learner": 0, "incarnation": 1, "phase": "stepping", "step": 1, "tokens": 64, "loss": 1.0}
        lines = [json.dumps({"time": time, **fields}) + "\n" for time in (1.0, 7.6, 30.0)]
        (folder / "metrics.jsonl").write_text("".join(lines))
        self.news = NoticeFeed(folder, lambda: SUBMITTED + round(self.seconds * SECOND), is_resumed=is_resumed)

    def cut(self, at: float, *names: str) -> None:
        for name in names:
            self.write(at, name, 1, GONE)


def test_a_run_whose_hosts_are_all_gone_was_cut_off_and_nobody_goes_on(tmp_path: Path) -> None:
    watched = Cut(tmp_path)
    watched.cut(20, *HOSTS[:2])
    assert watched.told(20.1) == []  # The others may have been found gone, too, or adopted.
    watched.cut(20.2, *HOSTS[2:])
    assert watched.told(20.3) == ["7.6 bad the run was cut off: 5 hosts had ended, and none was left"]
    for name in HOSTS:
        watched.write(21, name, 2, Restarted())
    assert watched.told(25, hosts=[host(name, "stepping", 2) for name in HOSTS]) == []
    assert [absence.is_cut for absence in watched.news.absences.all] == 5 * [True]
    # The life of a learner that goes on is an absence like any other.
    watched.write(40, "learner/0", 2, KILLED)
    assert watched.told(41) == ["35.0 bad learner 0 was killed by signal SIGKILL"]


def test_hosts_that_end_unseen_while_another_is_adopted_are_no_cut(tmp_path: Path) -> None:
    watched = Cut(tmp_path)
    watched.cut(20, *HOSTS[:4])
    watched.write(20.5, "syncer/0", 1, Adopted())
    told = watched.told(20.6)
    assert [line.split()[2:5] for line in told[:2]] == [["evaluator", "0", "ended"], ["learner", "0", "ended"]]
    assert len(told) == 5
    assert not any(absence.is_cut for absence in watched.news.absences.all)


def test_hosts_that_end_unseen_are_told_once_it_is_clear_that_others_live(tmp_path: Path) -> None:
    watched = Cut(tmp_path)
    watched.cut(20, "learner/0")
    assert watched.told(21.9) == []
    assert watched.told(22.1) == ["15.0 bad learner 0 ended while no daemon watched"]


def test_a_host_that_was_away_already_does_not_hide_the_cut(tmp_path: Path) -> None:
    watched = Cut(tmp_path)
    watched.write(15, "learner/0", 1, KILLED)
    watched.cut(20, *HOSTS[:1], *HOSTS[2:])
    assert watched.told(21)[1:] == ["7.6 bad the run was cut off: 4 hosts had ended, and none was left"]


def test_a_resume_tells_nothing_of_the_life_before_the_cut_as_news(tmp_path: Path) -> None:
    Cut(tmp_path)
    watched = Watched(tmp_path)
    watched.write(6, "learner/0", 1, Starved("inner-step", "data", SECOND // 2, SECOND // 100))
    watched = Cut(tmp_path)
    assert [line[:9] for line in watched.told(7, zero=None)] == ["None odd "]
    watched.seconds = 19
    watched.news = NoticeFeed(tmp_path, lambda: SUBMITTED + round(watched.seconds * SECOND), is_resumed=True)
    watched.cut(20, *HOSTS)
    [cut] = watched.news.update({"phase": "training"})
    assert cut.text.startswith("the run was cut off")
    # With the time of the first step unknown the last line of all counts, and what was before is earlier.
    assert [(notice.at, notice.is_earlier) for notice in watched.news.notices] == [(None, True), (30.0, False)]


def test_after_the_end_a_cut_is_one_notice(tmp_path: Path) -> None:
    cut = [Absence(name, 1, "gone", 7.6, GONE, ended=12.0, life_after=2, is_cut=True) for name in HOSTS]
    later = Absence("learner/0", 2, "gone", 30.0, KILLED)
    told = [(notice.at, notice.text) for notice in notices_of([*cut, later], None)]
    assert told == [
        (7.6, "the run was cut off: 5 hosts had ended, and none was left"),
        (30.0, "learner 0 was killed by signal SIGKILL"),
    ]
