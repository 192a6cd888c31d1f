"""The placement of a request on the machines of a cluster, with what its task needs of them.

Only here are the two brought together: `runtime.placement` knows no tasks, and a request knows no machines. It runs the
task's optimizer on shapes, so it imports jax.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from isthmus.programs.request import Request
from isthmus.programs.summary import roster_counts
from isthmus.runtime.placement import Placement, place
from isthmus.runtime.topology import LEARNER, Topology

FLOAT32_BYTES: Final = 4


def placed(request: Request, topology: Topology) -> Placement:
    """Where every replica of the request goes; PlacementError with everything that is in the way."""
    counts = roster_counts(request.graph, request.job.learners)
    return place(request.graph, counts, topology, memory_bytes={LEARNER: learner_bytes(request)})


def learner_bytes(request: Request) -> int:
    """What a learner holds on its island at least: parameters, gradient and optimizer state. No activations."""
    import jax

    params = jax.eval_shape(request.task.init, jax.random.key(request.job.seed))
    state = jax.eval_shape(request.task.optimizer.init, params)
    return 2 * parameter_count(request) * FLOAT32_BYTES + sum(map(_size_bytes, jax.tree.leaves(state)))


def parameter_count(request: Request) -> int:
    """The number of the model's parameters."""
    return sum(prod(tensor.shape) for tensor in request.job.layout)


def _size_bytes(array: Any) -> int:
    return int(array.size) * int(array.dtype.itemsize)
