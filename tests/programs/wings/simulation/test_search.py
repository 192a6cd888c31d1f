"""The search itself: what goes wrong in it is told with the seed, and never ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs import DEFAULT
from isthmus.programs.wings.simulation import searches
from isthmus.programs.wings.simulation import simulating as shown
from isthmus.programs.wings.simulation.invariants_model import guards_of
from isthmus.programs.wings.simulation.seeds import run, shape_of
from isthmus.programs.wings.simulation.universe import Outcome, outcome_of
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import Member
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Kill
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe
from tests.effort import long, soaked
from tests.patience import PATIENCE


class _Mistaken(Checker):
    """A checker with a slip of its own."""

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        raise KeyError("nothing of this name")


class _LateMistake(Checker):
    def ended(self, universe: Universe) -> None:
        raise TypeError("a number was expected")


@pytest.mark.slow
@pytest.mark.parametrize(("checker", "kind"), [long(_Mistaken(), "KeyError"), (_LateMistake(), "TypeError")])
def test_what_a_checker_raises_by_mistake_is_a_violation_with_its_place(checker: Checker, kind: str) -> None:
    outcome = outcome_of(shape_of(0), checker)
    assert outcome.violation is not None
    first, *where = outcome.violation.splitlines()
    assert first.startswith(f"{kind}: ")
    assert re.search(r"test_search\.py\", line \d+, in (sent|ended)", "\n".join(where))
    assert len(where) <= 6


def test_what_is_raised_before_a_universe_begins_is_a_violation_too() -> None:
    outcome = outcome_of(replace(shape_of(0), faults=(Kill("learner/9", at=1.0),)))
    assert outcome.violation is not None
    assert "'learner/9'" in outcome.violation


@pytest.mark.slow
def test_a_fault_that_never_happened_is_told() -> None:
    outcome = outcome_of(replace(shape_of(0), faults=(Kill("learner/0", at_step=100_000),)))
    assert outcome.violation is None
    assert [missed.partition("(")[0] for missed in outcome.missed] == ["Kill"]


def _die_at_five(seed: int) -> Outcome:
    if seed == 5:
        os._exit(3)
    return Outcome(seed, None)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_dies_is_told_with_its_seed_and_the_others_go_on() -> None:
    outcomes = sorted(searches.outcomes(_die_at_five, range(3, 12), apart_min=1), key=lambda outcome: outcome.seed)
    assert [outcome.seed for outcome in outcomes] == list(range(3, 12))
    assert [outcome.seed for outcome in outcomes if outcome.violation is not None] == [5]
    assert "died" in str(outcomes[2].violation)


def _wait_after_three(seed: int) -> Outcome:
    if seed > 3:
        Path(os.environ["SEARCH_WAITS"], str(os.getpid())).touch()
        signal.pause()
    return Outcome(seed, None)


@pytest.mark.long
@pytest.mark.process
def test_a_search_that_is_ended_waits_for_no_seed_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_WAITS", str(tmp_path))
    running = searches.outcomes(_wait_after_three, range(3, 12), apart_min=1)
    assert next(running).seed == 3
    until = time.monotonic() + PATIENCE
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < until
        time.sleep(0.01)
    running.close()  # It would wait for ever.
    assert not [each for each in tmp_path.iterdir() if Path("/proc", each.name).exists()]


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("at", [1, 4])
def test_a_search_that_a_signal_ends_says_what_has_finished(
    at: int, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(seed: int, program: str) -> Outcome:
        if seed == at:
            raise KeyboardInterrupt("SIGTERM")
        return Outcome(seed, "all is lost" if seed == 2 else None)

    monkeypatch.setattr(shown, "run", run)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        shown.world(1, 9, DEFAULT, least=20, as_json=as_json)
    told = capsys.readouterr().out
    if as_json:
        data = json.loads(told)
        finished, violations = at - 1, int(at > 2)
        assert (data["seeds"], data["seeds_asked"], data["violations"]) == (finished, 9, violations)
        assert [each["seed"] for each in data["failures"]] == [2] * violations
        assert data["too_rare"] == []
    else:
        assert f"{at - 1} of 9 seeds" in told


def test_what_happened_too_rarely_is_told() -> None:
    phases = Counter(dict.fromkeys(searches.pairs_of(DEFAULT), 20))
    assert searches.rare(phases, DEFAULT, 20) == []
    phases["reset", "final"] = 19
    assert searches.rare(phases, DEFAULT, 20) == ["reset in phase final: 19 times, at least 20 are asked for"]
    assert "join" not in searches.kinds_of("data-parallel")
    assert {"daemon kill", "stick", "end", "wipe", "fork", "mute"} <= set(searches.kinds_of(DEFAULT))


def test_a_guard_that_never_fired_is_told() -> None:
    guards = Counter(dict.fromkeys(guards_of(DEFAULT), 1))
    assert searches.idle(guards, DEFAULT) == []
    del guards["orders that came late"]
    assert searches.idle(guards, DEFAULT) == ["guard 'orders that came late' never fired"]


def test_a_search_whose_guards_never_fired_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = Counter(dict.fromkeys(searches.pairs_of(DEFAULT), 1))
    guards = Counter(dict.fromkeys(guards_of(DEFAULT), 1))
    monkeypatch.setattr(shown, "run", lambda seed, program: Outcome(seed, None, phases=phases, guards=guards))
    assert shown.world(0, 1, DEFAULT, least=1, as_json=True)
    guards["not the present life"] = 0
    assert shown.world(0, 1, DEFAULT, as_json=True)
    capsys.readouterr()
    assert not shown.world(0, 1, DEFAULT, least=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["too_rare"] == ["guard 'not the present life' never fired"]
    assert told["guards"]["too early"] == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", [5337, 5703, 160_283])
def test_what_soaks_have_found_stays_mended(seed: int) -> None:
    """5337: a model that was given up when a clock leapt. 5703: data after the end of a control connection. 160,283: a
    shard died between the first versions of two fragments. The next one asked for both anew, of a learner that found
    one of them in its mailbox together with the question, and said nothing: the run never began."""
    assert run(seed).violation is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, soaked(3), soaked(6)])
@pytest.mark.parametrize(
    "program", ["streaming-diloco", soaked("diloco"), soaked("elastic-data-parallel"), "data-parallel"]
)
def test_other_programs_live_under_the_faults_that_they_can_survive(program: str, first: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + 3):
        outcome = run(seed, program)
        assert outcome.violation is None, (seed, outcome.violation)
        faults += outcome.faults
    assert len(faults) >= 3
