"""What inner-step needs of whatever trains, and evaluation of whatever evaluates: the seam between node and device.

A task may bring its own, by functions `learner(fragments, *, seed, alpha)`, `gradient_learner(seed)` and
`evaluator(seed)`; that of every other task is the one in jax (`training`), which is imported only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from isthmus.ops.fragment import Fragment
from isthmus.ops.items import Vector


class Learning(Protocol):
    """The state of one learner. The parameters are zeros before `begin`, or until all have been adopted: then
    `reset_moments` makes the state whole."""

    @property
    def device_kind(self) -> str:
        """What the accelerator calls itself."""

    def begin(self) -> None:
        """Make the first parameters of the task, the same for the same seed."""

    def compile(self, batch: Any) -> None:
        """Make ready everything that will be called, by a batch of the kind that will come."""

    def step(self, batch: Any, progress: float) -> Any:
        """One inner step, at this share of the budget; its loss. Both may still be on their way, no step before is."""

    def extract(self, fragment: int) -> Any:
        """The values of a fragment after the steps so far, float32[n], in memory of their own."""

    def adopt(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`."""

    def replace(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by `values`, whatever it was."""

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all parameters by a tree of the same structure."""

    def copy(self) -> Any:
        """A copy of all parameters after the steps so far, for `tree`."""

    def tree(self, leaves: Any) -> Any:
        """A copy as the task's tree, in NumPy arrays of its own."""

    def reset_moments(self) -> None:
        """Start the optimizer anew at the present parameters."""


class GradientLearning(Protocol):
    """The state of one learner of a program that averages gradients at every step."""

    @property
    def device_kind(self) -> str:
        """What the accelerator calls itself."""

    def gradient(self, batch: Any) -> tuple[float, Vector]:
        """The loss of a batch and its gradient, as one vector."""

    def apply(self, vector: Vector, progress: float) -> None:
        """Step along a gradient, at this share of the budget."""

    def tree(self) -> Any:
        """The parameters as the task's tree, in NumPy arrays of their own."""

    def state(self) -> list[Any]:
        """All that another learner needs to go on from here."""

    def restore(self, state: Sequence[Any]) -> None:
        """Take the state of another learner."""


class Evaluating(Protocol):
    """The mean loss of a task over its evaluation batches."""

    def loss(self, parameters: Any) -> float:
        """Of a tree of parameters, in the task's own unit."""

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Any:
        """The parameter tree that the fragments make up, in NumPy arrays."""


def learner_of(task: Any, fragments: Sequence[Fragment], *, seed: int, alpha: float) -> Learning:
    """The learner of a task, in the thread that will call it."""
    if hasattr(task, "learner"):
        own: Learning = task.learner(fragments, seed=seed, alpha=alpha)
        return own
    from isthmus.ops.turnstile import give_way

    give_way()  # Before jax makes its threads, which inherit it.
    from isthmus.ops.training import Learner

    return Learner(task, fragments, seed=seed, alpha=alpha)


def gradient_learner_of(task: Any, seed: int, batch: Any) -> GradientLearning:
    """The gradient learner of a task, in the thread that will call it; `batch` is one of the kind that will come."""
    if hasattr(task, "gradient_learner"):
        own: GradientLearning = task.gradient_learner(seed)
        return own
    from isthmus.ops.turnstile import give_way

    give_way()  # Before jax makes its threads, which inherit it.
    from isthmus.ops.gradient_learner import GradientLearner

    return GradientLearner(task, seed, batch)


def evaluation_of(task: Any, seed: int) -> Evaluating:
    """The evaluation of a task."""
    if hasattr(task, "evaluator"):
        own: Evaluating = task.evaluator(seed)
        return own
    from isthmus.ops.training import Evaluation

    return Evaluation(task, seed)


def first_parameters_of(task: Any, seed: int) -> Any:
    """What `begin` gives every learner of the task, as its tree."""
    if hasattr(task, "learner"):
        own: Learning = task.learner((), seed=seed, alpha=0.0)
        own.begin()
        return own.tree(own.copy())
    import jax

    from isthmus.ops.training import functions_of

    functions = functions_of(task, (), 0.0)
    return jax.tree.unflatten(functions.treedef, functions.first(jax.random.key(seed)))
