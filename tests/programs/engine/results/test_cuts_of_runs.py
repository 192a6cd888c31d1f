"""A run was cut off where the ends that no daemon saw are those of all hosts, who are away since its last record."""

from __future__ import annotations

import json
from pathlib import Path

from isthmus.programs.engine.results.absences import (
    DAEMON,
    Fact,
    RunCut,
    Waiting,
    away,
    hosts_of,
    others_meanwhile,
    with_cuts,
)
from isthmus.programs.engine.results.lines import ReportLine
from isthmus.programs.engine.results.reading import absences_shown
from isthmus.runtime.supervision.incidents import Ended, GivenUp, Joined, Restarted, Unseen
from tests.programs.engine.results.event_lines import KILLED

HOSTS = ["learner/0", "learner/1", "recorder/0"]
GONE = Ended(Unseen())


def gone(*names: str, at: float = 20.0, life: int = 1) -> list[Fact]:
    return [Fact(at, name, life, GONE) for name in names]


def cuts(facts: list[Fact], hosts: list[str] = HOSTS) -> list[RunCut]:
    return [fact.what for fact in with_cuts(facts, hosts) if isinstance(fact.what, RunCut)]


def test_all_living_hosts_make_a_cut_and_fewer_do_not() -> None:
    assert cuts(gone(*HOSTS)) == [RunCut((("learner/0", 1), ("learner/1", 1), ("recorder/0", 1)))]
    assert with_cuts(gone(*HOSTS[:2]), HOSTS) == gone(*HOSTS[:2])
    assert cuts(gone(*HOSTS), hosts=[]) == []
    assert len(cuts([Fact(5.0, "learner/2", 1, Joined("beta")), *gone(*HOSTS)])) == 0
    given_up = Fact(5.0, "learner/1", 6, GivenUp(6, KILLED))
    assert len(cuts([given_up, *gone("learner/0", "recorder/0")])) == 1


def test_a_run_may_be_cut_off_again_by_later_lives_and_when_the_last_host_ends() -> None:
    again = [Fact(25.0, name, 2, Restarted()) for name in HOSTS]
    assert len(cuts([*gone(*HOSTS), *again, *gone(*HOSTS, at=40.0, life=2)])) == 2
    late = [*gone(*HOSTS[:2]), *gone(HOSTS[2], at=22.5)]
    assert cuts(late) == [RunCut((("recorder/0", 1),))]


def test_absences_of_a_cut_begin_with_the_last_record_before_it_and_nobody_goes_on_meanwhile() -> None:
    reports = [ReportLine(time=time, phase="stepping", step=1, tokens=64, loss=1.0) for time in (1.0, 7.6)]
    later = ReportLine(time=30.0, incarnation=2, phase="stepping", step=1, tokens=64, loss=1.0)
    shown = absences_shown(with_cuts(gone(*HOSTS), HOSTS), [*reports, later], [], [])
    assert [(each.host, each.begun, each.is_cut) for each in shown] == [(name, 7.6, True) for name in HOSTS]
    assert [each.ended for each in shown] == [30.0, None, None]
    waiting = Waiting("go on", is_for_syncer=False)
    assert {others_meanwhile(each, waiting) for each in shown} == {""}
    assert away(shown[0], waiting) == "learner 0 ended with all others, as the run was cut off"
    [absence] = absences_shown(gone(HOSTS[0]), reports, [], [])
    assert others_meanwhile(absence, waiting) == "; the others go on without it"
    assert with_cuts(gone(*HOSTS), HOSTS)[0].host == DAEMON


def test_hosts_are_those_of_all_specs_of_a_folder(tmp_path: Path) -> None:
    assert hosts_of(tmp_path) == []
    (tmp_path / "spec.json").write_text(json.dumps({"roles": {"learner": 3, "recorder": 1}}))
    assert hosts_of(tmp_path) == ["learner/0", "learner/1", "learner/2", "recorder/0"]
    (tmp_path / "spec-1.json").write_text(json.dumps({"spec": {"roles": {"learner": 2, "recorder": 1}}, "tapes": []}))
    assert hosts_of(tmp_path) == HOSTS
