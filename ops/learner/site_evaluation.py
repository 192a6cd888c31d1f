"""The evaluation by a learner on the held-out part of its site's own data: of the global model and of its own last one.

Decides when, and of which parameters; how much there is to evaluate follows from the request (`SitePlan`), so that all
evaluations of a site have the same text. At one boundary at which the learner adopts versions two models are compared:

- its **own last** model: its parameters just before that adoption, with all steps that it has made by then;
- the **global** model: the newest version of every fragment that it holds just after that adoption, as published.

So both are of one moment. Before its first step a learner has no model of its own; behind the last step its own last
model is that before the first adoption since, and the global one the last version of every fragment. Leaves that are
local are in both as a life begins.

It is no part of a step's time, as `own_evaluation`. Those on the way cost at most SHARE of the time of the steps: one
that is due waits for as long as it would exceed that. The first of a slot, before its first step, and the one of the
final model are always made. Nothing here changes the learner: its parameters are read as for an answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np

from isthmus.ops.data.held_out import FORWARD, Extract
from isthmus.ops.data.positions import of_slot
from isthmus.ops.data.site_terms import EVALUATIONS, SHARE, SiteTerms
from isthmus.ops.exchange.messages import CompanionReport, EvaluationKind, SiteEvaluated, SiteReport, SiteScores
from isthmus.ops.island.contract import Evaluating, Unevaluated, count_of, parts_of
from isthmus.ops.island.evaluation_time import EvaluationTime
from isthmus.ops.island.scores import ERROR, LOSS, batches_by_set, some_of
from isthmus.ops.learner.boundary import Boundary, Companion

PLANNED: Final = 0.75 * SHARE
"""Of its steps, what a plan spends: the rest is for reading parameters, and for batches that cost more than a third of
a step, as on CPUs (`tests/bench/long/bench_site_rate.py`)."""
TIMES: Final = 5
"""How often a site evaluates, where its share leaves a choice between that and more text."""
TIMES_MAX: Final = 20
BATCHES_MIN: Final = 2
REPORTED: Final = 2
"""Evaluations in a report: while it is overtaken, one more may be made."""


class SitePlan(NamedTuple):
    """On how many `batches` each evaluation is, how many `times` there is one, the first and the last included, and the
    steps that one of two models costs."""

    batches: int
    times: int
    steps: float

    @classmethod
    def of(cls, steps: float, batch_steps: float, batches: int, least: int = BATCHES_MIN) -> SitePlan:
        """That of a learner of so many steps, of whose held-out part and sets there are so many batches, of which each
        costs `batch_steps` steps where one model predicts it. All together cost at most PLANNED of its steps, unless
        two evaluations on the `least` batches do."""
        most = PLANNED * steps / batch_steps
        kept = min(batches, max(least, int(most / _models(TIMES))))
        times = min((int(most / kept) + 1) // 2, TIMES_MAX if kept == batches else TIMES)
        return cls(kept, max(2, times), 2 * kept * batch_steps)


def _models(times: int) -> int:
    """How many models are evaluated: at the first of so many times, the global one alone."""
    return 2 * times - 1


def batch_steps(predicted: float, trained: float) -> float:
    """What the evaluation of a batch costs, in steps: it predicts so many tokens, and a step trains on so many."""
    return predicted / (FORWARD * trained)


class SiteJudge(NamedTuple):
    """What a learner evaluates with: on `predicted` tokens, 0 where they are not known, as often as the plan has it."""

    evaluation: Evaluating
    plan: SitePlan
    predicted: int = 0


class SiteTask(Protocol):
    """What is used here of the task of a site's learner."""

    tokens_most: int | tuple[int, ...]
    extract: Extract | None
    paths: tuple[int, ...]

    def evaluation_batches(self, seed: int, path: int = 0) -> Iterator[Any]:
        """The batches of the held-out part of its data."""

    def site_evaluator(self, seed: int, batches: Mapping[str, Sequence[Any]], slot: int) -> Evaluating:
        """An evaluation by the learner in a slot on batches by set, beside its steps."""


def judge_of(task: SiteTask, boundary: Boundary) -> SiteJudge:
    """What the learner of this boundary evaluates with."""
    member, seed = boundary.context.member, boundary.context.seed
    slot = member.replica.slot
    own = list(task.evaluation_batches(seed, slot % math.prod(task.paths)))
    batches = batches_by_set(task, own)
    trained = of_slot(task.tokens_most, slot)
    if not own:
        return SiteJudge(Unevaluated(), SitePlan(1, 2, 0.0))
    predicted = of_slot(task.tokens_most, 0) * len(own)
    if task.extract is not None:
        predicted = task.extract.windows * task.extract.tokens
    steps = boundary.run.tokens / boundary.run.learners / trained
    counts = [len(each) for each in batches.values()]
    least = sum(min(BATCHES_MIN, count) for count in counts)
    plan = SitePlan.of(steps, batch_steps(predicted / len(own), trained), sum(counts), least)
    kept = some_of(batches, plan.batches)
    return SiteJudge(task.site_evaluator(seed, kept, slot), plan, predicted * len(kept[""]) // len(own))


def judge_of_loop(evaluation: Evaluating) -> SiteJudge:
    """That of a user's loop, whose script evaluates: what it costs is known once it was made."""
    return SiteJudge(evaluation, SitePlan(1, TIMES, 0.0))


@final
class SiteEvaluation(Companion):
    """The evaluations in one life of a learner; `make` makes what they are made with, once, before the first step."""

    def __init__(self, site: SiteTerms, make: Callable[[], SiteJudge], boundary: Boundary) -> None:
        context = boundary.context
        self._site, self._make, self._at = site, make, boundary
        self._time = EvaluationTime(context.now, context.stop_requested, context.queued)
        self._judge: SiteJudge | None = None
        self._share = 0
        """The share of the budget at which the last one was made, in parts of which there is one for each time."""
        self._final = set[int]()
        self._own: list[Any] | None = None
        """The parameters just before an adoption, by fragment, until they are evaluated."""
        self._own_step = self._adopted_step = -1
        """The steps before these were read, and before the last adoption."""
        self._ends = False
        self._spent = self._took = self._made = 0
        self._last: list[SiteEvaluated] = []
        self._unwritten = b""
        self._is_over = False

    # -- at a boundary -------------------------------------------------------------------------------------------------

    def adopting(self, *, is_last: bool) -> None:
        """Read the learner's parameters, where they are to be evaluated."""
        at, step = self._at, self._at.odometer.steps
        # After a step there is one model of the learner's own, that before the first adoption since.
        is_first_since = step not in (0, self._adopted_step)
        self._adopted_step, self._ends = step, is_last
        if is_first_since and self._judge is not None and not self._is_over and (is_last or self._is_due()):
            began = at.context.now()
            self._own, self._own_step = [at.learner.extract(p) for p in range(len(at.fragments))], step
            self._pause(began)

    def adopted(self, fragment: int, *, is_last: bool) -> None:
        if is_last:
            self._final.add(fragment)

    def before_step(self) -> bool:
        """Evaluate, if that is due; a learner that leaves has no time for it."""
        at = self._at
        phase = at.phase()
        if self._is_over or not all(at.held):
            return False
        if phase == "leaving":
            self._own = None
            return False
        began = at.context.now()
        is_first = self._judge is None
        if self._judge is None:
            at.publish("serving")
            self._judge = self._begun()
        kind = self._kind(is_first=is_first)
        if kind is not None:
            at.publish("serving")
            self._evaluate(self._judge, kind)
        if is_first or kind is not None:
            at.publish(phase)
            self._pause(began)
        elif not self._ends:
            self._own = None  # What is not evaluated now is soon no longer the last.
        return kind is not None

    def _kind(self, *, is_first: bool) -> EvaluationKind | None:
        """The evaluation that is due now; None if none is."""
        if len(self._final) == len(self._at.fragments):
            return "final"
        if is_first:  # A later life goes on, unless the first one has died early, perhaps before it could tell.
            return "initial" if self._at.context.member.incarnation == 1 or not self._share else None
        has_own = self._own is not None and self._own_step == self._at.odometer.steps
        return "during" if has_own and not self._ends and self._is_due() else None

    def _begun(self) -> SiteJudge:
        """Make what is evaluated with, and compile it, on the first batch: no evaluation is timed with that."""
        judge = self._make()
        parts = self._parts(judge.evaluation, None)
        if count_of(judge.evaluation) > 1:
            for _ in range(2):  # The first yield is before the first batch.
                next(parts, None)
        parts.close()
        self._share = self._share_of(judge.plan)
        return judge

    # -- when ----------------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Whether a share of the budget is reached, and the time for its evaluation is there."""
        assert self._judge is not None, "an evaluation is due once it can be made"
        plan, times = self._judge.plan, self._at.times
        if self._share_of(plan) <= self._share:
            return False
        needed = self._took or round(plan.steps * times.usual)
        return self._spent + needed <= SHARE * times.stepping(self._at.context.now())

    def _share_of(self, plan: SitePlan) -> int:
        """How many of the equal parts of the budget are trained, but for the last: the final model has its own time."""
        return min(plan.times - 2, self._at.trained() * (plan.times - 1) // max(self._at.run.tokens, 1))

    def _pause(self, began: int) -> None:
        """What has lasted since then was no step."""
        if self._at.odometer.steps:
            duration = self._at.context.now() - began
            self._spent += duration
            self._at.times.pause(duration)

    # -- what ----------------------------------------------------------------------------------------------------------

    def _evaluate(self, judge: SiteJudge, kind: EvaluationKind) -> None:
        """Evaluate both models; raises what the user's function raises."""
        at = self._at
        own = self._own if self._own_step == at.odometer.steps else None
        self._own = None
        models = 1 if own is None else 2
        ended = self._time.ended(kind, self._parts(judge.evaluation, own), models * count_of(judge.evaluation))
        self._is_over = kind == "final"
        self._share = self._share_of(judge.plan)
        if ended is None:  # Of a run that was stopped.
            return
        (of_global, of_own), took = ended
        self._took = took * 2 // models
        is_known = own is None and self._last and self._last[-1]["own_tokens"] == at.odometer.tokens
        made = SiteEvaluated(
            kind=kind,
            number=self._made,
            tokens=at.trained(),
            own_tokens=at.odometer.tokens,
            versions=[list(each.ledger.base) for each in at.held if each is not None],
            predicted=judge.predicted,
            took=took,
            of_global=self._scores(of_global),
            of_own=self._last[-1]["of_own"] if is_known else None if of_own is None else self._scores(of_own),
        )
        self._made += 1
        self._last = [*self._last, made][-REPORTED:]
        self._write(made)

    def _parts(
        self, evaluation: Evaluating, own: Sequence[Any] | None
    ) -> Generator[None, None, tuple[Mapping[str, float], Mapping[str, float] | None]]:
        """The evaluation of the versions that are held, and of the learner's own parameters, where they were read."""
        anchors = {p: each.anchor for p, each in enumerate(self._at.held) if each is not None}
        of_global = yield from parts_of(evaluation, evaluation.assemble(self._at.fragments, anchors))
        if own is None:
            return of_global, None
        values = {p: np.asarray(each, np.float32) for p, each in enumerate(own)}
        return of_global, (yield from parts_of(evaluation, evaluation.assemble(self._at.fragments, values)))

    def _scores(self, scalars: Mapping[str, float]) -> SiteScores:
        """The scalars of one model, as they are told."""
        loss = scalars.get(LOSS)
        others = [[name, value] for name, value in scalars.items() if name not in (LOSS, ERROR)]
        scores = SiteScores(loss=loss, metrics=others)
        if ERROR in scalars:
            scores["error"] = scalars[ERROR]
        if loss is not None and (bits := self._site.bits_per_byte(loss)) is not None:
            scores["bits"] = bits
        return scores

    # -- who gets it ---------------------------------------------------------------------------------------------------

    def reported(self) -> CompanionReport:
        site = self._site
        return CompanionReport(
            site=SiteReport(
                digest=site.words,
                bytes=site.bytes,
                tokens=site.tokens,
                is_told=site.is_told,
                awaits=not self._is_over and self._at.phase() != "leaving",
                evaluations=list(self._last) if site.is_told else [],
            )
        )

    def _write(self, made: SiteEvaluated) -> None:
        """Add a line to the file of the site; what the disk does not take is tried again with the next."""
        context = self._at.context
        if context.folder is None:
            return
        member = context.member
        line = {"learner": member.replica.slot, "incarnation": member.incarnation, **made}
        self._unwritten += json.dumps(_finite(line)).encode() + b"\n"
        try:
            file = context.disk.append(Path(context.folder) / EVALUATIONS)
            try:
                self._unwritten = self._unwritten[file.write(self._unwritten) :]
            finally:
                file.close()
        except OSError:
            return


def _finite(value: Any) -> Any:
    """What JSON can express: None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
