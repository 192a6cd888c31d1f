"""The sizes of a request's model, by shapes alone: its parameters, and the least that a learner has in memory.

Of a task in jax it runs the optimizer on shapes, any other says its own figure.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

from isthmus.programs.task import AnyTask, OwnTask

if TYPE_CHECKING:
    from isthmus.programs.engine.request.request import Request

FLOAT32_BYTES: Final = 4


def learner_bytes(request: Request) -> int:
    """Minimum bytes of a learner on its island: its state, and a gradient of the merged leaves. No activations.

    Where slots train different tasks, of the one that needs most.
    """
    return max(_task_bytes(request, task) for task in request.tasks.values())


def _task_bytes(request: Request, task: AnyTask) -> int:
    if isinstance(task, OwnTask):
        return task.learner_bytes()
    import jax

    recipe = task.recipe()
    state = jax.eval_shape(recipe.state_of, recipe.shapes())
    merged = sum(prod(tensor.shape) * _itemsize(tensor.dtype) for tensor in request.job.layout)
    return merged + sum(map(_size_bytes, jax.tree.leaves(state)))


def parameter_count(request: Request) -> int:
    """The number of the model's parameters."""
    return sum(prod(tensor.shape) for tensor in request.job.layout)


def _itemsize(dtype: str) -> int:
    import jax.numpy as jnp

    return int(jnp.dtype(dtype).itemsize)


def _size_bytes(array: Any) -> int:
    return int(array.size) * int(array.dtype.itemsize)
