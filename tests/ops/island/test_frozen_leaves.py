"""Frozen leaves of a task in jax: they take no step, no optimizer keeps anything of them, and no life leaves them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import At, Task
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.frozen_leaves import FrozenLeafError, check, difference, digests_of
from isthmus.ops.island.contract import evaluation_of
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.engine.request.task_checks import frozen_of, layout_of

BASE = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)


def init(key: Any) -> Any:
    base = {"codes": jnp.zeros((4, 4), jnp.int8), "scale": jax.random.normal(jax.random.key(3), (4,))}
    return {"base": base, "down": jax.random.normal(key, (4, 2)), "up": jnp.zeros((2, 4))}


def loss(params: Any, batch: Any) -> Any:
    weight = params["base"]["codes"].astype(jnp.float32) * params["base"]["scale"] + params["down"] @ params["up"]
    return jnp.mean((batch["x"] @ weight - batch["x"]) ** 2)


def batch(at: At) -> Any:
    return {"x": at.rng().normal(size=(8, 4)).astype(np.float32)}


def load(path: str, shape: Any) -> Any:
    return BASE if path == "base/codes" else None


TASK = Task(
    init,
    loss,
    batch,
    tokens_per_batch=8,
    evaluation=2,
    optimizer=optax.adamw(1e-2, weight_decay=0.1),
    merge={"base/**": "frozen", "**": "rda"},
    load=load,
)
FRAGMENTS = partition(layout_of(TASK, 0), 1)


def learner_of(incarnation: int = 1) -> Learner:
    learner = Learner(TASK, FRAGMENTS, life=LearnerLife(0, 0, incarnation))
    learner.compile(batch(At(0, 0, 0)))
    learner.begin()
    return learner


def frozen_leaves(learner: Learner) -> list[Any]:
    return [np.array(each) for each in learner._held_frozen()]


@pytest.mark.slow
def test_only_what_is_trained_is_exchanged_and_kept() -> None:
    assert [spec.name for spec in layout_of(TASK, 0)] == ["down", "up"]
    assert FRAGMENTS[0].size == 16
    learner = learner_of()
    for position in range(3):
        learner.step(batch(At(0, 0, position)), 0.0)
    scale = np.asarray(init(jax.random.key(0))["base"]["scale"])
    for found, expected in zip(frozen_leaves(learner), [BASE, scale], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert sum(np.asarray(each).nbytes for each in learner.local()) == 2 * 16 * 4 + 4  # Two moments and a count.
    assert sum(each.nbytes for each in learner.lend()) == 2 * 16 * 4 + 4
    assert (
        learner.frozen() == frozen_of(TASK, 0, computes=True) == digests_of({"base/codes": BASE, "base/scale": scale})
    )


def test_a_life_goes_on_from_what_another_has_left() -> None:
    one, other = learner_of(), learner_of(2)
    one.step(batch(At(0, 0, 0)), 0.0)
    assert other.take_own(one.own(whole=True))
    losses = [float(np.asarray(each.step(batch(At(0, 0, 1)), 0.0)["loss"])) for each in (one, other)]
    assert losses[0] == losses[1]
    one.restart()
    np.testing.assert_array_equal(frozen_leaves(one)[0], BASE)


def test_the_evaluation_has_them() -> None:
    learner, evaluation = learner_of(), evaluation_of(TASK, 0)
    values = {0: np.array(learner.extract(0))}
    found = evaluation.metrics(evaluation.assemble(FRAGMENTS, values))["loss"]
    model = {**init(jax.random.key(0)), "base": {**init(jax.random.key(0))["base"], "codes": jnp.asarray(BASE)}}
    expected = np.mean([float(loss(model, each)) for each in TASK.evaluation_batches(0)])
    assert found == pytest.approx(expected, rel=1e-6)


def test_others_are_refused_with_the_first_leaf() -> None:
    learner = learner_of()
    check(learner.frozen(), learner)
    changed = digests_of({"base/codes": BASE, "base/scale": np.zeros(4, np.float32)})
    with pytest.raises(FrozenLeafError, match=r"expected frozen leaf 'base/scale' with digest \w+, found frozen leaf"):
        check(changed, learner)
    with pytest.raises(FrozenLeafError, match="found no frozen leaf 'base/codes'"):
        check(learner.frozen(), object())
    check((), object())
    assert difference((), changed) == ("no frozen leaf 'base/codes'", difference(changed, ())[0])  # type: ignore[index]
    assert digests_of({"a": np.zeros(2, np.float32)}) != digests_of({"a": np.zeros((2, 1), np.float32)})
