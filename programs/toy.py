"""A task in plain NumPy, small enough that a whole run of it costs a fraction of a second: what the simulator trains.

Least squares without data: every parameter is drawn to its own target, and each batch disturbs the gradient. It brings
its own learner and evaluation (`ops.learning`), so that nothing here imports or compiles jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from isthmus.ops.data import At
from isthmus.ops.fragment import Fragment
from isthmus.ops.items import Vector
from isthmus.programs.program import Program
from isthmus.programs.recording import with_recorder
from isthmus.runtime.graph import Graph, Job, Reference, TensorSpec

LAYOUT: Final = (
    TensorSpec("embedding", (6, 4), "float32", averaged=True),
    TensorSpec("first", (4, 5), "float32"),
    TensorSpec("norm", (5,), "float32"),
    TensorSpec("second", (5, 3), "float32"),
)
TOKENS_PER_BATCH: Final = 8
LR: Final = np.float32(0.1)
REFERENCE: Final = Reference("isthmus.programs.toy:TOY")
Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True, slots=True)
class Toy:
    """The task."""

    tokens_per_batch: int = TOKENS_PER_BATCH

    def batch(self, at: At) -> dict[str, Any]:
        """The disturbance of one step."""
        return {"noise": np.float32(0.05) * at.rng().standard_normal(4, np.float32)}

    def learner(self, fragments: Sequence[Fragment], *, seed: int, alpha: float) -> ToyLearner:
        """The learner of this task."""
        return ToyLearner(tuple(fragments), seed, np.float32(alpha))

    def evaluator(self, seed: int) -> ToyEvaluation:
        """The evaluation of this task."""
        return ToyEvaluation()


TOY: Final = Toy()


@dataclass(slots=True)
class ToyLearner:
    """Gradient descent without momentum."""

    fragments: tuple[Fragment, ...]
    seed: int
    alpha: np.float32
    device_kind: str = "toy"
    tensors: Tensors = field(default_factory=lambda: {each.name: np.zeros(each.shape, np.float32) for each in LAYOUT})

    def begin(self) -> None:
        """First parameters."""
        rng = np.random.default_rng(self.seed)
        self.tensors = {each.name: rng.standard_normal(each.shape, np.float32) for each in LAYOUT}

    def compile(self, batch: Any) -> None:
        """Nothing is to be compiled."""

    def step(self, batch: Any, progress: float) -> float:
        """One inner step; the loss before it."""
        loss = loss_of(self.tensors)
        noise = batch["noise"]
        self.tensors = {
            name: tensor - LR * (tensor - np.float32(1.0) + noise[i])
            for i, (name, tensor) in enumerate(self.tensors.items())
        }
        return loss

    def extract(self, fragment: int) -> Vector:
        """The values of a fragment."""
        units = self.fragments[fragment].units
        return np.concatenate([np.ravel(self.tensors[unit.tensor][unit.start : unit.stop]) for unit in units])

    def adopt(self, fragment: int, values: Vector) -> None:
        """Blend a fragment in."""
        self.replace(
            fragment, self.alpha * self.extract(fragment) + (1 - self.alpha) * values if self.alpha else values
        )

    def replace(self, fragment: int, values: Vector) -> None:
        """Write a fragment."""
        self.tensors = self.copy()
        _write(self.fragments[fragment], values, self.tensors)

    def adopt_tree(self, parameters: Any) -> None:
        """Replace everything."""
        self.tensors = {name: np.array(tensor) for name, tensor in parameters.items()}

    def copy(self) -> Tensors:
        """A copy of everything."""
        return {name: tensor.copy() for name, tensor in self.tensors.items()}

    def tree(self, leaves: Any) -> Tensors:
        """The copy itself."""
        copied: Tensors = leaves
        return copied

    def reset_moments(self) -> None:
        """There are none."""


class ToyEvaluation:
    """The loss itself: there is no held-out data."""

    def loss(self, parameters: Any) -> float:
        """Of all tensors."""
        return loss_of(parameters)

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Tensors:
        """All tensors, from the fragments."""
        tensors = {each.name: np.zeros(each.shape, np.float32) for each in LAYOUT}
        for fragment in fragments:
            _write(fragment, values[fragment.index], tensors)
        return tensors


def loss_of(tensors: Tensors) -> float:
    """Half the mean squared distance from the target, in which every value is 1."""
    total = sum(float(np.square(tensor - np.float32(1.0)).sum()) for tensor in tensors.values())
    return 0.5 * total / sum(tensor.size for tensor in tensors.values())


def graph_of(program: Program, *, learners: int, steps: int, seed: int) -> Graph:
    """The graph of a program that trains this task for so many steps a learner; ConfigError for settings out of
    range."""
    settings = {**program.schema().read(program.settings)}
    job = Job(
        program=program.reference,
        task=REFERENCE,
        layout=LAYOUT,
        tokens_per_batch=TOKENS_PER_BATCH,
        tokens=TOKENS_PER_BATCH * learners * steps,
        learners=learners,
        seed=seed,
        settings=MappingProxyType(settings),
    )
    graph = program.build(job)
    with_recorder(graph, job)
    return graph


def _write(fragment: Fragment, values: Vector, tensors: Tensors) -> None:
    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        tensor = tensors[unit.tensor]
        tensor[unit.start : unit.stop] = values[begin:end].reshape(unit.values_shape)
