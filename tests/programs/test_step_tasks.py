"""Tasks that bring their step: trained by every program that can, refused by name where not, and read back."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus import Program, Task, load
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.engine.request.task_in_hand import differences
from isthmus.programs.engine.results import reading
from isthmus.programs.job import TensorSpec
from isthmus.programs.task import StepTask, TaskLayout
from isthmus.programs.wings.report.charts_lines import charts
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.errors import ConfigError
from isthmus.testing import Kill
from tests.effort import soaked
from tests.programs.family import SGD, final_model

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TASK: Task = runpy.run_path(str(EXAMPLES / "batch_norm.py"), run_name="batch_norm")["task"]
STEPS = 120


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "settings"),
    [
        ("decoupled-diloco", {"fragments": 3}),
        ("streaming-diloco", {"fragments": 2}),
        ("diloco", {}),
        soaked(f"{EXAMPLES / 'gossip.py'}:build", {}),
        soaked(f"{EXAMPLES / 'ring.py'}:build", {}),
    ],
)
def test_programs_that_merge_values_train_it(world: Worlds, program: str, settings: dict[str, Any]) -> None:
    result = world.run(Program(program, **settings), task=TASK, learners=2, steps=STEPS)
    summary, folder = result.summary, result.folder
    assert summary["outcome"] == "done"
    assert summary["eval_loss_final"] < 0.7 * summary["eval_loss_initial"]
    assert summary["eval_metrics"]["accuracy"] > 0.6
    assert 0.5 < summary["metrics"]["accuracy"] <= 1.0
    model = load(folder, TASK)
    assert jax.tree.structure(model) == jax.tree.structure(TASK.init(jax.random.key(0)))
    assert (model["params"]["hidden"].dtype, model["params"]["head"].dtype) == (jnp.bfloat16, jnp.float32)
    assert np.all(np.asarray(model["stats"]["variance"]) > 0)
    np.testing.assert_array_equal(model["average"]["head"], TASK.init(jax.random.key(0))["params"]["head"])


@pytest.mark.long
@pytest.mark.slow
def test_a_run_with_deaths_goes_on_and_is_the_same_again(world: Worlds) -> None:
    """Of a learner that comes back the local leaves begin anew, and what was merged stays; items cross a wire."""

    def run() -> Any:
        death = Kill("learner/1", at=0.5)
        return world.run(Program("decoupled-diloco", interval=12), task=TASK, learners=3, steps=STEPS, faults=[death])

    first, second = run(), run()
    assert first.slots[1].restarts == 1
    assert first.summary["eval_metrics"]["accuracy"] > 0.6
    assert (first.eval_loss, first.tapes) == (second.eval_loss, second.tapes)


@pytest.mark.slow
def test_scalars_are_in_every_file_with_a_curve_each(world: Worlds) -> None:
    folder = world.run("decoupled-diloco", task=TASK, learners=2, steps=STEPS).folder
    told = [line["metrics"]["accuracy"] for line in lines(folder, "metrics") if "metrics" in line]
    assert len(told) > 4
    assert told[-1] > told[0]
    evaluations = lines(folder, "evaluations")
    assert all(0 <= line["metrics"]["accuracy"] <= 1 for line in evaluations)
    record = reading.load(folder)
    assert record.metrics == ["accuracy"]
    (chart,) = (chart for chart in charts(record, None) if chart.title == "accuracy")
    assert [curve.name for curve in chart.curves] == ["learner 0", "learner 1", "global model, held-out data"]
    assert not chart.is_logarithmic
    assert [item.of("accuracy") for item in record.evaluations] == [line["metrics"]["accuracy"] for line in evaluations]


@pytest.mark.parametrize("program", ["data-parallel", "elastic-data-parallel"])
def test_programs_that_average_gradients_refuse_it(world: Worlds, program: str) -> None:
    with pytest.raises(ConfigError, match=f"by {program}: expected a loss, .* found a step of its own"):
        world.run(program, task=TASK, learners=2, steps=4)


@pytest.mark.slow
def test_parameters_of_a_loss_that_are_local_are_refused_there_too(world: Worlds) -> None:
    with pytest.raises(ConfigError, match="or parameters that are local"):
        world.run("data-parallel", task=replace(SGD, merge={"bias-*": "local", "**": "rda"}), learners=2, steps=4)


@pytest.mark.slow
def test_parameters_of_a_loss_may_be_local_where_values_are_merged(world: Worlds) -> None:
    task = replace(SGD, merge={"bias-*": "local", "**": "rda"})
    result = world.run("decoupled-diloco", task=task, learners=2, steps=24)
    assert sorted(final_model(result.folder)) == sorted(f"layer-{i}" for i in range(6))
    model = load(result.folder, task)
    np.testing.assert_array_equal(model["bias-0"], np.zeros(6))


def test_the_layout_is_of_merged_leaves_with_their_rules() -> None:
    assert layout(TASK) == (
        TensorSpec("params/head", (64, 4), "float32", "average"),
        TensorSpec("params/hidden", (16, 64), "bfloat16", "rda"),
        TensorSpec("stats/mean", (64,), "float32", "mean"),
        TensorSpec("stats/variance", (64,), "float32", "mean"),
    )


LAYOUT = [each.name for each in fields(TaskLayout)]


def changed(**more: Any) -> StepTask:
    return replace(TASK, **more)


def stepping(change: Any) -> StepTask:
    """The task, with what its step returns changed."""

    def step(state: Any, batch: Any, now: Any) -> Any:
        return change(*TASK.step(state, batch, now))

    return changed(step=step)


def refusals() -> Iterator[tuple[Task, str]]:
    yield stepping(lambda state, told: state), "a state and a dict of scalars, found dict"
    wide = stepping(lambda state, told: ({**state, "params": wider(state["params"])}, told))
    yield wide, r"'?params/head float32\[64, 4\] becomes params/head float32\[65, 4\]"
    double = stepping(lambda state, told: ({**state, "stats": jax.tree.map(jnp.float16, state["stats"])}, told))
    yield double, r"stats/mean float32\[64\] becomes stats/mean float16\[64\]"
    yield stepping(lambda state, told: ({**state, "more": 1}, told)), "becomes more int"
    yield stepping(lambda state, told: (state, told["loss"])), "a dict of scalars with a 'loss'"
    yield stepping(lambda state, told: (state, {"accuracy": 1.0})), r"with a 'loss', found \['accuracy'\]"
    yield (
        stepping(lambda state, told: (state, {**told, "all": jnp.ones(3)})),
        r"one number for 'all', found float32\[3\]",
    )
    yield stepping(lambda state, told: (state, {f"{i}": told["loss"] for i in range(40)} | told)), "at most 32 scalars"
    yield changed(evaluate=lambda state, batch: {"loss": batch["y"]}), r"task.evaluate.*one scalar of a floating dtype"
    yield (
        changed(restart=lambda state, key: state["params"]),
        r"task.restart\(state, key\): expected a state of the form",
    )
    yield changed(merge={"params/*": "rda"}), "a rule for every leaf, found none for 'average/head'"
    yield changed(merge={"parms/**": "rda", "**": "local"}), r"found 'parms/\*\*'.\n  Did you mean 'params/\*\*'"
    yield changed(merge={"**": "local"}), "at least one leaf that is merged"
    yield changed(merge={"moments/**": "mean", "**": "local"}), "in 'moments/0/count', which is merged, found int32"
    yield (
        changed(load=lambda path, shape: np.ones(3)),
        r"task.load\('params/head', float32\[64, 4\]\).*found float64\[3\]",
    )
    yield changed(load=lambda path, shape: NOTHING[path]), r"task.load\('params/head'.*KeyError: 'params/head'"


NOTHING: Mapping[str, Any] = {}


def wider(params: Any) -> Any:
    return {**params, "head": jnp.ones((65, 4))}


@pytest.mark.parametrize(("task", "told"), [pytest.param(*each, id=each[1][:30]) for each in refusals()])
def test_what_does_not_fit_is_refused_before_the_start(task: StepTask, told: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        layout(task)


def test_a_task_has_a_loss_or_a_step_and_the_layout_in_any_case() -> None:
    assert {each.name for each in fields(Task)} - set(LAYOUT) == {"init", "loss", "batch", "optimizer"}
    assert {each.name for each in fields(StepTask)} - set(LAYOUT) == {"init", "step", "evaluate", "batch", "restart"}
    with pytest.raises(ConfigError, match="a function evaluate"):
        changed(evaluate=None)
    with pytest.raises(ConfigError, match="a function loss"):
        Task(TASK.init, None, TASK.batch, tokens_per_batch=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="restart"):
        Task(TASK.init, abs, TASK.batch, tokens_per_batch=1, restart=abs)  # type: ignore[call-arg]


def test_two_tasks_of_a_step_are_compared_by_what_they_compute() -> None:
    assert list(differences(TASK, changed(), 0)) == []
    other = stepping(lambda state, told: (state, {**told, "loss": 2 * told["loss"]}))
    assert list(differences(TASK, other, 0)) == ["step"]
    assert list(differences(TASK, changed(restart=None), 0)) == ["restart"]
    assert list(differences(TASK, changed(merge={"**": "local"}), 0)) == ["merge"]
