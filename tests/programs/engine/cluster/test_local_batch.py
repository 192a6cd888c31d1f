"""Batches of the slots' own sizes: who gets which, the tokens that they count for, and the accounts of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from isthmus import Program, Task
from isthmus.ops.data.batches import At, of_slot
from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.programs.engine.cluster.placing import placed
from isthmus.programs.engine.cluster.prediction import paced, predict, shares
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.language_model import task as language_model
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.errors import ConfigError
from tests.command_line import app

HUB = Machine("hub", "tcp://127.0.0.1:7400", roles=("syncer", "evaluator"))
FAST = Machine("fast", roles=("learner",), islands=1, device=replace(find("CPU", ""), flops=3e9))
SLOW = Machine("slow", roles=("learner",), islands=2, device=replace(find("CPU", ""), flops=1e9))
ROWS = (96, 32, 64)


def rows_of(rows: int | tuple[int, ...]) -> Any:
    def batch(at: At) -> dict[str, Any]:
        x = at.rng().normal(size=(of_slot(rows, at.slot), 8)).astype(np.float32)
        return {"x": x, "y": x.sum(1, keepdims=True)}

    return batch


def linear(rows: int | tuple[int, ...], tokens: int | tuple[int, ...]) -> Task:
    def init(_: Any) -> dict[str, Any]:
        return {"w": jnp.zeros((8, 1)), "b": jnp.zeros(1)}

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)

    return Task(init, loss, rows_of(rows), tokens_per_batch=tokens, optimizer=optax.adamw(1e-2), evaluation=2)


# -- who gets how much -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(1, 300), st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_shares_are_whole_and_in_proportion(total: int, speeds: list[int]) -> None:
    found = shares(total, speeds)
    assert sum(found) == max(total, len(speeds))
    assert min(found) >= 1
    exact = [total * speed / sum(speeds) for speed in speeds]
    if min(exact) >= 1:
        assert all(abs(share - part) < 1 for share, part in zip(found, exact, strict=True))
    assert all(a >= b for a, s in zip(found, speeds, strict=True) for b, t in zip(found, speeds, strict=True) if s > t)


def test_ties_go_to_the_first() -> None:
    assert shares(8, [1, 1, 1]) == (3, 3, 2)
    assert shares(1, [1, 1]) == (1, 1)


@pytest.mark.long
@pytest.mark.slow
def test_paced_batches_make_steps_of_one_length() -> None:
    machines = Topology((HUB, SLOW, FAST))
    request = prepare(run={"learners": 3, "local_batch": "paced"}, task_settings={"batch": 10})
    batch = paced(request, machines)
    assert batch == (18, 6, 6, 10), "three to one, as many as before, and what was asked for to those that join"
    again = prepare(run={"learners": 3}, task_settings={"batch": batch})
    steps = {island.step_seconds for island in predict(again, machines, placed(again, machines)).islands}
    assert len(steps) == 1
    assert again.job.tokens_per_batch == request.job.tokens_per_batch == 640


def test_what_cannot_keep_pace_is_told() -> None:
    request = prepare(run={"learners": 3, "local_batch": "paced"})
    with pytest.raises(ConfigError, match="expected a cluster beside 'paced'"):
        paced(request, None)
    unknown = [Machine(name, roles=("learner",), islands=1) for name in "ab"]
    with pytest.raises(ConfigError) as error:
        paced(request, Topology((HUB, FAST, *unknown)))
    assert [fault.found for fault in error.value.faults] == ["none on 'a'", "none on 'b'"]


OWN = """
import jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jnp.zeros(4)}
def loss(params, batch): return jnp.sum(batch @ params["w"])
def batch(at): return np.ones((2, 4), np.float32)

task = Task(init, loss, batch, tokens_per_batch=2, optimizer=optax.sgd(0.1))
"""
CLUSTER = """
[[device]]
kind = "quick"
teraflops = 0.3
[[machine]]
name = "hub"
address = "tcp://127.0.0.1:7400"
islands = 1
device = "CPU"
[[machine]]
name = "quick"
device = "quick"
[run]
local_batch = "paced"
[task]
layers = 1
"""


@pytest.mark.slow
def test_the_command_gives_batches_by_pace(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    result = CliRunner().invoke(app, ["graph", "--cluster", str(path)])
    assert result.exit_code == 0, result.stderr
    assert "x 192 to 832 tokens" in result.stdout, "3 and 13 sequences of 64, of 2 x 8"
    own = tmp_path / "placed_own.py"
    own.write_text(OWN)
    path.write_text(CLUSTER.partition("[task]")[0])
    result = CliRunner().invoke(app, ["graph", "--cluster", str(path), "--task", f"{own}:task"])
    assert result.exit_code == 2
    assert "expected 'same' beside a task of your own, found 'paced'" in result.stderr


# -- tasks whose slots differ ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_task_has_a_batch_for_each_slot(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"It is a truth universally acknowledged. " * 500)
    task = language_model(batch=(4, 16, 8), data=(str(tmp_path / "text"),))
    assert task.tokens_per_batch == (256, 1024, 512)
    sizes = [len(task.batch(At(0, slot, 3))["tokens"]) for slot in range(5)]
    assert sizes == [4, 16, 8, 8, 8]
    assert task.tokens_mean(3) == 597
    assert {len(task.batch(At(0, slot, 3, "evaluation"))["tokens"]) for slot in range(5)} == {4}
    assert len(list(task.evaluation_batches(0))) == 64
    assert layout(task)


@pytest.mark.parametrize("batch", [(), (8, 0), (8, True), (8, 2.0), "8"])
def test_a_batch_that_is_none(batch: Any) -> None:
    with pytest.raises(ConfigError, match=r"Setting task\.batch: expected an integer of at least 1, or a list"):
        language_model(batch=batch)


def test_slots_may_differ_only_where_the_task_says_so() -> None:
    assert layout(linear(ROWS, ROWS))
    with pytest.raises(ConfigError, match=r"slot=1.*\n.*Return the same shapes"):
        layout(linear(ROWS, 64))
    with pytest.raises(ConfigError, match="tokens_per_batch= an integer of at least 1, a tuple of them"):
        linear(ROWS, (96, 0))


def test_a_slot_has_one_shape_everywhere() -> None:
    def batch(at: At) -> Any:
        rows = 3 if at.slot == 2 and at.position else 4
        return {"x": np.zeros((rows, 8), np.float32), "y": np.zeros((rows, 1), np.float32)}

    with pytest.raises(ConfigError, match=r"slot=2, position=1.*expected 'x' as at At\(seed=0, slot=2, position=0"):
        layout(replace(linear(4, (4, 4, 4)), batch=batch))


@pytest.mark.slow
def test_every_token_of_a_run_is_in_the_accounts(world: Worlds) -> None:
    result = world.run(Program("decoupled-diloco", fragments=2), task=linear(ROWS, ROWS), learners=3, steps=80)
    assert [result.slots[slot].tokens for slot in range(3)] == [
        result.slots[slot].steps * ROWS[slot] for slot in range(3)
    ]
    for account in result.summary["fragment_accounts"]:
        parts = [account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")]
        assert sum(parts) == account["trained"] == result.summary["tokens_total"]
    assert result.summary["merged_share"] > 0.8
    assert result.eval_loss is not None
    assert result.eval_loss < 0.5 * result.summary["eval_loss_initial"]
