"""Learners of tasks that bring their step: what is merged and what stays, random keys, restarts, loads, precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.merge_rules import LOCAL
from isthmus.ops.exchange.messages import Capture
from isthmus.ops.island.functions import functions_of
from isthmus.ops.island.jax_evaluation import JaxEvaluation
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.recipe import Recipe, of_step
from isthmus.ops.learner.fragment_send import FragmentSend
from tests.ops.bodies import Spec

RULES = (("w", "rda"), ("stats/*", "mean"), ("**", LOCAL))


def init(key: Any) -> Any:
    return {
        "w": jax.random.normal(key, (4,), jnp.bfloat16),
        "stats": {"mean": jnp.zeros(2)},
        "key": key,
        "count": 0,
        "twin": jax.random.normal(key, (4,), jnp.bfloat16),
    }


def step(state: Any, batch: Any, now: Any) -> tuple[Any, Mapping[str, Any]]:
    """What is drawn is told, by the step's key and by the state's own."""
    drawn = jax.random.uniform(now.key)
    own = jax.random.uniform(jax.random.fold_in(state["key"], state["count"]))
    stepped = {**state, "w": state["w"] * jnp.bfloat16(0.5), "count": state["count"] + 1}
    return stepped, {"loss": jnp.sum(batch), "drawn": drawn, "own": own, "progress": now.progress}


def evaluate(state: Any, batch: Any) -> Mapping[str, Any]:
    return {"loss": jnp.sum(state["w"].astype(jnp.float32)), "mean": batch * state["stats"]["mean"].sum()}


@dataclass(frozen=True, eq=False)
class StepTask:
    more: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self) -> Recipe:
        return of_step(init, step, evaluate, RULES, **self.more)

    def evaluation_batches(self, seed: int, path: int = 0) -> Any:
        return iter([np.float32(1.0), np.float32(3.0)])


BATCH = np.ones(2, np.float32)


def fragments_of(task: StepTask) -> Any:
    leaves = [leaf for leaf in task.recipe().leaves() if leaf.kind != LOCAL]
    return partition([Spec(leaf.name, leaf.shape.shape, str(leaf.shape.dtype), leaf.kind) for leaf in leaves], 2)


FIRST = LearnerLife(7, 0, 1)


def begun(task: StepTask, life: LearnerLife = FIRST) -> Learner:
    learner = Learner(task, fragments_of(task), life=life)
    learner.compile(BATCH)
    learner.begin()
    return learner


def drawn(learner: Learner, name: str, steps: int = 3) -> list[float]:
    return [float(learner.step(BATCH, 0.25)[name]) for _ in range(steps)]


def local(learner: Learner) -> dict[str, Any]:
    """The local leaves of a learner: count, key, twin, in the order of their names."""
    return dict(zip(("count", "key", "twin"), map(np.asarray, learner._local), strict=True))


def test_only_merged_leaves_are_in_fragments_and_copies() -> None:
    learner = begun(StepTask())
    tree = learner.tree(learner.copy())
    assert {name: (leaf.dtype, leaf.shape) for name, leaf in tree.items()} == {
        "stats/mean": (np.float32, (2,)),
        "w": (jnp.bfloat16, (4,)),
    }
    payloads = [np.asarray(learner.extract(p)) for p in range(2)]
    assert sorted((payload.size, payload.dtype.name) for payload in payloads) == [(2, "float32"), (4, "float32")]
    learner.adopt_tree({name: leaf + np.ones((), leaf.dtype) for name, leaf in tree.items()})
    np.testing.assert_array_equal(learner.tree(learner.copy())["stats/mean"], np.ones(2, np.float32))


def test_a_steps_scalars_come_by_name_and_its_progress_is_the_runs() -> None:
    metrics = begun(StepTask()).step(BATCH, 0.25)
    assert sorted(metrics) == ["drawn", "loss", "own", "progress"]
    assert (float(metrics["loss"]), float(metrics["progress"])) == (2.0, 0.25)


@pytest.mark.parametrize("name", ["drawn", "own"])
def test_random_numbers_differ_by_slot_life_step_and_seed_and_are_the_same_again(name: str) -> None:
    task = StepTask()
    lives = [
        LearnerLife(7, 0, 1),
        LearnerLife(7, 1, 1),
        LearnerLife(7, 0, 2),
        LearnerLife(8, 0, 1),
        LearnerLife(7 + (1 << 40), 0, 1),
    ]
    found = [value for life in lives for value in drawn(begun(task, life), name)]
    assert len(set(found)) == len(found) == 15
    assert drawn(begun(task), name) == found[:3]


@pytest.mark.slow
def test_a_life_begins_with_the_local_leaves_of_the_runs_first_model() -> None:
    """The twin of what is merged is its twin in every slot, and not another draw."""
    twins = [local(begun(StepTask(), life))["twin"] for life in (LearnerLife(7, 0, 1), LearnerLife(7, 3, 2))]
    first = np.asarray(jax.jit(init)(jax.random.key(7))["w"])
    for twin in twins:
        np.testing.assert_array_equal(twin, first)


@pytest.mark.slow
def test_a_restart_makes_local_leaves_of_the_merged_ones_and_nothing_else() -> None:
    def restart(state: Any, key: Any) -> Any:
        return {**state, "twin": state["w"], "count": state["count"] + 5, "w": state["w"] + 1}

    learner = begun(StepTask({"restart": restart}))
    drawn(learner, "own")
    values = np.array(learner.copy()[1])
    before = local(learner)
    learner.restart()
    after = local(learner)
    assert (before["count"], after["count"]) == (8, 13), "a counter goes on, and is given to restart"
    np.testing.assert_array_equal(after["twin"], values)
    np.testing.assert_array_equal(np.asarray(learner.copy()[1]), values)
    assert not np.array_equal(before["key"], after["key"])  # Or masks would come again, in the same order.


def test_the_state_is_given_away_and_no_leaf_of_it_twice() -> None:
    learner = begun(StepTask({"restart": lambda state, key: {**state, "twin": state["w"]}}))
    before = [*learner._leaves, *learner._local]
    drawn(learner, "own", 1)
    assert all(leaf.is_deleted() for leaf in before)


def test_what_is_loaded_is_what_a_learner_begins_with_and_init_gives_the_rest() -> None:
    asked = []

    def load(path: str, shape: Any) -> Any:
        asked.append((path, shape.shape, str(shape.dtype)))
        return np.full(4, 3.0, np.float64) if path == "w" else None

    tree = begun(StepTask({"load": load}))
    tree = tree.tree(tree.copy())
    assert asked == [("stats/mean", (2,), "float32"), ("w", (4,), "bfloat16")]
    np.testing.assert_array_equal(tree["w"], np.full(4, 3.0, jnp.bfloat16))
    np.testing.assert_array_equal(tree["stats/mean"], np.zeros(2))


def test_what_adoption_rounds_away_is_not_counted_as_training() -> None:
    """A learner of bfloat16 leaves that has not stepped has nothing to say of any value."""
    task = StepTask()
    fragments, learner = fragments_of(task), begun(task)
    send = FragmentSend(fragments)
    rng = np.random.default_rng(0)
    for p, fragment in enumerate(fragments):
        published = rng.standard_normal(fragment.size).astype(np.float32)
        learner.adopt(p, published)
        values = learner.extract(p)
        capture: Any = {**dict.fromkeys(Capture.__annotations__), "begin": 0, "end": 8, "steps": 1}
        (((_, answer),),) = send({"any": {**capture, "fragment": p, "round": 1, "values": values, "anchor": published}})
        np.testing.assert_array_equal(answer["gradient"], np.zeros(fragment.size, np.float32))
        is_rounded = {unit.dtype for unit in fragment.units} == {"bfloat16"}
        assert bool((np.asarray(values) != published).any()) is is_rounded


def test_evaluation_takes_the_merged_leaves_and_local_ones_of_init() -> None:
    task = StepTask()
    evaluation = JaxEvaluation(task, 7)
    values = {"w": np.full(4, 0.5, jnp.bfloat16), "stats/mean": np.ones(2, np.float32)}
    assert evaluation.metrics(values) == {"loss": 2.0, "mean": 4.0, "loss_error": 0.0}
    fragments = fragments_of(task)
    payloads = {fragment.index: np.full(fragment.size, 0.25, np.float32) for fragment in fragments}
    tensors = evaluation.assemble(fragments, payloads)
    assert {name: str(leaf.dtype) for name, leaf in tensors.items()} == {"stats/mean": "float32", "w": "bfloat16"}
    assert evaluation.metrics(tensors)["loss"] == 1.0


def test_everything_is_traced_without_a_device() -> None:
    task = StepTask()
    functions_of(task, fragments_of(task), 0.5).trace(BATCH)


def test_what_was_traced_before_there_was_a_device_is_what_a_learner_calls() -> None:
    task = StepTask()
    fragments = fragments_of(task)
    traced = functions_of(task, fragments, 0.5)
    assert functions_of(task, fragments, 0.5, None) is traced
