"""The evaluation of the global model by a learner, between two of its steps, where no other host can evaluate.

Decides when a learner evaluates: as an evaluator would, at shares of the budget, as long as its home says that it is
the one that does. The model is that of the versions which this learner has adopted, as they were published: it has them
as anchors. So nothing is sent for it, and only its losses leave, in the learner's reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Evaluated, EvaluationKind
from isthmus.ops.island.contract import OwnJudging, count_of, parts_of
from isthmus.ops.island.evaluate import EvaluationSchedule
from isthmus.ops.island.evaluation_time import EvaluationTime
from isthmus.ops.learner.answers import HeldFragment


@final
class OwnEvaluation:
    """The evaluations that `judge` makes in one life of a learner, of `fragments`, as long as its `time` has room for
    them; `tokens` is the budget; there are `times` evaluations at most, none of 0."""

    def __init__(
        self, judge: OwnJudging, fragments: Sequence[Fragment], *, time: EvaluationTime, tokens: int, times: int
    ) -> None:
        self._judge, self._fragments, self._time, self._times = judge, fragments, time, times
        self._schedule = EvaluationSchedule(tokens, times)
        self._final = set[int]()
        self.last: Evaluated | None = None

    @property
    def is_on(self) -> bool:
        """Whether this learner is the one that evaluates."""
        return self._judge.is_on

    def adopted_final(self, fragment: int) -> None:
        """The final version of a fragment was adopted."""
        self._final.add(fragment)

    def due(self, held: Sequence[HeldFragment | None], trained: int) -> EvaluationKind | None:
        """The evaluation that is due now, after so many trained tokens; None if none is."""
        is_over = self.last is not None and self.last["kind"] == "final"
        if not all(held) or is_over or not self.is_on or not self._times:
            return None
        return self._schedule.due(trained, is_final=len(self._final) == len(self._fragments))

    def evaluate(self, kind: EvaluationKind, held: Sequence[HeldFragment | None], trained: int) -> None:
        """Evaluate the versions that are held; raises what the user's function raises."""
        values = {p: each.anchor for p, each in enumerate(held) if each is not None}
        parts = parts_of(self._judge, self._judge.assemble(self._fragments, values))
        self.last = self._time.made(kind, parts, count_of(self._judge), trained) or self.last
