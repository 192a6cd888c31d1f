"""Counters of a state, such as the count of a schedule: where moments begin anew they go on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus.ops.exchange.merge_rules import LOCAL
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.recipe import Recipe, counters, of_loss, of_step
from tests.ops.bodies import SmallTask, fragments_of

RATE = optax.linear_schedule(0.5, 0.0, 10)
LIFE = LearnerLife(0, 0, 1)


class Bare(SmallTask):
    """The model is one array."""

    def init(self, key: Any) -> Any:
        return jax.random.normal(key, (4, 3))

    def loss(self, params: Any, batch: Any) -> Any:
        return self.factor * jnp.mean((batch["x"] @ params - batch["y"]) ** 2)


def named(optimizer: Any, task: Any) -> tuple[Any, list[int], list[int]]:
    recipe: Recipe = of_loss(task.init, task.loss, optimizer)
    leaves = named_leaves(jax.eval_shape(recipe.state_of, recipe.shapes()))
    count = len(recipe.leaves())
    return leaves, list(range(count)), list(range(count, len(leaves)))


@pytest.mark.parametrize("task", [SmallTask(), Bare()])
@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [
        (optax.sgd(RATE), 1),
        (optax.sgd(RATE, momentum=0.9), 1),
        (optax.adam(1e-2), 0),  # Its count corrects the bias of the moments, and is as old as they.
        (optax.adamw(RATE), 1),
        (optax.inject_hyperparams(optax.sgd)(RATE), 2),
        (optax.MultiSteps(optax.sgd(RATE), 3), 1),  # Those of the gradients accumulated so far begin anew with them.
        (optax.scale_by_adam(), 0),
    ],
)
def test_an_integer_goes_on_unless_it_is_kept_beside_moments(optimizer: Any, kept: int, task: Any) -> None:
    leaves, merged, local = named(optimizer, task)
    assert len(counters(leaves, merged, local)) == kept


def counts(learner: Learner) -> list[int]:
    return [int(learner._local[k]) for k in learner._functions.counters]


def learner_of(task: Any) -> Learner:
    learner = Learner(task, fragments_of(task, 1), life=LIFE)
    learner.begin()
    return learner


def test_a_schedule_that_has_come_to_its_end_stays_there_when_moments_begin_anew() -> None:
    task = SmallTask(optimizer=optax.adamw(RATE))
    learner, batch = learner_of(task), task.batch(_at())
    for _ in range(12):
        learner.step(batch, 0.0)
    before = [np.array(leaf) for leaf in learner._leaves]
    learner.restart()
    assert counts(learner) == [12]
    learner.step(batch, 0.0)
    for leaf, was in zip(learner._leaves, before, strict=True):
        np.testing.assert_allclose(np.array(leaf), was, atol=1e-6)


def _at() -> Any:
    from isthmus.ops.data.batches import At

    return At(0, 0, 0)


def test_a_life_that_finds_nothing_counts_from_the_steps_of_its_slot() -> None:
    """Where gradients are accumulated, the count of the schedule is not the number of steps."""
    task = SmallTask(optimizer=optax.MultiSteps(optax.sgd(RATE), 3).gradient_transformation())
    there, anew = learner_of(task), learner_of(task)
    batch = task.batch(_at())
    anew.compile(batch)
    for _ in range(8):
        there.step(batch, 0.0)
    anew.count_from(8)
    assert counts(anew) == counts(there)
    assert counts(anew) == [2]


def test_a_task_of_a_step_has_counters_and_its_restart_gets_them() -> None:
    seen: list[Any] = []

    def init(key: Any) -> Any:
        return {"w": jnp.ones(3), "moment": jnp.zeros(3), "step": 0}

    def step(state: Any, batch: Any, now: Any) -> Any:
        return {**state, "step": state["step"] + 1}, {"loss": jnp.sum(state["w"])}

    def restart(state: Any, key: Any) -> Any:
        seen.append(state["step"])
        return {**state, "moment": state["moment"] + 1}

    class Own:
        tokens_per_batch = 1

        def recipe(self) -> Recipe:
            return of_step(init, step, lambda state, batch: {"loss": 0.0}, (("w", "rda"), ("**", LOCAL)), restart)

    learner = Learner(Own(), (), life=LIFE)
    learner.compile(np.ones(2, np.float32))
    learner.begin()
    for _ in range(4):
        learner.step(np.ones(2, np.float32), 0.0)
    learner.restart()
    assert counts(learner) == [4]
    learner.count_from(9)
    assert counts(learner) == [9]
