"""The evaluation nodes: the loss of the global model on held-out data during training, at most `times` times; never
where that is 0.

The evaluation node of programs whose learners all hold the same model: it evaluates the one that a learner sends.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from isthmus.ops.data.held_out import TIMES_DEFAULT
from isthmus.ops.exchange import frozen_leaves
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.messages import (
    Control,
    EvaluatedCut,
    EvaluatedModel,
    EvaluationKind,
    EvaluationNeeds,
    Update,
    Vector,
)
from isthmus.ops.exchange.parameter_trees import named_leaves, tree_mean
from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.island.contract import (
    Evaluating,
    PathEvaluating,
    Unevaluated,
    count_of,
    evaluation_of,
    first_tensors_of,
    parts_of,
    path_evaluations,
    prepare_evaluation,
)
from isthmus.ops.island.evaluation_time import EvaluationTime
from isthmus.ops.island.final_figures import FigureSender, has_figures
from isthmus.ops.island.life import Tensors
from isthmus.ops.island.scores import ERROR, Parts, extract_of

Emitted: TypeAlias = dict[str, Any] | Generator[dict[str, Any], None, dict[str, Any] | None] | None
"""What a call of an evaluation node returns: items by port, all at once, or some of them before its end."""
LATE_NS: Final = 10_000_000_000
LATE_STEPS: Final = 4
"""A learner that receives the stop is final one step later; this is the wait for one that does not report it."""


class EvaluationSchedule:
    """When to evaluate: at the first version, at the end, and in between at even shares of the token budget."""

    def __init__(self, tokens: int, times: int) -> None:
        self._tokens, self._times = tokens, times
        self._share_last = -1

    def due(self, trained: int, *, is_final: bool) -> EvaluationKind | None:
        """The kind of evaluation that is due now, None if none is."""
        if is_final:
            return "final"
        share = min(self._times - 2, trained * (self._times - 1) // max(self._tokens, 1))
        if share <= self._share_last:
            return None
        is_first, self._share_last = self._share_last < 0, share
        return "initial" if is_first else "during"


def _time(task: Any, context: Any) -> EvaluationTime:
    """The time of a task's evaluations on a host."""
    return EvaluationTime(context.now, context.stop_requested, context.queued, extract_of(task))


def _evaluation(task: Any, seed: int, times: int) -> Evaluating:
    """The evaluation of a task that is made so many times."""
    return evaluation_of(task, seed) if times else Unevaluated()


class Evaluate:
    """Cuts, or updates, in, Evaluated out, of a program whose model is published in fragments.

    A cut is what is to be evaluated (`cut_taker`), and is dealt with before the next one comes (`done`). Of updates,
    which programs in lock-step send, the newest are stored, and evaluated when that is due. Of a model made of modules
    (`paths`), the scalars are means over the batches of all paths, each by its own model.
    """

    outputs = ("evaluation", "done")
    collects = ("update",)
    schemas: Final = {"update": Update}

    def __init__(
        self,
        task: Any,
        fragments: Sequence[Fragment],
        *,
        tokens: int,
        times: int = TIMES_DEFAULT,
        frozen: Digests = (),
        paths: PathParts | None = None,
    ) -> None:
        self._task, self._fragments, self._frozen, self._paths = task, fragments, frozen, paths
        self._times, self._schedule = times, EvaluationSchedule(tokens, times)
        self._values: dict[int, Vector] = {}
        self._final: set[int] = set()
        self._totals = Totals()
        self.is_finished = False

    def prepare(self) -> None:
        """Do what needs no device: trace the loss, or import the task's framework."""
        if self._times:
            prepare_evaluation(self._task)

    def open(self, context: Any) -> None:
        """Make the evaluation batches; FrozenLeafError for leaves that are not those of the run."""
        self._time, self._figures = _time(self._task, context), FigureSender(self._task, context)
        self._of_paths: list[PathEvaluating] = []
        if self._paths is not None and self._times:
            self._of_paths = path_evaluations(self._task, context.seed, self._paths.count)
        self._evaluation = self._of_paths[0] if self._of_paths else _evaluation(self._task, context.seed, self._times)
        if isinstance(self._evaluation, frozen_leaves.HasFrozen):  # One of a script that does not evaluate has nothing.
            frozen_leaves.check(self._frozen, self._evaluation)

    def __call__(self, update: Mapping[Any, Update] | None = None, cut: EvaluatedCut | None = None) -> Emitted:
        """Evaluate a cut, or what is published, if that is due."""
        if cut is not None:
            return self._of_cut(cut)
        for item in (update or {}).values():
            self._values[item["fragment"]] = item["values"]
            self._totals.raise_to(item["totals"])
            if item["kind"] == "final":
                self._final.add(item["fragment"])
        if len(self._values) < len(self._fragments):
            return None
        trained = self._totals.trained
        kind = self._schedule.due(trained, is_final=len(self._final) == len(self._fragments))
        return None if kind is None else self._evaluated(kind, trained)

    def _of_cut(self, cut: EvaluatedCut) -> Emitted:
        self._values = dict(enumerate(cut["values"]))
        evaluated = self._evaluated(cut["kind"], cut["tokens"])
        if cut["kind"] == "final":
            return evaluated
        self._values = {}  # The next cut is taken in their place.
        evaluates = not isinstance(self._evaluation, Unevaluated)
        needs = EvaluationNeeds(during=evaluates, final=evaluates or has_figures(self._task))
        return {**(evaluated if isinstance(evaluated, dict) else {}), "done": needs}

    def _evaluated(self, kind: EvaluationKind, trained: int) -> Emitted:
        """The items about an evaluation of this kind."""
        if kind != "final" and isinstance(self._evaluation, Unevaluated):
            return None
        self.is_finished = kind == "final"
        count = sum(each.count for each in self._of_paths) or count_of(self._evaluation)
        made = self._time.made(kind, self._parts(), count, trained)
        if kind == "final":
            return self._figures.follow(made, self._evaluation, self._tensors)
        return None if made is None else {"evaluation": made}

    def _tensors(self) -> Tensors:
        return self._evaluation.assemble(self._fragments, self._values)

    def _parts(self) -> Parts:
        if self._paths is None or not self._of_paths:
            return (yield from parts_of(self._evaluation, self._tensors()))
        scalars = []
        for path, evaluation in enumerate(self._of_paths):
            values = {p: self._values[number] for p, number in enumerate(self._paths.numbers(path))}
            tensors = evaluation.assemble(self._paths.own, values)
            scalars.append((yield from parts_of(evaluation, tensors)))
        return mean_over_paths(scalars, [evaluation.count for evaluation in self._of_paths])


def mean_over_paths(scalars: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """The means of the scalars of all paths, each over so many batches, and the loss of each."""
    sums, by_path = dict[str, float](), dict[str, float]()
    for path, (own, count) in enumerate(zip(scalars, counts, strict=True)):
        if "loss" in own:
            by_path[f"path {path}"] = own["loss"]
        for name, mean in own.items():
            share = (mean * count) ** 2 if name == ERROR else mean * count
            sums[name] = sums.get(name, 0.0) + share
    if ERROR in sums:  # Of independent batches: the squares add up.
        sums[ERROR] = sums[ERROR] ** 0.5
    return {name: total / sum(counts) for name, total in sums.items()} | by_path


class EvaluateMean:
    """Learners' parameters in, Evaluated out, of a program without a global model: that of their token-weighted mean.

    At the end the mean is emitted on `final`, before it is evaluated. The first evaluation is of the task's initial
    parameters, with which every learner begins: the learners' own parameters arrive only after some steps, and those of
    a learner that starts late may arrive when the others have nearly finished.

    Fires by timer. The mean includes every live learner and waits for no departed one: `roles` are those whose replicas
    train. Parameters and progress travel on edges of their own, so the mean is taken one firing after all live learners
    have reported that they are final. If some learner does not report that, the mean is taken some time after `control`
    has announced the end, from the parameters that have arrived by then.
    """

    outputs = ("evaluation", "final")
    collects = ("parameters", "progress", "control")

    def __init__(self, task: Any, *, roles: Sequence[str], tokens: int, times: int = TIMES_DEFAULT) -> None:
        self._task, self._roles = task, frozenset(roles)
        self._times, self._schedule = times, EvaluationSchedule(tokens, times)
        self._parameters: dict[int, Any] = {}
        self._reports: dict[int, Mapping[str, Any]] = {}
        self._was_final = False
        self._stop_seen_at: int | None = None
        self.is_finished = False

    def prepare(self) -> None:
        """Do what needs no device: trace the loss, or import the task's framework."""
        if self._times:
            prepare_evaluation(self._task)

    def open(self, context: Any) -> None:
        """Make the evaluation batches."""
        self._seed, self._members, self._now = context.seed, context.members, context.now
        self._time, self._figures = _time(self._task, context), FigureSender(self._task, context)
        self._evaluation = _evaluation(self._task, context.seed, self._times)

    def __call__(
        self,
        parameters: Mapping[Any, Any] | None = None,
        progress: Mapping[Any, Mapping[str, Any]] | None = None,
        control: Mapping[Any, Control] | None = None,
    ) -> Emitted:
        """Store the inputs; evaluate the mean if that is due, but the initial parameters first."""
        self._parameters.update({replica.slot: tree for (replica, _), tree in (parameters or {}).items()})
        self._reports.update({replica.slot: report for (replica, _), report in (progress or {}).items()})
        if self._stop_seen_at is None and any(order["stop"] for order in (control or {}).values()):
            self._stop_seen_at = self._now()
        if kind := self._schedule.due(0, is_final=False):
            first = first_tensors_of(self._task, self._seed)
            return _evaluated(self._time, kind, self._evaluation, first, 0)
        live = {member.replica.slot for member in self._members() if member.replica.role in self._roles}
        was_final, self._was_final = self._was_final, self._are_final(live)
        is_final = (was_final and self._was_final) or self._is_late()
        slots = sorted(self._parameters.keys() & self._reports.keys())
        if not slots or not (is_final or live <= set(slots)):
            return None
        trained = sum(report["tokens"] for report in self._reports.values())
        kind = self._schedule.due(trained, is_final=is_final)
        if kind is None:
            return None
        weights = [float(self._reports[slot]["tokens"]) for slot in slots]
        # Where the run was stopped before any learner had stepped, nothing has a weight.
        mean = tree_mean(*(self._parameters[slot] for slot in slots), weights=weights if any(weights) else None)
        tensors = dict(named_leaves(mean))
        if not is_final:
            return _evaluated(self._time, kind, self._evaluation, tensors, trained)
        self.is_finished = True
        return _of_final(self._time, self._figures, self._evaluation, tensors, trained)

    def _are_final(self, live: set[int]) -> bool:
        final = {slot for slot, report in self._reports.items() if report.get("phase") == "final"}
        return bool(final) and live <= final

    def _is_late(self) -> bool:
        """Whether the wait for learners that are not final by now is over."""
        step_ns = max((report.get("step_time", 0) for report in self._reports.values()), default=0)
        return self._stop_seen_at is not None and self._now() - self._stop_seen_at >= max(LATE_NS, LATE_STEPS * step_ns)


class EvaluateModel:
    """Models in, Evaluated out; at the end the model is emitted on `final`.

    A model is {"tree", "tokens", "is_final"}: the parameters after so many tokens in all. `tokens` is the budget. It is
    emitted before it is evaluated.
    """

    outputs = ("evaluation", "final")
    collects = ("model",)
    schemas: Final = {"model": EvaluatedModel}

    def __init__(self, task: Any, *, tokens: int, times: int = TIMES_DEFAULT) -> None:
        self._task = task
        self._times, self._schedule = times, EvaluationSchedule(tokens, times)
        self.is_finished = False

    def prepare(self) -> None:
        """Do what needs no device: trace the loss, or import the task's framework."""
        if self._times:
            prepare_evaluation(self._task)

    def open(self, context: Any) -> None:
        """Make the evaluation batches."""
        self._time, self._figures = _time(self._task, context), FigureSender(self._task, context)
        self._evaluation = _evaluation(self._task, context.seed, self._times)

    def __call__(self, model: Mapping[Any, Mapping[str, Any]]) -> Emitted:
        """Evaluate the newest model, if that is due."""
        newest = max(model.values(), key=lambda item: (item["is_final"], item["tokens"]))
        kind = self._schedule.due(newest["tokens"], is_final=newest["is_final"])
        if kind is None:
            return None
        tensors = dict(named_leaves(newest["tree"]))
        if kind != "final":
            return _evaluated(self._time, kind, self._evaluation, tensors, newest["tokens"])
        self.is_finished = True
        return _of_final(self._time, self._figures, self._evaluation, tensors, newest["tokens"])


def _evaluated(
    time: EvaluationTime,
    kind: EvaluationKind,
    evaluation: Evaluating,
    tensors: Mapping[str, Any],
    tokens: int,
) -> dict[str, Any] | None:
    """The items about an evaluation of these leaves, after so many tokens; None where it is left out."""
    made = time.made(kind, parts_of(evaluation, tensors), count_of(evaluation), tokens)
    return None if made is None else {"evaluation": made}


def _of_final(
    time: EvaluationTime, figures: FigureSender, evaluation: Evaluating, tensors: Mapping[str, Any], tokens: int
) -> Generator[dict[str, Any], None, dict[str, Any] | None]:
    """Yields the final model, so that nothing waits for its evaluation to be whole, and then that."""
    yield {"final": {"fragment": 0, "version": [1, 0], "tensors": tensors}}
    made = time.made("final", parts_of(evaluation, tensors), count_of(evaluation), tokens)
    return (yield from figures.follow(made, evaluation, lambda: tensors))
