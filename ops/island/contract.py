"""The interfaces of learners and evaluators: what inner-step and evaluation nodes require of the device side.

A learner holds merged leaves, which have names, travel in fragments, and are evaluated and saved; and local leaves,
which never leave it. A task may bring its own learner (`LearnerSource`, and for programs that average gradients
`GradientSource`); every other task gets the learner in jax (`jax_learner`), which is imported only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, final, runtime_checkable

from isthmus.ops.data.batches import first_batch
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.life import LeafPart, LearnerLife, Tensors
from isthmus.ops.island.scores import Parts


class Learning(Protocol):
    """The state of one learner, on an island of one process or of several.

    Its merged leaves are zeros before `begin`, or until all have been adopted: then `restart` completes the state.
    """

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""

    def begin(self) -> None:
        """Create the task's initial merged leaves, the same for the same seed, and the local leaves."""

    def compile(self, batch: Any) -> None:
        """Compile every function that will be called, for batches of the shape of `batch`."""

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """Perform one inner step at this share of the budget; returns its scalars, 'loss' among them.

        They may still be being computed; those of the step before are not.
        """

    def extract(self, fragment: int) -> Any:
        """The values of a fragment after the steps so far, float32[n], in memory of their own."""

    def adopt(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`."""

    def replace(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by `values`, regardless of its present values."""

    def restart(self) -> None:
        """Initialize the local leaves for the present merged leaves, but for counters, which go on."""

    def count_from(self, steps: int) -> None:
        """Initialize them, with counters as after `steps` steps of the slot in its lives before."""


@runtime_checkable
class Coding(Protocol):
    """A learner that may code outer gradients on its devices, before they are copied to the host."""

    codes: tuple[str, ...]
    """The formats that it codes itself."""

    def code(self, fragment: int, anchor: Vector, push: str) -> Codes:
        """The outer gradient of a fragment after the steps so far, from its anchor float32[n], in one of `codes`."""


class Codes(Protocol):
    """The codes of an outer gradient; they may still be on their way from the device."""

    def fetch(self) -> tuple[Any, Any, Any, str]:
        """(codes, scales, norms per unit, format), as an answer has them."""


@runtime_checkable
class Carrying(Protocol):
    """A learner that may keep work over an adoption on its devices."""

    def carry(self, fragment: int, values: Vector, since: Any) -> bool:
        """Replace a fragment by `values` plus itself minus `since`, an `extract` or an anchor of it, but means of
        values by `values` alone; False, and nothing is done, where that is to be computed on the host."""


class LastingLearning(Learning, Protocol):
    """The state of one learner whose local leaves can be read, and replaced by those of another life."""

    def local(self) -> Iterable[Any]:
        """The local leaves, in NumPy arrays of their own, each after the steps made when it is read; empty if none."""

    def take_local(self, leaves: Sequence[Any]) -> bool:
        """Replace the local leaves by `leaves`, in the form that `local` returns; False if their forms differ."""

    def lend(self) -> list[Any]:
        """The local leaves with which another learner can continue, in NumPy arrays of their own.

        These are all but random keys and the leaves that belong to parameters that the task declares local. Empty if
        none.
        """

    def borrow(self, leaves: Sequence[Any]) -> bool:
        """Replace the local leaves by `leaves`, in the form that `lend` returns; False if empty or of another form."""

    def own(self, *, whole: bool) -> list[Any]:
        """`local`, preceded by one array that names the life whose random keys the next step draws.

        If `whole`, the merged leaves follow.
        """

    def take_own(self, leaves: Sequence[Any]) -> bool:
        """Continue from leaves in the form that `own` returns, as their life would; False if they do not fit."""


@runtime_checkable
class PartlyRead(Protocol):
    """A learner that reads its local leaves part by part, as they lie in its own memory."""

    def local_parts(self, bytes_max: int) -> Iterator[LeafPart]:
        """What `local` returns, in parts of at most so many bytes, each after the steps made when it is read."""


def local_parts(learner: LastingLearning, bytes_max: int) -> Iterator[LeafPart]:
    """The local leaves of any learner, in such parts where it can read them so."""
    if isinstance(learner, PartlyRead):
        yield from learner.local_parts(bytes_max)
        return
    for leaf in learner.local():
        yield LeafPart(leaf, leaf)


class SoleLearning(LastingLearning, Protocol):
    """The state of a learner whose island is one process, which holds all of it."""

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all merged leaves by those of a tree as `tree` gives it."""

    def copy(self) -> Any:
        """A copy of all merged leaves after the steps so far, for `tree`."""

    def tree(self, leaves: Any) -> Any:
        """A copy as a tree whose leaves have the names of the merged ones, in NumPy arrays of its own."""


@runtime_checkable
class Keeping(Protocol):
    """A learner whose local leaves outlive its process by themselves: it neither needs those of another nor lends."""

    has_kept: bool
    """Whether `restart` has kept the local leaves of the life before."""


@runtime_checkable
class LoopLearning(Protocol):
    """A learner whose steps a loop of its user's makes, in the thread that calls inner-step."""

    def open_step(self, progress: float) -> None:
        """Let the loop make a step, at this share of the budget: all that precedes it is done."""

    def made_tokens(self) -> int:
        """The tokens of the step that it has made since; 0 where it has made none."""


@runtime_checkable
class LearnerSource(Protocol):
    """A task that brings its learner."""

    def prepare(self) -> None:
        """Import what learners and evaluations need; starts no thread and no device, so that processes can be forked.

        A fork server calls it, once.
        """

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> SoleLearning:
        """A learner on an island of one process; created in the thread that will call it."""

    def evaluator(self, seed: int) -> Evaluating:
        """An evaluation of merged leaves."""


@runtime_checkable
class GradientSource(LearnerSource, Protocol):
    """A task that brings learners for programs that average gradients, too."""

    def gradient_learner(self, seed: int) -> GradientLearning:
        """A learner that has begun; created in the thread that will call it."""


class GradientLearning(Protocol):
    """The state of one learner of a program that averages gradients at every step."""

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""

    def gradient(self, batch: Any) -> tuple[Mapping[str, float], Vector]:
        """The scalars of a batch, 'loss' among them, and its gradient, as one vector."""

    def apply(self, vector: Vector, progress: float) -> None:
        """Step along a gradient, at this share of the budget."""

    def tree(self) -> Any:
        """The parameters as the task's tree, in NumPy arrays of their own."""

    def state(self) -> list[Any]:
        """Everything with which another learner can continue from here."""

    def restore(self, state: Sequence[Any]) -> None:
        """Replace the state by that of another learner."""


class Evaluating(Protocol):
    """The mean scalars of a task over its evaluation batches."""

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The mean scalars of these merged leaves, in the task's own units: 'loss', and others that it evaluates.

        Empty for a task that evaluates nothing.
        """

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Tensors:
        """The merged leaves that the fragments make up, in NumPy arrays."""


@runtime_checkable
class DividedEvaluating(Evaluating, Protocol):
    """An evaluation that can be given up between two of its batches."""

    @property
    def count(self) -> int:
        """The number of its batches."""

    def parts(self, tensors: Tensors) -> Parts:
        """The evaluation of these merged leaves, as `metrics` makes it."""


def parts_of(evaluation: Evaluating, tensors: Tensors) -> Parts:
    """An evaluation of these merged leaves; in one part where it cannot be divided."""
    if isinstance(evaluation, DividedEvaluating):
        return (yield from evaluation.parts(tensors))
    yield
    return evaluation.metrics(tensors)


def count_of(evaluation: Evaluating) -> int:
    """The number of parts in which an evaluation is made."""
    return evaluation.count if isinstance(evaluation, DividedEvaluating) else 1


class PathEvaluating(Evaluating, Protocol):
    """The evaluation of one path of a model made of modules."""

    @property
    def count(self) -> int:
        """The number of its batches."""


@final
class Unevaluated:
    """The evaluation of a task that has none, or none on this host."""

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """No scalars."""
        return {}

    def assemble(self, fragments: Sequence[Fragment], values: Mapping[int, Any]) -> Tensors:
        """No tensors: nothing reads them."""
        return {}


def scalars_of(result: Any, call: str) -> dict[str, float]:
    """What a user's evaluation `call` returned, as scalars by name; TypeError unless 'loss' is among them."""
    scalars = result if isinstance(result, Mapping) else {"loss": result}
    if "loss" not in scalars:
        raise TypeError(f"{call} returns a loss, or a dict with one by the name 'loss', not {result!r}")
    return {str(name): float(scalar) for name, scalar in scalars.items()}


def prepare_learner(task: Any, fragments: Sequence[Fragment], alpha: float) -> None:
    """Do all that learners of a task need and that needs no device: import its framework, or trace every function."""
    if isinstance(task, LearnerSource):
        task.prepare()
        return
    from isthmus.ops.island.functions import functions_of

    functions_of(task, tuple(fragments), alpha).trace(first_batch(task, 0))


def prepare_evaluation(task: Any) -> None:
    """As `prepare_learner`, for the evaluation of a task."""
    if isinstance(task, LearnerSource):
        task.prepare()
        return
    from isthmus.ops.island.jax_evaluation import trace_evaluation

    trace_evaluation(task)


def evaluation_of(task: Any, seed: int) -> Evaluating:
    """The evaluation of a task."""
    if isinstance(task, LearnerSource):
        return task.evaluator(seed)
    from isthmus.ops.island.jax_evaluation import JaxEvaluation

    return JaxEvaluation(task, seed)


def path_evaluations(task: Any, seed: int, paths: int) -> list[PathEvaluating]:
    """The evaluation of each path of a task whose model is made of modules."""
    if isinstance(task, LearnerSource):
        return [cast(PathEvaluating, task.evaluator(seed))] * paths
    from isthmus.ops.island.jax_evaluation import JaxEvaluation

    return [JaxEvaluation(task, seed, path) for path in range(paths)]


def first_tensors_of(task: Any, seed: int) -> Tensors:
    """The merged leaves with which `begin` starts every learner of the task."""
    if isinstance(task, LearnerSource):
        own = task.learner((), life=LearnerLife(seed, 0, 1), alpha=0.0)
        own.begin()
        tensors: Tensors = own.tree(own.copy())
        return tensors
    from isthmus.ops.island.functions import functions_of

    functions = functions_of(task, (), 0.0)
    return dict(zip(functions.names, functions.first_leaves(seed), strict=True))


@final
class SoleRank:
    """A loop in one process, which reads and writes leaves by `access`; `torch_ranks.Ranks` is one of several."""

    is_leader = True
    size = 1

    def __init__(self, access: Any = None) -> None:
        self.access = access

    def settle(self) -> None:
        """No-op: the module has its own leaves at all times."""

    def total(self, count: int) -> int:
        """The number itself."""
        return count

    def count(self, tokens: int, loss: Any) -> tuple[int, Any]:
        """The tokens and the loss of the loop's step."""
        return tokens, loss

    def is_same(self, value: Any) -> bool:
        """True."""
        return True

    def told(self, make: Callable[[], Any]) -> Any:
        """What `make` returns."""
        return make()

    def close(self) -> None:
        """No-op: there is no other rank."""

    def learner(self, learner: Any, *made_of: Any) -> Any:
        """The learner itself."""
        return learner

    def judge(self, judge: Any) -> Any:
        """The evaluation itself."""
        return judge

    def host(self, make: Callable[[], Any], **beside: Any) -> Any:
        """The host itself."""
        return make()
