"""The evaluation node of programs whose learners all hold the same model: it evaluates the one that a learner sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.contract import evaluation_of
from isthmus.ops.island.evaluate import TIMES_DEFAULT, Schedule, evaluated


class EvaluateModel:
    """Models in, Evaluated out; at the end the model is emitted on `final`.

    A model is {"tree", "tokens", "is_final"}: the parameters after so many tokens in all. `tokens` is the budget.
    """

    outputs = ("evaluation", "final")

    def __init__(self, task: Any, *, tokens: int, times: int = TIMES_DEFAULT) -> None:
        self._task = task
        self._schedule = Schedule(tokens, times)
        self.is_finished = False

    def prepare(self) -> None:
        """Trace the loss."""
        from isthmus.ops.island.jax_evaluation import trace_evaluation

        trace_evaluation(self._task)

    def open(self, context: Any) -> None:
        """Make the evaluation batches."""
        self._evaluation = evaluation_of(self._task, context.seed)

    def __call__(self, model: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Evaluate the newest model, if that is due."""
        newest = max(model.values(), key=lambda item: (item["is_final"], item["tokens"]))
        kind = self._schedule.due(newest["tokens"], is_final=newest["is_final"])
        if kind is None:
            return None
        tensors = dict(named_leaves(newest["tree"]))
        told = evaluated(kind, self._evaluation.metrics(tensors), newest["tokens"])
        if kind != "final":
            return {"evaluation": told}
        self.is_finished = True
        return {"evaluation": told, "final": {"fragment": 0, "version": [1, 0], "tensors": tensors}}
