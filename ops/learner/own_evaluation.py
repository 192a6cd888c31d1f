"""The evaluation of the global model by a learner, between two of its steps, where no other host can evaluate.

Decides when a learner evaluates: as an evaluator would, at shares of the budget, as long as its home says that it is
the one that does. The model is that of the versions which this learner has adopted, as they were published: it has them
as anchors. So nothing is sent for it, and only its losses leave, in the learner's reports. It is no part of a step's
time, and no step that lasts too long.
"""

from __future__ import annotations

from typing import Protocol, final

from isthmus.ops.exchange.messages import CompanionReport, Evaluated, EvaluationKind
from isthmus.ops.island.contract import Evaluating, count_of, parts_of
from isthmus.ops.island.evaluate import EvaluationSchedule
from isthmus.ops.island.evaluation_time import EvaluationTime
from isthmus.ops.learner.boundary import Boundary, Companion


class OwnJudging(Evaluating, Protocol):
    """An evaluation by a learner, between two of its steps, which leaves the learner's own leaves as they are."""

    @property
    def is_on(self) -> bool:
        """Whether this learner is the one that evaluates."""


@final
class OwnEvaluation(Companion):
    """The evaluations that `judge` makes in one life of a learner, as long as its run has time for them."""

    def __init__(self, judge: OwnJudging, boundary: Boundary) -> None:
        context = boundary.context
        self._judge, self._at = judge, boundary
        self._time = EvaluationTime(context.now, context.stop_requested, context.queued)
        self._schedule = EvaluationSchedule(boundary.run.tokens, boundary.run.evaluations)
        self._final = set[int]()
        self._last: Evaluated | None = None

    def adopted(self, fragment: int, *, is_last: bool) -> None:
        if is_last:
            self._final.add(fragment)

    def before_step(self) -> bool:
        """Evaluate, if that is due; a learner that leaves has no time for it."""
        at = self._at
        phase = at.phase()
        kind = None if phase == "leaving" else self._due()
        if kind is None:
            return False
        began = at.context.now()
        at.publish("serving")
        self._evaluate(kind)
        at.publish(phase)
        if at.odometer.steps:
            at.times.pause(at.context.now() - began)
        return True

    def reported(self) -> CompanionReport:
        own = CompanionReport(evaluates=self._judge.is_on and self._at.phase() != "leaving")
        if self._last is not None:
            own["evaluation"] = self._last
        return own

    def _due(self) -> EvaluationKind | None:
        """The evaluation that is due now; None if none is."""
        is_over = self._last is not None and self._last["kind"] == "final"
        if not all(self._at.held) or is_over or not self._judge.is_on or not self._at.run.evaluations:
            return None
        return self._schedule.due(self._at.trained(), is_final=len(self._final) == len(self._at.fragments))

    def _evaluate(self, kind: EvaluationKind) -> None:
        """Evaluate the versions that are held; raises what the user's function raises."""
        values = {p: each.anchor for p, each in enumerate(self._at.held) if each is not None}
        parts = parts_of(self._judge, self._judge.assemble(self._at.fragments, values))
        self._last = self._time.made(kind, parts, count_of(self._judge), self._at.trained()) or self._last
