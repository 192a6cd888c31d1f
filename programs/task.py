"""The object of training: a model, its data, and how it learns, as plain functions.

A task knows nothing of graphs and hosts: every program trains every task that it can. There are two kinds in jax:
`Task(init, loss, batch, ...)` has a loss and an optimizer, `Task.of_step(init, step, evaluate, data, ...)` makes a
`StepTask`, which has a step of its own, on a state of any form. Both share a `TaskLayout`, and `recipe()` is the form
that a learner uses of either. A task of another framework is an `OwnTask`: it brings its learner, and answers all that
is asked of a task itself. All share `TaskTerms`. Checked here is what can be seen without calling anything; `layout`
runs the task on shapes and finds the rest. Importing this module imports no jax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, final

from isthmus.ops.data.batches import At, Split, Stream, Tokens, TokensPerBatch
from isthmus.ops.data.held_out import Extract
from isthmus.ops.data.positions import of_slot
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.exchange.merge_rules import DEFAULT, FROZEN, LOCAL, RULES
from isthmus.ops.gang.mesh_sharding import AUTOMATIC, AXES_DEFAULT, REPLICATED, STAGE
from isthmus.programs.job import RunSlots
from isthmus.runtime.errors import ConfigError, Fault, shortened

if TYPE_CHECKING:
    import optax

    from isthmus.ops.exchange.fragments import Fragment
    from isthmus.ops.exchange.frozen_leaves import Digests
    from isthmus.ops.exchange.parameter_trees import Rules
    from isthmus.ops.gang.mesh_sharding import Axes, Shard
    from isthmus.ops.island.contract import Evaluating, SoleLearning
    from isthmus.ops.island.life import LearnerLife, Tensors
    from isthmus.ops.island.recipe import Kind, Recipe
    from isthmus.ops.learner.boundary import Boundary, Companion
    from isthmus.ops.learner.site_evaluation import SiteJudge

__all__ = ["EVALUATION_BATCHES", "AnyTask", "At", "Split", "StepTask", "Task", "Tokens"]

EVALUATION_BATCHES = 16
"""Default number of batches of the evaluation."""
SETS_MAX: Final = 16
"""Held-out sets: each has figures of its own, and an evaluation of its own batches."""
SET_NAME_MAX: Final = 64
FINAL_SECONDS_MAX: Final = 7 * 24 * 3600
"""A week: whoever needs more evaluates the folder that is exported."""
Better: TypeAlias = Literal["higher", "lower"]
HeldOutSet: TypeAlias = Callable[[], Iterable[Any]]
"""The batches of a held-out set, each time that it is called."""
KINDS: Final = (*RULES, LOCAL, FROZEN)
"""What may happen to a leaf between islands."""
METRICS_MAX: Final = 32
"""Scalars of a step: each is read, reported and written separately."""


class ModelLeaf(NamedTuple):
    """A leaf of a model: its path, shape and dtype, and what happens to it between islands, None if no rule covers it.

    `is_stacked`: each of its rows is a unit of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str | None
    is_stacked: bool = False


@dataclass(frozen=True, slots=True)
class TaskTerms(ABC):
    """What every task says of its batches, and of how its leaves are merged.

    - `tokens_per_batch`: the tokens of one batch in the token budget and in the accounts. A tuple has the number of
      each slot, where slots have batches of their own sizes; slots beyond its end have the last. `Tokens(count,
      at_most=N)` counts them in each batch.
    - `evaluation`: the number of batches of the evaluation split whose mean loss is reported; None is 16. A tuple has
      that of each path, of a model made of modules.
    - `sets`: named held-out sets, each evaluated whenever the evaluation split is: a function without arguments, which
      returns its batches, of the form of the others. What is found on set "code" is told by the names "loss/code", and
      so on. It is called by whoever evaluates.
    - `evaluate_final(model)`: figures of the final model by name, numbers, such as an accuracy; the model is as `load`
      returns it. The evaluator calls it once, behind the last evaluation, for `evaluate_final_seconds` at most; what it
      raises is told, and costs the run nothing. `better`: whether "higher" or "lower" is better, by name, so that
      `compare` has verdicts; of other names it tells the difference.
    - `extract`: of a task that evaluates on windows of a text which do not overlap, how many (`ops.data.held_out`).
    - `paths`: how many modules each level of the model has, for programs that train models made of modules (`dipaco`);
      `levels`: path patterns of parameters, and the number of their level. Those of none are shared by all paths. Slot
      n trains path n modulo their number; of the evaluation split, `at.slot` is the path. `routed_by`: a fingerprint of
      what gives data to paths, if there is one: a run does not go on with another.
    - `merge`: the rule for each parameter between islands, by path patterns, of which the first that matches holds:
      "rda" (radial-directional averaging), "average" (of outer gradients, for embeddings and heads), "mean" (of values,
      for statistics), "local": it never leaves its learner, or "frozen": it is not trained, and every island makes the
      same values of it.
    - `stream(slot, slots, seed)`: an object with `__next__`, `get_state` and `set_state`, from which the learner in
      this slot (of at most `slots`) trains in the place of `batch`; `batch` is then called for the evaluation only. A
      new one for the same arguments gives the same batches.
    - `stacked`: path patterns of leaves that stack layers along their first axis: each row is merged separately.
    - `site`: of the task of a learner on a machine that trains on data of its own, what is known of them. Whoever
      loads the task there says it, no user.
    """

    _: KW_ONLY
    tokens_per_batch: TokensPerBatch
    evaluation: int | tuple[int, ...] | None = None
    extract: Extract | None = None
    sets: Mapping[str, HeldOutSet] | tuple[tuple[str, HeldOutSet], ...] = ()
    evaluate_final: Callable[[Any], Mapping[str, float]] | None = None
    evaluate_final_seconds: float = 600.0
    better: Mapping[str, Better] | tuple[tuple[str, Better], ...] = ()
    merge: Mapping[str, str] | Rules[Kind] = (("**", DEFAULT),)
    stream: Callable[[int, int, int], Stream] | None = None
    stacked: tuple[str, ...] = ()
    paths: tuple[int, ...] = ()
    levels: Mapping[str, int] | Rules[int] = ()
    routed_by: str = ""
    site: SiteTerms | None = None

    def __post_init__(self) -> None:
        for name in self._rule_fields():
            if isinstance(rules := getattr(self, name), Mapping):
                object.__setattr__(self, name, tuple(rules.items()))
        if faults := [*self._function_faults(), *_terms_faults(self), *self._more_faults()]:
            raise ConfigError.of(faults)
        if not isinstance(self.tokens_per_batch, int | Tokens):
            object.__setattr__(self, "tokens_per_batch", tuple(self.tokens_per_batch))

    @abstractmethod
    def _function_faults(self) -> Iterator[Fault]:
        """Faults of the functions of this kind of task."""

    def _more_faults(self) -> Iterator[Fault]:
        """Faults of what only this kind of task says."""
        yield from ()

    def _rule_fields(self) -> tuple[str, ...]:
        """The fields that may be a Mapping, and become pairs."""
        return ("merge", "levels", "sets", "better")

    @property
    def functions(self) -> tuple[Any, ...]:
        """The user's functions, which lie in the file that the task is from."""
        values = [getattr(self, each.name) for each in fields(self)]
        return tuple(value for value in values if callable(value))

    @property
    def rules(self) -> Rules[Any]:
        """`merge`, as pairs of a pattern and a kind."""
        return tuple(self.merge)  # type: ignore[arg-type]  # A Mapping became pairs as the task was made.

    @property
    def held_out_sets(self) -> tuple[tuple[str, HeldOutSet], ...]:
        """`sets`, as pairs of a name and a function that makes the batches."""
        return tuple(self.sets)  # type: ignore[arg-type]

    @property
    def level_rules(self) -> Rules[int]:
        """`levels`, as pairs of a pattern and a number."""
        return tuple(self.levels)  # type: ignore[arg-type]

    @property
    def tokens_most(self) -> int | tuple[int, ...]:
        """The tokens of one batch, of every slot or by slot; where they are counted, the most."""
        tokens = self.tokens_per_batch
        return tokens.at_most if isinstance(tokens, Tokens) else tokens

    def tokens_mean(self, learners: int) -> int:
        """The most tokens of one batch, on average over `learners` learners, in whole tokens."""
        return round(sum(of_slot(self.tokens_most, slot) for slot in range(learners)) / learners)

    @property
    def evaluated_tokens(self) -> int:
        """The tokens that an evaluation predicts, of all paths and sets; where they are counted, the most."""
        of_sets = sum(self._tokens_of(make) for _, make in self.held_out_sets)
        if self.extract is not None:
            return self.extract.windows * self.extract.tokens + of_sets
        counts = EVALUATION_BATCHES if self.evaluation is None else self.evaluation
        return (counts if isinstance(counts, int) else sum(counts)) * of_slot(self.tokens_most, 0) + of_sets

    def _tokens_of(self, make: HeldOutSet) -> int:
        own: int | None = getattr(make, "tokens", None)
        return len(list(make())) * of_slot(self.tokens_most, 0) if own is None else own

    def companions(self, boundary: Boundary) -> Iterator[Companion]:
        """What accompanies a learner of this task: of one on its site's data, the evaluation on these, and what keeps
        its models there."""
        if self.site is not None:
            from isthmus.ops.learner.site_evaluation import SiteEvaluation

            yield SiteEvaluation(self.site, partial(self._judge, boundary), boundary)
        if self.site is not None and self.site.keeps_own and not self.paths:
            from isthmus.ops.learner.site_models import SiteModels

            yield SiteModels(boundary)

    def _judge(self, boundary: Boundary) -> SiteJudge:
        from isthmus.ops.learner.site_evaluation import judge_of

        return judge_of(self, boundary)  # type: ignore[arg-type]

    def _evaluation(self, batch: Callable[[At], Any], seed: int, path: int = 0) -> Iterator[Any]:
        counts = EVALUATION_BATCHES if self.evaluation is None else self.evaluation
        return (batch(At(seed, path, position, "evaluation")) for position in range(of_slot(counts, path)))


@dataclass(frozen=True, slots=True)
class TaskLayout(TaskTerms):
    """What all tasks in jax say beside `TaskTerms`: how leaves lie on devices, and where their first values are from.

    - `load(path, shape)`: the first value of a merged leaf, from a checkpoint for example; None leaves it to `init`. It
      is called outside of jit, leaf by leaf; `shape` has `shape` and `dtype`.
    - `mesh`: how the devices of an island are arranged, name -> size, -1 for all that are left; the first axis is that
      of data, along which batches are cut. Along an axis "stage" the layers that `stacked` names are cut: the loss
      calls `scan_layers`. `shard`: how leaves lie on them, by path patterns: "automatic" (cut along the largest axis
      that the first axis of the mesh divides), "replicated", or a tuple with the name of an axis of the mesh, or None,
      for each axis of the leaf.
    """

    _: KW_ONLY
    load: Callable[[str, Any], Any] | None = None
    mesh: Mapping[str, int] | Axes = AXES_DEFAULT
    shard: Mapping[str, Shard] | Rules[Shard] = ()

    def _rule_fields(self) -> tuple[str, ...]:
        return ("merge", "levels", "sets", "better", "mesh", "shard")

    def _more_faults(self) -> Iterator[Fault]:
        if self.load is not None:
            yield from call_faults(self, load="load(path, shape)")
        yield from _mesh_faults(self.mesh)
        yield from _stage_faults(self.mesh, self.stacked)
        yield from _shard_faults(self.shard, self.mesh)

    def site_evaluator(self, seed: int, batches: Mapping[str, Sequence[Any]], slot: int) -> Evaluating:
        """An evaluation by the learner in a slot on batches by set, beside its steps. Imports jax."""
        from isthmus.ops.island.jax_evaluation import JaxEvaluation

        return JaxEvaluation(self, seed, batches=batches)

    @property
    def axes(self) -> Axes:
        """`mesh`, as pairs of a name and a size."""
        return tuple(self.mesh)  # type: ignore[arg-type]  # A Mapping became pairs as the task was made.

    @property
    def layout(self) -> Rules[Shard]:
        """`shard`, as pairs of a pattern and how a leaf lies."""
        return tuple(self.shard)  # type: ignore[arg-type]


@final
@dataclass(frozen=True, slots=True)
class Task(TaskLayout):
    """A training task with a loss. ConfigError, with every fault, for arguments that break these rules.

    - `init(key)`: the first parameters, a pytree of floating-point arrays, from a jax random key.
    - `loss(params, batch)`: a scalar to minimise, or a pair of it and other scalars by name, which are reported beside
      it (a "loss" among them is reported in its place). It is compiled and differentiated, so it reads arrays only.
    - `batch(at)`: a pytree of numpy arrays; a pure function of `at`, and of one structure, shape and dtype for every
      `at`, or for every `at` of one slot where `tokens_per_batch` is a tuple. With `at.split == "evaluation"` it is
      held-out data.
    - `optimizer`: an optax gradient transformation. One that takes extra arguments gets `progress=`, the share in
      [0, 1] of the run's token budget that has been trained, as a traced float32.

    The other arguments are those of every task (`TaskLayout`). `Task.of_step` makes one with a step of its own.
    """

    init: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    batch: Callable[[At], Any]
    _: KW_ONLY
    optimizer: optax.GradientTransformation | None = None

    def _function_faults(self) -> Iterator[Fault]:
        yield from call_faults(self, init="init(key)", loss="loss(params, batch)", batch="batch(at)")
        if not all(callable(getattr(self.optimizer, name, None)) for name in ("init", "update")):
            do = "Pass for example optimizer=optax.adamw(1e-3)."
            yield Fault(_MAKING, "optimizer= an optax gradient transformation", repr(self.optimizer), do)

    @classmethod
    def of_step(
        cls,
        init: Callable[[Any], Any],
        step: Callable[[Any, Any, Any], Any],
        evaluate: Callable[[Any, Any], Any],
        data: Callable[[At], Any],
        *,
        tokens_per_batch: TokensPerBatch,
        merge: Mapping[str, str],
        restart: Callable[[Any, Any], Any] | None = None,
        **layout: Any,
    ) -> StepTask:
        """A task with a step of its own: a `StepTask`, whose batches are `data`, and which must say what is merged."""
        return StepTask(
            init, step, evaluate, data, tokens_per_batch=tokens_per_batch, merge=merge, restart=restart, **layout
        )

    def recipe(self) -> Recipe:
        """The learner's view of this task. Imports jax."""
        from isthmus.ops.island import recipe

        assert self.optimizer is not None
        bare = recipe.of_loss(self.init, self.loss, self.optimizer, self.rules, self.load)
        return replace(bare, mesh=self.axes, shard=self.layout, stacked=self.stacked)

    def evaluation_batches(self, seed: int, path: int = 0) -> Iterator[Any]:
        """The batches of the evaluation (of a path), in order and made one at a time: positions from 0."""
        return self._evaluation(self.batch, seed, path)


@final
@dataclass(frozen=True, slots=True)
class StepTask(TaskLayout):
    """A training task with a step of its own, on a state of any form: a TrainState, the result of `nnx.split` or
    `eqx.partition`, with optimizer, random keys, statistics and averages in it.

    - `init(key)`: the first state, a pytree of arrays.
    - `step(state, batch, now)`: the state after a step, of the same structure, shapes and dtypes, and scalars by name:
      {"loss": ..., ...}. It is compiled, and its state donated. `now.key` is a random key that no other step of the run
      has, `now.progress` the share in [0, 1] of the token budget that is trained.
    - `evaluate(state, batch)`: scalars by name, "loss" among them, of held-out data; leaves that are local are as
      `init` makes them.
    - `batch`: as of a `Task`.
    - `restart(state, key)`: the state with its local leaves made anew, for a life that begins: at first, after a death,
      and after a loss that was not finite. The merged leaves of `state` are the newest, its local ones as `init` makes
      them for the run's seed, random keys among them the life's own; without `restart` a life begins with that state.
      Of its result only the local leaves are used.

    The other arguments are those of every task (`TaskLayout`). `merge` has a rule for every leaf: merged leaves are
    floating-point; a local leaf may be anything.
    """

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], Any]
    evaluate: Callable[[Any, Any], Any]
    batch: Callable[[At], Any]
    _: KW_ONLY
    restart: Callable[[Any, Any], Any] | None = None

    def _function_faults(self) -> Iterator[Fault]:
        called = {"init": "init(key)", "step": "step(state, batch, now)", "evaluate": "evaluate(state, batch)"}
        optional = {} if self.restart is None else {"restart": "restart(state, key)"}
        yield from call_faults(self, **called, batch="data(at)", **optional)

    def recipe(self) -> Recipe:
        """The learner's view of this task. Imports jax."""
        from isthmus.ops.island import recipe

        bare = recipe.of_step(self.init, self.step, self.evaluate, self.rules, self.restart, self.load)
        return replace(bare, mesh=self.axes, shard=self.layout, stacked=self.stacked)

    def evaluation_batches(self, seed: int, path: int = 0) -> Iterator[Any]:
        """The batches of the evaluation (of a path), in order and made one at a time: positions from 0."""
        return self._evaluation(self.batch, seed, path)


@dataclass(frozen=True, slots=True)
class OwnTask(TaskTerms):
    """A task that brings its learner, and with it all that depends on the framework of its model.

    Beside this it has `batch(at)`, as every task. What it raises for a fault of the user's is a ConfigError. One whose
    evaluator evaluates `sets`, too, and names what is found on a set as `of_set` does, says so: `evaluates_sets`.
    """

    evaluates_sets: ClassVar[bool] = False

    if TYPE_CHECKING:  # A field here would come before those of the subclass in its `__init__`.

        @property
        def batch(self) -> Callable[[At], Any]: ...

    def completed(self, run: RunSlots) -> OwnTask:
        """This task, with what it takes longer to find out, and only a request has to know."""
        return self

    def _function_faults(self) -> Iterator[Fault]:
        """Faults of arguments that only this kind of task has; none unless overridden."""
        yield from ()

    def _more_faults(self) -> Iterator[Fault]:
        if self.sets and not self.evaluates_sets:
            do = "Leave sets= out, or have its evaluator evaluate them, and let evaluates_sets be true."
            yield Fault(_MAKING, "no sets= of a task whose evaluator does not evaluate them", repr(self.sets), do)

    def evaluation_batches(self, seed: int, path: int = 0) -> Iterator[Any]:
        """The batches of the evaluation (of a path), in order and made one at a time: positions from 0."""
        return self._evaluation(self.batch, seed, path)

    @abstractmethod
    def prepare(self) -> None:
        """Import what learners and evaluations need, for processes that are forked from this one.

        It starts no thread and no device: no process with threads is forked.
        """

    @abstractmethod
    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> SoleLearning:
        """A learner, created in the thread that will call it."""

    @abstractmethod
    def evaluator(self, seed: int) -> Evaluating:
        """An evaluation of merged leaves."""

    def site_evaluator(self, seed: int, batches: Mapping[str, Sequence[Any]], slot: int) -> Evaluating:
        """An evaluation by the learner in a slot, beside its steps, on batches by set; unless overridden it is on those
        of `evaluator`."""
        return self.evaluator(seed)

    @abstractmethod
    def leaves(self, seed: int) -> list[ModelLeaf]:
        """All leaves of the model, local ones, too."""

    def frozen(self, seed: int) -> Digests:
        """The digests of the frozen leaves; none unless overridden."""
        return ()

    @abstractmethod
    def check_first_step(self, batch: Any, seed: int, *, computes: bool) -> tuple[Fault, ...]:
        """Warnings about the task; ConfigError if it cannot train on a batch, as far as that is quickly known.

        Nothing is to be computed unless `computes`.
        """

    @abstractmethod
    def learner_bytes(self) -> int:
        """The least bytes of a learner on its island: its state, and a gradient of the merged leaves."""

    @abstractmethod
    def digests(self, seed: int) -> Mapping[str, Any]:
        """What its functions compute, by the names of its arguments: tasks with equal ones train alike."""

    @abstractmethod
    def model(self, tensors: Tensors, seed: int) -> Any:
        """The model of merged leaves, in NumPy arrays by name; its local leaves are as a life begins."""


JaxTask: TypeAlias = Task | StepTask
AnyTask: TypeAlias = Task | StepTask | OwnTask
_MAKING: Final = "Making a Task"


def _terms_faults(task: TaskTerms) -> Iterator[Fault]:
    tokens = task.tokens_per_batch
    counts = tokens if isinstance(tokens, tuple | list) else (task.tokens_most,)
    if not counts or not all(map(_is_count, counts)):
        do = "Say how many tokens (or samples) one batch counts for, or Tokens(count, at_most=N)."
        expected = "tokens_per_batch= an integer of at least 1, a tuple of them, one for each slot, or Tokens"
        yield Fault(_MAKING, expected, repr(tokens), do)
    count: Any = tokens.count if isinstance(tokens, Tokens) else len
    if not callable(count):
        yield Fault(_MAKING, "a function count(batch) in Tokens", repr(count), "Pass the function itself.")
    evaluation = task.evaluation
    if not (evaluation is None or all(map(_is_count, evaluation if isinstance(evaluation, tuple) else (evaluation,)))):
        do = f"Say how many batches to evaluate on, or leave it out for {EVALUATION_BATCHES}."
        yield Fault(_MAKING, "evaluation= an integer of at least 1, or None", repr(task.evaluation), do)
    yield from _set_faults(task.sets, task.paths)
    yield from _final_faults(task)
    yield from _path_faults(task.paths, task.levels)
    if not isinstance(task.routed_by, str) or (task.routed_by and not task.paths):
        do = "Write the fingerprint of a router, of a task with paths, or leave it out."
        yield Fault(_MAKING, "routed_by= text, beside paths=", repr(task.routed_by), do)
    if task.stream is not None:
        yield from call_faults(task, stream="stream(slot, slots, seed), which each learner calls for one of its own")
    yield from _merge_faults(task.merge)
    if not isinstance(task.stacked, tuple) or not all(isinstance(each, str) and each for each in task.stacked):
        do = 'Write for example stacked=("layers/**",).'
        yield Fault(_MAKING, "stacked= a tuple of path patterns", repr(task.stacked), do)


def call_faults(task: TaskTerms, **calls: str) -> Iterator[Fault]:
    """Faults of arguments that are no functions; `calls` says how each is called."""
    for name, call in calls.items():
        value = getattr(task, name)
        if not callable(value):
            name = call.partition("(")[0]
            yield Fault(_MAKING, f"a function {call}", repr(value), f"Pass the function {name} itself, not its result.")


def _merge_faults(merge: Any) -> Iterator[Fault]:
    """Faults of the rules of merging."""
    kinds = ", ".join(map(repr, KINDS))
    do = f'Write for example merge={{"embedding": "average", "**": "rda"}}; there are {kinds}.'
    pairs = merge if isinstance(merge, tuple) else None
    if pairs is None or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        yield Fault(_MAKING, "merge= a dict of path patterns and what happens to their leaves", repr(merge), do)
        return
    for pattern, kind in pairs:
        if not isinstance(pattern, str) or not pattern:
            yield Fault(_MAKING, "a path pattern in merge=, such as 'params/**'", repr(pattern), do)
        if kind not in KINDS:
            yield Fault(_MAKING, f"one of {kinds} in merge=, for {pattern!r}", repr(kind), do)


def set_name_faults(names: Iterable[Any], doing: str) -> Iterator[Fault]:
    """Faults of the names of held-out sets, which tables, charts and metrics show."""
    names = list(names)
    if len(names) > SETS_MAX:
        yield Fault(doing, f"at most {SETS_MAX} held-out sets", str(len(names)), "Evaluate on the others later.")
    for name in names:
        is_short = isinstance(name, str) and name.strip() and len(name) <= SET_NAME_MAX
        if not is_short or not name.isprintable():
            expected = f"names of held-out sets, of 1 to {SET_NAME_MAX} letters that can be shown"
            yield Fault(doing, expected, shortened(repr(name), 100), 'Name it for example "code".')


def _set_faults(sets: Any, paths: Any) -> Iterator[Fault]:
    """Faults of the held-out sets."""
    pairs = sets if isinstance(sets, tuple) else None
    if pairs is None or not all(isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1]) for pair in pairs):
        do = 'Write for example sets={"code": code_batches}, which returns a list of batches.'
        yield Fault(_MAKING, "sets= a dict of names and functions without arguments", repr(sets), do)
        return
    yield from set_name_faults((name for name, _ in pairs), _MAKING)
    if pairs and paths:
        do = "Leave out sets=, or paths=."
        yield Fault(_MAKING, "no sets= beside paths=: which path a document of a set has is not known", "both", do)


def _final_faults(task: TaskTerms) -> Iterator[Fault]:
    """Faults of what is computed of the final model."""
    seconds, better = task.evaluate_final_seconds, task.better
    pairs = better if isinstance(better, tuple) else None
    if pairs is None or not all(isinstance(each, tuple) and each[1:] in (("higher",), ("lower",)) for each in pairs):
        do = 'Write for example better={"accuracy": "higher"}.'
        yield Fault(_MAKING, 'better= a dict of names and "higher" or "lower"', repr(better), do)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= FINAL_SECONDS_MAX:
        do = "Say for how long the run may await evaluate_final, such as evaluate_final_seconds=600."
        yield Fault(_MAKING, f"a number above 0, of at most {FINAL_SECONDS_MAX:,}", repr(seconds), do)
    if task.evaluate_final is None:
        return
    yield from call_faults(task, evaluate_final="evaluate_final(model)")
    if task.paths:
        do = "Leave it out: isthmus.load(RUN, path=N) returns the model of a path."
        yield Fault(_MAKING, "no evaluate_final= beside paths=, where there is no one model", "both", do)


def _path_faults(paths: Any, levels: Any) -> Iterator[Fault]:
    """Faults of the modules of a model."""
    do = 'Write for example paths=(1, 4), levels={"layers/0/**": 0, "layers/1/**": 1}.'
    if not isinstance(paths, tuple) or not all(map(_is_count, paths)):
        yield Fault(_MAKING, "paths= a tuple of the modules of each level", repr(paths), do)
        return
    pairs = levels if isinstance(levels, tuple) else None
    numbers = [pair[1] for pair in pairs or () if isinstance(pair, tuple) and len(pair) == 2]
    if pairs is None or len(numbers) < len(pairs) or not all(each in range(len(paths)) for each in numbers):
        expected = f"levels= a dict of path patterns and levels from 0 to {len(paths) - 1}"
        yield Fault(_MAKING, expected if paths else "no levels= without paths=", repr(levels), do)


def _mesh_faults(mesh: Any) -> Iterator[Fault]:
    """Faults of the mesh."""
    do = 'Write for example mesh={"data": -1, "model": 2}; -1, once at most, stands for all devices that are left.'
    expected = "mesh= a dict of names of axes and numbers of devices"
    pairs = mesh if isinstance(mesh, tuple) else None
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        yield Fault(_MAKING, expected, repr(mesh), do)
        return
    is_named = all(isinstance(name, str) and name for name, _ in pairs)
    sizes = [size for _, size in pairs]
    if not is_named or not all(size == -1 or _is_count(size) for size in sizes) or sizes.count(-1) > 1:
        yield Fault(_MAKING, expected, repr(dict(pairs)), do)


def _stage_faults(mesh: Any, stacked: tuple[str, ...]) -> Iterator[Fault]:
    """Faults of an axis of stages."""
    if any(_mesh_faults(mesh)) or STAGE not in dict(mesh):
        return
    if mesh[0][0] == STAGE:
        do = f'Write for example mesh={{"data": -1, "{STAGE}": 4}}: the first axis is that of data, -1 may be 1.'
        yield Fault(_MAKING, f"another axis before {STAGE!r} in mesh=", repr(dict(mesh)), do)
    if not stacked:
        do = 'Stack the layers, write for example stacked=("layers/**",), and call scan_layers in the loss.'
        yield Fault(_MAKING, f"stacked= layers, which the axis {STAGE!r} of mesh= cuts", "none", do)


def _shard_faults(shard: Any, mesh: Any) -> Iterator[Fault]:
    """Faults of the rules of sharding."""
    do = f'Write for example shard={{"head": (None, "data"), "**": "{AUTOMATIC}"}}; there is "{REPLICATED}", too.'
    pairs = shard if isinstance(shard, tuple) else None
    if pairs is None or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        expected = "shard= a dict of path patterns and how leaves lie"
        yield Fault(_MAKING, expected, repr(shard), do)
        return
    names = {name for name, _ in mesh} if isinstance(mesh, tuple) else set()
    for pattern, spec in pairs:
        is_spec = isinstance(spec, tuple) and all(name is None or name in names for name in spec)
        if not (isinstance(pattern, str) and pattern and (is_spec or spec in (AUTOMATIC, REPLICATED))):
            expected = f"{AUTOMATIC!r}, {REPLICATED!r} or a tuple of None and axes of the mesh ({', '.join(names)})"
            yield Fault(_MAKING, f"{expected} in shard=, for {pattern!r}", repr(spec), do)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
