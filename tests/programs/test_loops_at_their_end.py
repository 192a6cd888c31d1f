"""Between two steps a script is its user's, and a run is done once its scripts have come to their end: real runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.supervision.incidents import Exited, Lingered, Lingers, ScriptGoesOn, ScriptUnfinished, WasAway
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, Run, resume

SCRIPT = """
import hashlib, os, sys, time
import jax.numpy as jnp, numpy as np
import isthmus

HERE = os.getcwd()
state = {"w": jnp.zeros(64), "steps": jnp.zeros(())}

def is_there(name):
    return os.path.exists(os.path.join(HERE, name))

def evaluate():
    while is_there("away"):
        time.sleep(0.02)

with isthmus.island(state, merge={"w": "rda", "steps": "local"}) as island:
    state = island.state
    print("BEGAN", island.slot, int(state["steps"]), flush=True)
    slot, began = island.slot, time.monotonic()
    rng = np.random.default_rng(island.seed)
    while True:
        if slot == 0 and island.is_over:
            break  # The other one never asks.
        if slot == 1 and not island.is_over:
            evaluate()
        w = state["w"] + 0.01 * (rng.normal(size=64).astype(np.float32) - state["w"])
        time.sleep(0.01)
        state = island.step({"w": w, "steps": state["steps"] + 1}, loss=float(jnp.mean(w**2)), tokens=40)
state = island.state
print("BEHIND", slot, hashlib.sha256(np.asarray(state["w"]).tobytes()).hexdigest(), flush=True)
def save():
    while is_there("busy"):
        sum(range(10_000))
    while is_there("idle"):
        time.sleep(0.05)
    if is_there("full") and slot == 1:
        raise OSError(28, "No space left on device")
save()
print("SAVED", slot, flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin(tokens: int, *sets: str) -> Run:
        # A loop that does not ask is led out sooner.
        more = [word for each in ("run.loop_over_seconds=1", *sets) for word in ("--set", each)]
        runs.append(Run(tmp_path, "--loop", "train.py", *more, tokens=tokens))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def lines(run: Run, slot: int, word: str) -> list[list[str]]:
    """What the script of a slot has printed behind a word, in all its lives."""
    path = run.folder / "logs" / f"learner-{slot}.log"
    text = path.read_text() if path.exists() else ""
    return [line.split()[1:] for line in text.splitlines() if line.startswith(word)]


def ended(run: Run) -> tuple[int, dict[str, Any], str]:
    """Status, summary and standard error of a run's command."""
    _, error = run.command.communicate(timeout=PATIENCE)
    run.wait_until_gone()
    return run.command.returncode, run.summary(), error


def told(run: Run, kind: type) -> list[Any]:
    return [each for each in run.incidents() if isinstance(each, kind)]


@pytest.mark.further
@pytest.mark.process
def test_one_that_is_away_is_waited_for_and_one_that_never_asks_is_led_out_of_its_with(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(FOREVER)
    run.wait_for_merges(4)
    (tmp_path / "away").touch()
    run.wait_for(lambda: run.host("learner/1").get("state") == "away")
    host = run.host("learner/1")
    assert host["user_code_ns"] >= 2.9e9  # Its host is away after 3 s, by the beat before the one that says how long.
    assert [place[2] for place in host["places"]] == ["evaluate"]
    steps = run.steps()["learner/0"]
    run.wait_for(lambda: run.steps()["learner/0"] > steps + 10)
    (tmp_path / "away").unlink()
    run.wait_for(lambda: told(run, WasAway))
    run.wait_for_merges(4)
    run.command.send_signal(signal.SIGINT)
    status, summary, _ = ended(run)
    assert (status, summary["outcome"], summary["scripts_unfinished"]) == (0, "stopped", [])
    # Nobody was killed, both had the last model, and the lines behind the `with` ran: of the one that was led out, too.
    assert [row["restarts"] for row in summary["per_learner"]] == [0, 0]
    behind = [lines(run, slot, "BEHIND") for slot in (0, 1)]
    assert [len(each) for each in behind] == [1, 1]
    assert behind[0][0][1] == behind[1][0][1]
    assert [len(lines(run, slot, "SAVED")) for slot in (0, 1)] == [1, 1]
    assert told(run, ScriptGoesOn)
    away = [row["away_seconds"] for row in summary["per_learner"]]
    assert 3.0 <= away[1] <= told(run, WasAway)[0].away_ns / 1e9 + 1.0
    assert summary["wall_seconds"] >= away[1]


@pytest.mark.process
@pytest.mark.long
def test_a_script_that_raises_behind_its_with_is_named_and_begun_again_with_the_last_model(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    for name in ("full", "busy"):
        (tmp_path / name).touch()
    run = start(8_000)
    run.wait_for(lambda: run.status().get("awaited") == ["learner/0", "learner/1"])
    assert run.status()["outcome"] == "done"

    def learners() -> list[str]:
        return [host["state"] for host in run.status()["hosts"] if host["role"] == "learner"]

    run.wait_for(lambda: learners() == ["awaited", "awaited"])
    (tmp_path / "busy").unlink()
    status, summary, error = ended(run)
    assert (status, summary["outcome"], summary["scripts_unfinished"]) == (1, "done", ["learner/1"])
    assert "--resume" in error
    assert summary["wall_seconds"] < 60
    (unfinished,) = told(run, ScriptUnfinished)
    assert unfinished.last.end == Exited(1)
    models = {path.name: path.read_bytes() for path in (run.folder / "snapshots" / "final").iterdir()}

    run.command = resume(run)
    status, again, _ = ended(run)
    assert (status, again["scripts_unfinished"]) == (1, ["learner/1"])
    (tmp_path / "full").unlink()
    run.command = resume(run)
    status, again, _ = ended(run)
    assert (status, again["outcome"], again["scripts_unfinished"]) == (0, "done", [])
    assert [len(lines(run, slot, "SAVED")) for slot in (0, 1)] == [1, 1]
    assert [len(lines(run, slot, "BEHIND")) for slot in (0, 1)] == [1, 3]
    assert len({each[1] for slot in (0, 1) for each in lines(run, slot, "BEHIND")}) == 1
    begun = [int(each[1]) for each in lines(run, 1, "BEGAN")]
    assert begun[0] == 0 < begun[1] == begun[2], "what a former life has kept, as of its last copy"
    assert {path.name: path.read_bytes() for path in (run.folder / "snapshots" / "final").iterdir()} == models
    for key in ("tokens_total", "tokens_merged", "outer_steps", "wall_seconds", "goodput", "uptime"):
        assert again[key] == summary[key], key


@pytest.mark.process
@pytest.mark.long
def test_one_that_does_nothing_is_ended_by_the_bound_and_one_that_works_is_not(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "busy").touch()
    run = start(8_000, "run.loop_idle_seconds=3")
    run.wait_for(lambda: run.status().get("awaited") == ["learner/0", "learner/1"])
    kept = run.wait_for(lambda: [h for h in run.status()["hosts"] if (h.get("user_code_ns") or 0) > 6e9])
    assert {host["state"] for host in kept} == {"awaited"}, "both work"
    (tmp_path / "idle").touch()
    (tmp_path / "busy").unlink()
    status, summary, _ = ended(run)
    assert (status, summary["outcome"], summary["scripts_unfinished"]) == (1, "done", ["learner/0", "learner/1"])
    assert {each.setting for each in told(run, Lingers)} == {"run.loop_idle_seconds"}
    for unfinished in told(run, ScriptUnfinished):
        assert isinstance(unfinished.last.verdict, Lingered)
        (place,) = unfinished.last.end.places
        assert (Path(place.file).name, place.function) == ("train.py", "save")
    line = 1 + next(n for n, text in enumerate(SCRIPT.splitlines()) if 'while is_there("idle")' in text)
    assert all(f"train.py:{line + 1}" in why for why in summary["scripts_unfinished_why"].values())
    assert 'train.py", line' in (run.folder / "logs" / "learner-0.log").read_text()


@pytest.mark.process
@pytest.mark.long
def test_a_life_that_was_killed_as_the_run_ended_comes_to_its_end_with_the_last_model(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(FOREVER)
    run.wait_for_merges(4)
    (tmp_path / "away").touch()  # The one that is killed has not had the last model.
    run.wait_for(lambda: run.host("learner/1").get("state") == "away")
    run.command.send_signal(signal.SIGINT)
    run.wait_for(lambda: run.status()["outcome"] == "stopped")
    run.kill("learner/1")
    (tmp_path / "away").unlink()
    status, summary, _ = ended(run)
    assert (status, summary["outcome"], summary["scripts_unfinished"]) == (0, "stopped", [])
    assert lines(run, 0, "BEHIND")[0][1] == lines(run, 1, "BEHIND")[0][1]
    assert [len(lines(run, slot, "SAVED")) for slot in (0, 1)] == [1, 1]


@pytest.mark.process
@pytest.mark.long
def test_a_stop_ends_the_scripts_that_are_awaited(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "idle").touch()
    run = start(8_000)
    run.wait_for(lambda: run.status().get("awaited") == ["learner/0", "learner/1"])
    run.command.send_signal(signal.SIGINT)
    status, summary, _ = ended(run)
    assert (status, summary["outcome"], summary["scripts_unfinished"]) == (0, "done", [])
    assert summary["scripts_dismissed"] == ["learner/0", "learner/1"]
    assert json.loads((run.folder / "over.json").read_text())["outcome"] == "done"
    assert not lines(run, 0, "SAVED")
    (tmp_path / "idle").unlink()
    run.command = resume(run)
    status, again, _ = ended(run)
    assert (status, again["outcome"], again["scripts_dismissed"]) == (0, "done", [])
    assert [len(lines(run, slot, "SAVED")) for slot in (0, 1)] == [1, 1]
    assert again["tokens_total"] == summary["tokens_total"]


@pytest.mark.process
@pytest.mark.long
def test_the_next_daemon_knows_how_scripts_have_ended_that_it_has_not_started(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    for name in ("full", "busy"):
        (tmp_path / name).touch()
    run = start(FOREVER)
    run.wait_for_merges(4)
    former, lives = run.daemon()["pid"], [run.pids()[f"learner/{slot}"] for slot in (0, 1)]
    os.kill(former, signal.SIGKILL)
    run.wait_for(lambda: run.daemon()["pid"] != former and run.status()["outcome"] == "running")
    run.wait_for_merges(4)
    run.command.send_signal(signal.SIGINT)
    run.wait_for(lambda: run.status().get("awaited") == ["learner/0", "learner/1"])
    assert [run.pids()[f"learner/{slot}"] for slot in (0, 1)] == lives
    (tmp_path / "busy").unlink()
    status, summary, _ = ended(run)
    assert (status, summary["outcome"], summary["scripts_unfinished"]) == (1, "stopped", ["learner/1"])
    assert [len(lines(run, slot, "BEGAN")) for slot in (0, 1)] == [1, 1], "none was begun again"
    (unfinished,) = told(run, ScriptUnfinished)
    assert unfinished.last.end == Exited(1)
