"""Loops of the user's own in jax as learners: what a script has to bring, runs in real processes, and the example."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from isthmus import island as new_island
from isthmus.programs.island import TokenCounts
from isthmus.programs.loop_script import ISLAND, LoopLife, LoopScript
from isthmus.programs.loop_task import asked_of
from isthmus.programs.loop_ways import StartedLoop
from isthmus.programs.state_island import StateModel
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.processes import ONE_THREAD
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, ISTHMUS, Run, assert_is_whole, resume

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "flax_loop.py"
OURS = re.compile(r"\b(isthmus|island)\b")
LINES_MAX = 6
SCRIPT = """
import functools, json, os, sys, time
import jax, jax.numpy as jnp, numpy as np, optax
import isthmus

schedule = optax.linear_schedule(1e-2, 1e-3, 500)
optimizer = optax.adamw(schedule)
params = {"w": jax.random.normal(jax.random.key(0), (32, 8)), "v": jax.random.normal(jax.random.key(1), (8, 1))}
state = {"params": params, "optimizer": optimizer.init(params), "mean": jnp.zeros(32), "key": jax.random.key(0)}

@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, x):
    def loss(params):
        return jnp.mean((x @ params["w"] @ params["v"] - x.sum(1, keepdims=True)) ** 2)
    value, gradient = jax.value_and_grad(loss)(state["params"])
    updates, moments = optimizer.update(gradient, state["optimizer"], state["params"])
    key, drawn = jax.random.split(state["key"])
    mean = 0.9 * state["mean"] + 0.1 * x.mean(0)
    after = {"params": optax.apply_updates(state["params"], updates), "optimizer": moments, "mean": mean, "key": key}
    return after, value, jax.random.uniform(drawn), jnp.asarray(len(x))

def evaluate(state):
    x = jnp.eye(32)
    return {"loss": jnp.mean((x @ state["params"]["w"] @ state["params"]["v"] - 1.0) ** 2), "count": count(state)}

def count(state):
    return int(optax.tree.get(state["optimizer"], "count", filtering=lambda path, _: "Schedule" in str(path)))

with open("starts", "a") as starts:
    print(os.getpid(), file=starts)
while os.path.exists("late"):
    time.sleep(0.05)
merge = {"params/**": "rda", "mean": "mean", "**": "local"}
with isthmus.island(state, merge=merge, evaluate=evaluate) as island:
    state = island.state
    begun = island.position
    print("begins at", begun, "count", count(state), "moment", float(jnp.abs(state["optimizer"][0].mu["v"]).sum()),
          flush=True)
    rng = np.random.default_rng(island.seed + begun)
    for _ in island(iter(int, 1)):
        x = rng.normal(size=(64, 32)).astype(np.float32)
        time.sleep(0.004)
        state, loss, drawn, tokens = train_step(state, x)
        island.metrics(drawn=drawn)
        state = island.step(state, loss=loss, tokens=tokens)
    was_over = island.is_over
state = island.state
total = float(sum(jnp.abs(leaf).sum() for leaf in [*state["params"].values(), state["mean"]]))
print("END", json.dumps([was_over, total, "torch" in sys.modules, island.slot]), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Run]]:
    runs: list[Run] = []
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin(tokens: int) -> Run:
        runs.append(Run(tmp_path, "--loop", "train.py", "--set", "run.snapshot_every_seconds=0.5", tokens=tokens))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def reports(run: Run, slot: int) -> list[dict[str, Any]]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines() if run.folder.exists() else []
    return [line for line in map(json.loads, lines) if line.get("learner") == slot]


def begins(run: Run, slot: int) -> list[list[float]]:
    """Position, count and moments with which each life of a slot has begun."""
    lines = (run.folder / "logs" / f"learner-{slot}.log").read_text().splitlines()
    return [[float(word) for word in line.split()[2::2]] for line in lines if line.startswith("begins at")]


def ends(run: Run, slot: int) -> list[Any]:
    lines = (run.folder / "logs" / f"learner-{slot}.log").read_text().splitlines()
    return [json.loads(line.removeprefix("END ")) for line in lines if line.startswith("END ")]


@pytest.mark.long
@pytest.mark.process
def test_one_that_comes_to_its_with_after_the_end_of_the_run_has_its_last_model(
    start: Callable[[int], Run],
) -> None:
    run = start(FOREVER)
    run.wait_for_merges(4)
    late = run.folder.parent / "late"
    late.touch()
    run.kill("learner/1")
    run.wait_for(lambda: len((run.folder.parent / "starts").read_text().split()) == 4)
    run.command.send_signal(signal.SIGINT)
    run.wait_for(lambda: bool(ends(run, 0)))
    late.unlink()
    run.command.communicate()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["outcome"], summary["scripts_unfinished"], run.command.returncode) == ("stopped", [], 0)
    (one,), (other,) = ends(run, 0), ends(run, 1)
    assert one[0] == other[0] is True
    assert one[1] == other[1]


@pytest.mark.long
@pytest.mark.process
def test_loops_train_and_one_that_was_killed_goes_on_with_its_local_leaves(start: Callable[[int], Run]) -> None:
    run = start(FOREVER)
    run.wait_for(lambda: (run.folder / "local" / "learner-1").exists())
    run.wait_for_merges(4)
    # The process that has told of the model goes on as a learner; the others are another learner and the evaluator.
    starts = [int(line) for line in (run.folder.parent / "starts").read_text().split()]
    assert len(starts) == 3
    assert {run.host(f"learner/{slot}")["pid"] for slot in (0, 1)} == set(starts[:2])
    run.kill("learner/1")
    run.wait_for(lambda: any(line.get("began") for line in reports(run, 1) if line["incarnation"] == 2))
    run.wait_for_merges(4)
    summary = run.stop()
    began = [line["began"][0] for line in reports(run, 1) if line.get("began") and line["incarnation"] == 2]
    assert set(began) <= {"memory", "copy", "snapshot"}
    (at, count, moment), (later, later_count, later_moment) = begins(run, 1)
    assert (at, count, moment) == (0, 0, 0)
    assert later > 0
    assert later_count > 0
    assert later_moment > 0
    drawn = [[line["metrics"]["drawn"] for line in reports(run, slot) if line.get("metrics")] for slot in (0, 1)]
    assert drawn[0][:3] != drawn[1][:3]  # Keys of the state are each slot's own.
    assert 0 < summary["eval_loss_final"] < 0.5  # It begins near 1.
    (one,), (other,) = ends(run, 0), ends(run, 1)
    assert one[:3] == other[:3]  # Both have the last model, and neither has torch.
    assert one[0]
    assert not one[2]
    assert [one[3], other[3]] == [0, 1]


@pytest.mark.process
@pytest.mark.long
def test_a_resume_starts_them_again_with_what_they_had(start: Callable[[int], Run]) -> None:
    run = start(FOREVER)
    run.wait_for(lambda: all((run.folder / "local" / f"learner-{slot}").exists() for slot in (0, 1)))
    run.wait_for_merges(10)
    run.stop()
    before = run.merges()
    run.command = resume(run)
    run.wait_for(lambda: run.merges() > before + 5)
    run.stop()
    (_, first_count, _), (later, later_count, moment) = begins(run, 0)
    assert first_count == 0
    assert later > 0
    assert later_count > 0
    assert moment > 0


# -- what is wrong is said before anything starts ----------------------------------------------------------------------

HEAD = """
import jax, jax.numpy as jnp, numpy as np, isthmus
state = {"w": jnp.ones(4), "base": jnp.ones(2), "count": 0}
RULES = {"w": "rda", "base": "frozen", "**": "local"}
"""
LOOP = """
with isthmus.island(state, merge=RULES) as island:
    state = {**state, "w": state["w"] - 0.1, "count": state["count"] + 1}
    loss = jnp.mean(state["w"])
    island.step(ARGUMENTS)
"""
GOOD = LOOP.replace("ARGUMENTS", "state, loss=loss, tokens=8")
WRONG = {
    "a text": ("isthmus.island([1, 'low'])", "'1', a str"),
    "nothing": ("isthmus.island({})", "no array"),
    "an optimizer": ("isthmus.island(state, state)", "a dict"),
    "another leaf": (LOOP.replace("ARGUMENTS", "{**state, 'more': 1}, loss=loss, tokens=8"), "'more' where 'w' was"),
    "a leaf less": (LOOP.replace("ARGUMENTS", "{'base': 1, 'count': 1}, loss=1, tokens=8"), "'nothing' where 'w' was"),
    "another shape": (LOOP.replace("ARGUMENTS", "{**state, 'w': jnp.ones(3)}, loss=loss, tokens=8"), "'w' float32[3]"),
    "another type": (LOOP.replace("ARGUMENTS", "{**state, 'w': state['w'] > 0}, loss=loss, tokens=8"), "'w' bool[4]"),
    "what was donated": (GOOD.replace("island.step", "state['w'].delete(); island.step"), "'w', which was donated"),
    "what is traced": (
        GOOD.replace("island.step(state, loss=loss", "jax.jit(lambda state: island.step(state, loss=1.0").replace(
            "tokens=8)", "tokens=8))(state)"
        ),
        "'base' in a function that jax traces",
    ),
    "what is frozen": (GOOD.replace("**state,", "**state, 'base': state['base'] + 1,"), "'base' with"),
    "no loss": (LOOP.replace("ARGUMENTS", "state, tokens=8"), "None"),
    "a loss of two": (LOOP.replace("ARGUMENTS", "state, loss=state['base'], tokens=8"), "Array([1., 1.]"),
    "a complex loss": (LOOP.replace("ARGUMENTS", "state, loss=loss * 1j, tokens=8"), "Array("),
    "half a token": (LOOP.replace("ARGUMENTS", "state, loss=loss, tokens=jnp.float32(0.5)"), "Array(0.5"),
    "two tokens": (LOOP.replace("ARGUMENTS", "state, loss=loss, tokens=jnp.ones(2)"), "Array([1., 1.]"),
    "true": (LOOP.replace("ARGUMENTS", "state, loss=loss, tokens=True"), "True"),
    "what is kept": (GOOD.replace("island.step", "island.keep(state); island.step"), "a state: all of its leaves"),
    "outside": ("isthmus.island(state, merge=RULES).step(state, loss=1.0, tokens=8)", "one outside of it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_script_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(way: Any, faults: Any) -> None:
        raise ConfigError.of(faults)

    text, found = WRONG[name]
    monkeypatch.setenv(ISLAND, '{"asks": 1000}')
    monkeypatch.setattr("isthmus.programs.loop_ways.WaitingLoop.fault", answer)
    with pytest.raises(ConfigError) as caught:
        exec(HEAD + text, {"__name__": "train"})
    (fault,) = caught.value.faults
    assert fault.found.startswith(found)


def test_a_second_island_inside_of_the_first_is_named_in_its_life_too(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SimpleNamespace(way=StartedLoop(LoopLife("run", "learner/0", 1, "ipc://none")))
    monkeypatch.setattr("isthmus.programs.island._inside", [first])
    monkeypatch.delenv(ISLAND, raising=False)  # As the first one has it.
    with pytest.raises(ConfigError) as caught:
        new_island({"w": jnp.ones(4)}, merge={"w": "rda"})
    (fault,) = caught.value.faults
    assert fault.found == "a second one inside of the first"


@pytest.mark.further
@pytest.mark.process
def test_a_script_tells_of_its_state_and_of_its_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + GOOD.replace("tokens=8", "tokens=jnp.asarray(8)"))
    found = asked_of(LoopScript(str(tmp_path / "train.py"), (), str(tmp_path)))
    assert [(leaf.name, leaf.shape, leaf.dtype, leaf.kind) for leaf in found.leaves] == [
        ("base", (2,), "float32", "frozen"),
        ("count", (), "int32", "local"),
        ("w", (4,), "float32", "rda"),
    ]
    assert (found.tokens, found.tokens_most) == (8, 64)
    assert found.learner_bytes == 4 * (2 + 1 + 4 + 4)
    assert [name for name, _ in found.frozen] == ["base"]
    (tmp_path / "train.py").write_text(HEAD + GOOD.replace("island.step", "island.state.step"))
    with pytest.raises(ConfigError, match="exit status 1"):
        asked_of(LoopScript(str(tmp_path / "train.py"), ("again",), str(tmp_path)))


def test_a_loop_that_goes_on_behind_its_last_step_is_told_so() -> None:
    state = {"w": jnp.ones(4)}
    model = StateModel(state, (("**", "rda"),))
    model.check_end()
    state["w"].delete()
    with pytest.raises(ConfigError, match="'w' donated since"):
        model.check_end()


def test_frozen_leaves_are_compared_at_powers_of_four_and_at_the_last_step() -> None:
    state = {"w": jnp.ones(4), "base": jnp.ones(2)}
    model = StateModel(state, (("base", "frozen"), ("**", "rda")))
    changed = {**state, "base": jnp.zeros(2)}
    for number in range(1, 17):
        if number == 16:  # The first step with a change that looks.
            with pytest.raises(ConfigError, match="'base'"):
                model.after(changed, 1.0)
        else:
            model.after(state if number in (1, 4) else changed, 1.0)
    model.after(state, 1.0)
    model.check_last()
    model.after(changed, 1.0)
    with pytest.raises(ConfigError, match="'base'"):
        model.check_last()


class Later:
    """Tokens that a device still computes."""

    dtype = "int32"

    def __init__(self, count: int, *, is_there: bool = False) -> None:
        self._count, self._is_there = count, is_there

    def is_ready(self) -> bool:
        return self._is_there

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._count, dtype)


class Unread:
    """A model whose scalars are read later as they are."""

    step_call = "island.step()"

    def read_later(self, scalar: Any) -> Any:
        return scalar


def test_tokens_on_a_device_are_counted_a_step_later_and_none_is_lost() -> None:
    def counted(*tokens: Any) -> list[int]:
        counts = TokenCounts(Unread())
        return [counts.of(each) for each in tokens]

    assert counted(3, np.int64(4), 0, 5) == [3, 4, 0, 5]
    assert counted(Later(8), Later(8), Later(8)) == [8, 8, 8]  # The first is waited for.
    assert counted(Later(8), Later(6), Later(6), Later(7), 7) == [8, 8, 4, 6, 8]
    assert counted(8, Later(2), Later(8), Later(8), Later(8)) == [8, 8, 1, 8, 8]  # None makes no step.
    assert counted(2, Later(8), Later(8), Later(8), 8) == [2, 2, 8, 8, 8]  # None counts more than any had.
    assert counted(4, Later(3, is_there=True)) == [4, 3]
    with pytest.raises(ConfigError, match=r"island.step\(\)"):
        counted(4, Later(-1), 4)


# -- the example -------------------------------------------------------------------------------------------------------


def code_of_the_example() -> list[str]:
    """The lines behind the docstring."""
    text = EXAMPLE.read_text()
    return text[text.index('"""', 3) + 3 :].splitlines()


def test_six_lines_of_a_flax_loop_are_ours() -> None:
    assert 0 < len([line for line in code_of_the_example() if OURS.search(line)]) <= LINES_MAX


@pytest.mark.process
@pytest.mark.long
def test_a_flax_loop_trains_and_evaluates(tmp_path: Path) -> None:
    command = [str(ISTHMUS), "train", "--loop", str(EXAMPLE), "--learners", "2", "--tokens", "150000"]
    done = subprocess.run(
        [*command, "--run-dir", "run", "--", "--rate", "0.005"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not done.returncode, (done.stdout, done.stderr)
    summary = assert_is_whole(tmp_path / "run")
    assert summary["outcome"] == "done"
    assert summary["eval_loss_final"] < 0.5 * math.log(10)  # Half that of a guess among ten digits.
    assert summary["eval_metrics"]["accuracy"] > 0.8


@pytest.mark.process
@pytest.mark.long
def test_without_our_lines_it_is_a_script_that_trains_alone(tmp_path: Path) -> None:
    lines = [re.sub(r"with isthmus.*:$", "if True:", line) for line in code_of_the_example()]
    lines = [re.sub(r"island\((range.*)\)", r"\1", line) for line in lines]
    lines = [line.replace("state, seed = island.state, island.seed + island.position", "pass") for line in lines]
    (tmp_path / "alone.py").write_text("\n".join(line for line in lines if not OURS.search(line)))
    command = [sys.executable, "alone.py", "--steps", "1000"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert float(re.findall(r"'accuracy': ([\d.]+)", done.stdout)[0]) > 0.8


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("form", ["module", "program", "python"])
def test_a_module_and_a_program_are_trained_and_another_python_runs_them(tmp_path: Path, form: str) -> None:
    package = tmp_path / "lab"
    package.mkdir()
    (package / "train.py").write_text(f"import os\nprint('MARK', os.environ.get('MARK'), __name__)\n{SCRIPT}")
    program = tmp_path / "lab-train"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport lab.train\n")
    python = tmp_path / "python-of-mine"
    python.write_text(f'#!/bin/sh\nMARK=mine exec {sys.executable} "$@"\n')
    for each in (program, python):
        each.chmod(0o700)
    words = {
        "module": ("--loop", "-m", "lab.train"),
        "program": ("--loop", "./lab-train"),
        "python": ("--loop", "-m", "lab.train", "--python", "./python-of-mine"),
    }[form]
    run = Run(tmp_path, *words, tokens=60_000)
    try:
        said, _ = run.command.communicate(timeout=PATIENCE)
        assert run.command.returncode == 0, said
        log = (run.folder / "logs" / "learner-1.log").read_text()
        mark = {"module": "None __main__", "program": "None lab.train", "python": "mine __main__"}[form]
        assert f"MARK {mark}" in log
        assert len(ends(run, 0)) == len(ends(run, 1)) == 1
    finally:
        run.close()
