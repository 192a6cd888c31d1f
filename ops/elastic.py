"""The inner-step node of elastic data-parallel: a step for every mean of the gradients of those who are there.

Each firing takes a call and a batch: it steps along the mean of the round before, and votes in the next round with the
gradient of the batch. All who have taken every mean since the first hold the same bytes. One that is told to, the
*donor*, sends its state along with its vote; whoever is new takes the state, then the mean that came of that round, and
is at the same step as everybody.

Phases. *ready*: it holds no model that counts, and waits for the beginning, or for a state that is meant for it.
*stepping*. *final*. What a learner has trained counts when its vote is in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from isthmus.ops.gradient_report import Reporter
from isthmus.ops.items import Vector
from isthmus.ops.learning import gradient_learner_of


class Opening(TypedDict):
    """caller -> average: a round of `members` ([slot, incarnation] pairs), all of whom are waited for."""

    round: int
    members: list[list[int]]
    count_min: int
    grace: int | None


class Call(TypedDict):
    """caller -> inner-step: the mean of the round before, None where there is none yet, and a call to vote in `round`.

    `voters` are those whose votes are in the mean. The `served` take `state` before it; `donor` is to send its state
    along with its vote. `trained_before` and `trained` are the tokens of all means without and with this one.
    """

    round: int
    members: list[list[int]]
    mean: Vector | None
    voters: list[list[int]]
    served: list[list[int]]
    state: list[Any] | None
    donor: int | None
    trained_before: int
    trained: int
    is_last: bool


class Vote(TypedDict):
    """inner-step -> average: a gradient, float32[n], of so many tokens; of a donor also its state before the round."""

    round: int
    slot: int
    incarnation: int
    tokens: int
    values: Vector
    state: list[Any] | None


class ElasticStep:
    """Batches and calls in; votes out, and every `emit_every` steps, of the lowest slot, the model.

    `tokens` is the budget of the run, which the learning rate follows.
    """

    outputs = ("vote", "model", "progress")

    def __init__(self, task: Any, *, tokens: int, emit_every: int) -> None:
        self._task, self._budget, self._emit_every = task, tokens, emit_every
        self._phase: Literal["ready", "stepping", "final"] = "ready"
        self._round = 0
        self._loss = 0.0
        self.is_idle = True
        self.is_finished = False

    def prepare(self) -> None:
        """Trace every function, which needs no device."""
        from isthmus.ops.data import At
        from isthmus.ops.gradient_learner import trace

        trace(self._task, self._task.batch(At(0, 0, 0)))

    def open(self, context: Any) -> None:
        """Compile every function, and make the first parameters."""
        from isthmus.ops.data import At

        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        batch = self._task.batch(At(context.seed, self._slot, 0))
        self._learner = gradient_learner_of(self._task, context.seed, batch)
        self._reporter = Reporter(context, self._learner.device_kind)

    def __call__(self, batch: Any, call: Call | None) -> list[tuple[str, Any]]:
        """One step; `batch` and `call` are None in the first firing, which only says that this learner is there."""
        emitted = [] if call is None else self._follow(batch, call)
        emitted += self._reporter.report(self._phase)
        self.is_idle = False
        self.is_finished = self._phase == "final"
        return emitted

    def _follow(self, batch: Any, call: Call) -> list[tuple[str, Any]]:
        """Step along the mean, and vote; whoever has missed a mean waits for a state."""
        me = [self._slot, self._incarnation]
        if call["mean"] is None:
            self._phase = "stepping" if me in call["members"] else "ready"
        elif self._phase == "stepping" and call["round"] == self._round + 1:
            self._step(call["mean"], call)
        elif me in call["served"] and call["state"] is not None:
            self._learner.restore(call["state"])
            self._phase = "stepping"
            self._step(call["mean"], call)
        else:
            self._phase = "ready"
        if self._phase == "ready":
            return []
        self._round = call["round"]
        return [*self._model(call), *self._vote(batch, call)]

    def _step(self, mean: Vector, call: Call) -> None:
        self._learner.apply(mean, min(1.0, call["trained_before"] / self._budget))
        if [self._slot, self._incarnation] in call["voters"]:
            self._reporter.trained(self._task.tokens_per_batch, self._loss)
        if call["is_last"]:
            self._phase = "final"

    def _model(self, call: Call) -> list[tuple[str, Any]]:
        """The model for whoever evaluates it: now and then of one learner, at the end of all, for each may be gone."""
        is_final = self._phase == "final"
        is_first = call["members"][:1] == [[self._slot, self._incarnation]]
        if not is_final and not (is_first and (call["round"] - 1) % self._emit_every == 0):
            return []
        return [("model", {"tree": self._learner.tree(), "tokens": call["trained"], "is_final": is_final})]

    def _vote(self, batch: Any, call: Call) -> list[tuple[str, Any]]:
        if self._phase == "final":
            return []
        state: Sequence[Any] | None = self._learner.state() if call["donor"] == self._slot else None
        self._reporter.begins()
        self._loss, gradient = self._learner.gradient(batch)
        vote = Vote(
            round=call["round"],
            slot=self._slot,
            incarnation=self._incarnation,
            tokens=self._task.tokens_per_batch,
            values=gradient,
            state=None if state is None else list(state),
        )
        return [("vote", vote)]
