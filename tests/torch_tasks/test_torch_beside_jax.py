"""The same model in PyTorch and in jax, behind the same seam: what the first steps of both compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
import torch

from isthmus import Task
from isthmus.ops import transformer
from isthmus.ops.data.batches import At
from isthmus.ops.data.positions import Step
from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.island.contract import evaluation_of
from isthmus.ops.island.kind import LearnerParts, SoleKind
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.task_checks import layout_of
from isthmus.torch import Task as TorchTask
from tests.torch_tasks.torch_models import EXAMPLE

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LR = 0.1
CONFIG = transformer.ModelConfig()


def batch(at: At) -> Any:
    """Text that can be learned: runs of a few letters."""
    rng = at.rng()
    return {"tokens": (97 + np.sort(rng.integers(0, 8, (8, 65)), 1)).astype(np.uint8)}


@pytest.fixture(scope="module")
def tasks() -> tuple[Any, Any]:
    """In jax and in torch, with plain gradient descent."""
    nano = reference.load(f"{EXAMPLE}:Nano", "Loading the example")
    loss = reference.load(f"{EXAMPLE}:cross_entropy", "Loading the example")
    merge = {"embedding": "average", "head": "average", "**": "rda"}
    common: dict[str, Any] = {"tokens_per_batch": 512, "merge": merge, "evaluation": 2}
    in_jax = Task(
        lambda key: transformer.init(CONFIG, key),
        lambda params, given: transformer.loss(CONFIG, params, given),
        batch,
        optimizer=optax.sgd(LR),
        **common,
    )
    in_torch = TorchTask(
        nano, loss, batch, optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=LR), **common
    )
    return in_jax, in_torch


@pytest.fixture(scope="module")
def fragments(tasks: tuple[Any, Any]) -> tuple[Fragment, ...]:
    return partition(layout_of(tasks[0], 0), 3)


def test_both_have_one_layout(tasks: tuple[Any, Any]) -> None:
    ones, others = (sorted(layout_of(task, 0), key=lambda spec: spec.name) for task in tasks)
    assert ones == others


def learner_of(task: Any, fragments: tuple[Fragment, ...]) -> Any:
    parts = LearnerParts(task, fragments, LearnerLife(0, 0, 1))
    learner = SoleKind(None).learner(parts, lambda: Step(0), lambda: 0)
    learner.compile(batch(At(0, 0, 0)))
    return learner


def test_first_step_and_twenty_are_alike(tasks: tuple[Any, Any], fragments: tuple[Fragment, ...]) -> None:
    jax_learner, torch_learner = (learner_of(task, fragments) for task in tasks)
    jax_learner.begin()
    for fragment in fragments:
        torch_learner.replace(fragment.index, np.array(jax_learner.extract(fragment.index)))
    torch_learner.restart()
    losses = [
        [float(np.asarray(learner.step(batch(At(0, 0, position)), 0.0)["loss"])) for position in range(20)]
        for learner in (jax_learner, torch_learner)
    ]
    assert abs(losses[0][0] - losses[1][0]) < 1e-5
    np.testing.assert_allclose(*losses, atol=1e-4, rtol=0)
    assert losses[0][-1] < losses[0][0] - 1.0
    for fragment in fragments:
        ones, others = (np.asarray(each.extract(fragment.index)) for each in (jax_learner, torch_learner))
        np.testing.assert_allclose(ones, others, atol=1e-3, rtol=0)


def test_evaluations_are_alike(tasks: tuple[Any, Any], fragments: tuple[Fragment, ...]) -> None:
    learner = learner_of(tasks[0], fragments)
    learner.begin()
    values = {fragment.index: np.array(learner.extract(fragment.index)) for fragment in fragments}
    found = []
    for task in tasks:
        evaluation = evaluation_of(task, 0)
        found.append(evaluation.metrics(evaluation.assemble(fragments, values))["loss"])
    assert abs(found[0] - found[1]) < 1e-5
