"""Universes by the hundred: nothing is broken in any, all kinds of faults happened in every phase, and each replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.wings.simulation import seeds as simulation
from isthmus.programs.wings.simulation import simulating as shown
from isthmus.programs.wings.simulation.seeds import DISK_KINDS, KINDS, run
from isthmus.programs.wings.simulation.universe import Outcome
from tests.effort import seeds
from tests.patience import PATIENCE

SEEDS = 25
"""In a block, so that all cores have some. That every kind of fault happens in every phase is for `make soak`."""


@pytest.mark.long
@pytest.mark.timeout(400)  # 10 s of CPU, on cores that may be busy with something else.
@pytest.mark.parametrize("first", seeds(150, least=SEEDS)[::SEEDS])
def test_nothing_is_broken_in_any_universe(first: int) -> None:
    phases: Counter[tuple[str, str]] = Counter()
    for seed in range(first, first + SEEDS):
        outcome = run(seed)
        assert outcome.violation is None, shown.story(outcome, "decoupled-diloco")
        phases += outcome.phases
    frequent = {*KINDS, *DISK_KINDS}
    assert frequent <= {kind for kind, _ in phases}


def _isthmus(folder: Path, hash_seed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("isthmus")), "simulate", "world", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder
    )


@pytest.mark.long
@pytest.mark.process
def test_a_seed_is_the_same_universe_under_any_hash_seed(tmp_path: Path) -> None:
    first, second = (_isthmus(tmp_path, hash_seed, "--seed", "7", "--json") for hash_seed in ("1", "4242"))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    told, again = json.loads(first.stdout), json.loads(second.stdout)
    assert told["tape_digest"] == again["tape_digest"] != run(8).tape_digest
    assert (told["seeds"], told["violations"]) == (1, 0)
    assert told["faults"] == again["faults"]
    assert sum(told["faults"].values()) >= 1
    assert told["seeds_per_minute"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_wrong_request_is_told_at_once(tmp_path: Path) -> None:
    wrong = _isthmus(tmp_path, "0", "--seeds", "0", "--seed", "-1")
    assert wrong.returncode == 2
    assert "2 things are wrong" in wrong.stderr
    assert wrong.stdout == ""


@pytest.mark.long
@pytest.mark.slow
def test_a_violation_is_told_with_its_story_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @cache
    def broken(seed: int, program: str) -> Outcome:
        outcome = simulation.run(seed, program)
        outcome.violation = "syncer/0#1, fragment 0: all is lost" if seed == 4 else None
        return outcome

    monkeypatch.setattr(shown, "run", broken)
    assert not shown.world(3, 2, "decoupled-diloco", as_json=False)
    text = capsys.readouterr().out
    assert "seed 4 failed after" in text
    assert "virtual seconds: syncer/0#1, fragment 0: all is lost" in text
    assert "  again: isthmus simulate world --seed 4\n" in text
    assert "2 seeds, 1 with a violation" in text
    assert not shown.world(4, 1, "decoupled-diloco", as_json=True)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["violations"] == 1
    assert told["failures"][0]["command"] == "isthmus simulate world --seed 4"
    assert len(told["failures"][0]["story"]) == sum(told["faults"].values())
