"""The task of the simulator: in plain NumPy, small enough that a whole run of it costs a fraction of a second.

Least squares without data: every parameter is drawn to its own target, and each batch disturbs the gradient. It brings
its own learner and evaluation (`ops.island.contract`), so that nothing here imports or compiles jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.engine.recorder.roles import with_recorder
from isthmus.programs.engine.request.program import Program
from isthmus.programs.job import Job, TensorSpec
from isthmus.runtime.graph.template import Reference, Template

LAYOUT: Final = (
    TensorSpec("embedding", (6, 4), "float32", merge="average"),
    TensorSpec("first", (4, 5), "float32"),
    TensorSpec("norm", (5,), "float32"),
    TensorSpec("second", (5, 3), "float32"),
)
LAYOUT_WIDE: Final = (*LAYOUT[:3], TensorSpec("second", (5000, 3), "float32"))
"""60 kB more: enough to fill a slow link."""
LAYOUT_EVEN: Final = tuple(TensorSpec(f"layer{i}", (2500, 4), "float32") for i in range(8))
"""Eight fragments of 40 kB."""
TOKENS_PER_BATCH: Final = 8
LR: Final = np.float32(0.1)
Tensors: TypeAlias = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True, slots=True)
class Toy:
    """The task, with the parameters of a layout; `name` is its name in this module."""

    name: str
    layout: tuple[TensorSpec, ...]
    tokens_per_batch: int | tuple[int, ...] = TOKENS_PER_BATCH
    is_streamed: bool = False
    modules: tuple[int, ...] = ()
    site: SiteTerms | None = None

    @property
    def stream(self) -> Callable[[int, int, int], ToyStream] | None:
        """The source of batches, if not a function."""
        return partial(ToyStream, self) if self.is_streamed else None

    @property
    def reference(self) -> Reference:
        """The reference by which hosts load it."""
        return Reference(f"{__name__}:{self.name}")

    def batch(self, at: At) -> dict[str, Any]:
        """The disturbance of one step."""
        return {"noise": np.float32(0.05) * at.rng().standard_normal(4, np.float32)}

    def prepare(self) -> None:
        """No-op: everything is imported."""

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> ToyLearner:
        """The learner of this task."""
        return ToyLearner(self.layout, tuple(fragments), life.seed, np.float32(alpha))

    def gradient_learner(self, seed: int) -> ToyGradientLearner:
        """The learner of this task for programs that average gradients."""
        return ToyGradientLearner(self.layout, seed)

    def evaluator(self, seed: int) -> ToyEvaluation:
        return ToyEvaluation(self.layout)


TOY: Final = Toy("TOY", LAYOUT)
WIDE: Final = Toy("WIDE", LAYOUT_WIDE)
EVEN: Final = Toy("EVEN", LAYOUT_EVEN)
UNEVEN: Final = Toy("UNEVEN", LAYOUT, (8, 16, 4, 8))
"""Batches of several sizes: tokens, steps, and the weights of answers are not in proportion."""
TENFOLD: Final = Toy("TENFOLD", LAYOUT, (8, 8, 8, 80), site=SiteTerms("0" * 32, 2400, 600))
"""Of four sites, one of which has ten times the tokens a step."""
STREAMED: Final = Toy("STREAMED", LAYOUT, is_streamed=True)
"""Batches from a stream with a state."""
LAYOUT_LEVELS: Final = (LAYOUT[0], replace(LAYOUT[1], level=0), LAYOUT[2], replace(LAYOUT[3], level=1))
TWO_PATHS: Final = Toy("TWO_PATHS", LAYOUT_LEVELS, modules=(1, 2))
FOUR_PATHS: Final = Toy("FOUR_PATHS", LAYOUT_LEVELS, modules=(2, 2))
"""Models made of modules: with half of it shared, and with each module in two of the paths."""


def of_paths(learners: int) -> Toy:
    """The task whose model is made of modules, with as many paths as these learners can train."""
    return FOUR_PATHS if learners >= 4 else TWO_PATHS


class ToyStream:
    """The same disturbances, each with its position."""

    def __init__(self, task: Toy, slot: int, slots: int, seed: int) -> None:
        self._task, self._slot, self._seed, self._position = task, slot, seed, 0

    def __next__(self) -> dict[str, Any]:
        at = At(self._seed, self._slot, self._position)
        self._position += 1
        return {**self._task.batch(at), "position": np.int64(at.position)}

    def get_state(self) -> dict[str, int]:
        """The position of the stream."""
        return {"position": self._position}

    def set_state(self, state: dict[str, int]) -> None:
        """Go there."""
        self._position = state["position"]


@dataclass(slots=True)
class ToyLearner:
    """Gradient descent without momentum. `stepped` is its one local leaf, on which no step depends."""

    layout: tuple[TensorSpec, ...]
    fragments: tuple[Fragment, ...]
    seed: int
    alpha: np.float32
    device_kind: str = "toy"
    tensors: Tensors = field(init=False)
    stepped: int = 0

    def __post_init__(self) -> None:
        self.tensors = _zeros(self.layout)

    def begin(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.tensors = {each.name: rng.standard_normal(each.shape, np.float32) for each in self.layout}

    def compile(self, batch: Any) -> None:
        """No-op."""

    def step(self, batch: Any, progress: float) -> dict[str, float]:
        """Carry out one inner step; returns the loss before it."""
        loss = loss_of(self.tensors)
        noise = batch["noise"]
        self.stepped += 1
        self.tensors = {
            name: tensor - LR * (tensor - np.float32(1.0) + noise[i % 4])
            for i, (name, tensor) in enumerate(self.tensors.items())
        }
        return {"loss": loss}

    def extract(self, fragment: int) -> Vector:
        units = self.fragments[fragment].units
        return np.concatenate([np.ravel(self.tensors[unit.tensor][unit.start : unit.stop]) for unit in units])

    def adopt(self, fragment: int, values: Vector) -> None:
        self.replace(
            fragment, self.alpha * self.extract(fragment) + (1 - self.alpha) * values if self.alpha else values
        )

    def replace(self, fragment: int, values: Vector) -> None:
        self.tensors = self.copy()
        _write(self.fragments[fragment], values, self.tensors)

    def adopt_tree(self, parameters: Any) -> None:
        self.tensors = {name: np.array(tensor) for name, tensor in parameters.items()}

    def copy(self) -> Tensors:
        return {name: tensor.copy() for name, tensor in self.tensors.items()}

    def tree(self, leaves: Any) -> Tensors:
        copied: Tensors = leaves
        return copied

    def restart(self) -> None:
        """No-op: a count goes on."""

    def count_from(self, steps: int) -> None:
        self.stepped = steps

    def local(self) -> list[Any]:
        return [np.array(self.stepped)]

    def take_local(self, leaves: Sequence[Any]) -> bool:
        if [(leaf.shape, leaf.dtype.name) for leaf in leaves] != [((), "int64")]:
            return False
        self.stepped = int(leaves[0])
        return True

    def lend(self) -> list[Any]:
        return self.local()

    def borrow(self, leaves: Sequence[Any]) -> bool:
        return self.take_local(leaves)

    def own(self, *, whole: bool) -> list[Any]:
        return list(self.copy().values()) if whole else []

    def take_own(self, leaves: Sequence[Any]) -> bool:
        if leaves:
            self.tensors = {name: np.array(leaf) for name, leaf in zip(self.tensors, leaves, strict=True)}
        return True


class ToyGradientLearner:
    """The same descent, by gradients that leave as one vector."""

    device_kind: Final = "toy"

    def __init__(self, layout: tuple[TensorSpec, ...], seed: int) -> None:
        self._learner = ToyLearner(layout, (), seed, np.float32(0.0))
        self._learner.begin()

    def gradient(self, batch: Any) -> tuple[Mapping[str, float], Vector]:
        tensors, noise = self._learner.tensors, batch["noise"]
        parts = [np.ravel(tensor - np.float32(1.0) + noise[i % 4]) for i, tensor in enumerate(tensors.values())]
        return {"loss": loss_of(tensors)}, np.concatenate(parts)

    def apply(self, vector: Vector, progress: float) -> None:
        tensors, begin = {}, 0
        for name, tensor in self._learner.tensors.items():
            part = vector[begin : begin + tensor.size]
            tensors[name], begin = tensor - LR * part.reshape(tensor.shape), begin + tensor.size
        self._learner.tensors = tensors

    def tree(self) -> Tensors:
        """A copy of everything."""
        return self._learner.copy()

    def state(self) -> list[Any]:
        """The same, in the order of the layout."""
        return list(self.tree().values())

    def restore(self, state: Sequence[Any]) -> None:
        names = self._learner.tensors
        self._learner.tensors = {name: np.array(values) for name, values in zip(names, state, strict=True)}


@dataclass(frozen=True, slots=True)
class ToyEvaluation:
    """The loss itself: there is no held-out data."""

    layout: tuple[TensorSpec, ...]
    count: int = 1

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The loss of all tensors."""
        return {"loss": loss_of(tensors)}

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Tensors:
        tensors = _zeros(self.layout)
        for fragment in fragments:
            _write(fragment, values[fragment.index], tensors)
        return tensors


def loss_of(tensors: Tensors) -> float:
    """Half the mean squared distance from the target, in which every value is 1."""
    total = sum(float(np.square(tensor - np.float32(1.0)).sum()) for tensor in tensors.values())
    return 0.5 * total / sum(tensor.size for tensor in tensors.values())


def graph_of(program: Program, *, learners: int, steps: int, seed: int, task: Toy = TOY) -> Template:
    """The graph of a program that trains this task for `steps` a learner; ConfigError for settings out of range."""
    settings = {**program.schema().read(program.settings)}
    job = Job(
        program=program.reference,
        task=task.reference,
        layout=task.layout,
        tokens_per_batch=TOKENS_PER_BATCH,
        tokens_by_slot=task.tokens_per_batch if isinstance(task.tokens_per_batch, tuple) else (),
        tokens=TOKENS_PER_BATCH * learners * steps,
        learners=learners,
        seed=seed,
        settings=MappingProxyType(settings),
        modules=task.modules,
    )
    return with_recorder(program.build(job).freeze(), job)


def _zeros(layout: Sequence[TensorSpec]) -> Tensors:
    return {each.name: np.zeros(each.shape, np.float32) for each in layout}


def _write(fragment: Fragment, values: Vector, tensors: Tensors) -> None:
    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        tensor = tensors[unit.tensor]
        tensor[unit.start : unit.stop] = values[begin:end].reshape(unit.values_shape)
