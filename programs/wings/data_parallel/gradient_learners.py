"""Which learner a task gets in programs that average gradients: its own, or the one in jax, which is imported then."""

from __future__ import annotations

from typing import Any

from isthmus.ops.data.batches import first_batch
from isthmus.ops.gang.mesh_island import LearnerDevices
from isthmus.ops.island.contract import GradientLearning, GradientSource, LearnerSource


def prepare_gradient_learner(task: Any) -> None:
    """As `prepare_learner` of `contract`, for learners that average gradients."""
    if isinstance(task, LearnerSource):
        task.prepare()
        return
    from isthmus.programs.wings.data_parallel.jax_gradients import trace

    trace(task, first_batch(task, 0))


def gradient_learner_of(task: Any, seed: int, batch: Any, island: LearnerDevices | None) -> GradientLearning:
    """The gradient learner of a task, created in the thread that will call it, for batches of the shape of `batch`."""
    if isinstance(task, GradientSource):
        return task.gradient_learner(seed)
    from isthmus.ops.island.life import lower_priority

    lower_priority()  # Before jax makes its threads, which inherit it.
    from isthmus.programs.wings.data_parallel.jax_gradients import GradientLearner

    return GradientLearner(task, seed, batch, island)
