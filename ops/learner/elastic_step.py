"""The inner-step node of elastic data-parallel: one step for every mean of the gradients of the present learners.

Each firing takes a call and a batch: it steps along the mean of the round before, and votes in the next round with the
gradient of the batch. All learners that have taken every mean since the first hold the same bytes. The *donor*, named
by the call, sends its state along with its vote; a new learner takes the state, then the mean of that round, and is at
the same step as all others.

Phases. *ready*: it holds no valid model, and waits for the beginning, or for a state that is addressed to it.
*stepping*. *final*. A learner's tokens count when its vote is in the mean. A beginning that brings a state comes from a
syncer in its next life: all learners go back to that state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from isthmus.ops.data.places import Cursor
from isthmus.ops.data.streams import first_batch
from isthmus.ops.exchange.kept_state import SECONDS, Due, State
from isthmus.ops.exchange.messages import Call, Vector, Vote
from isthmus.ops.island.contract import gradient_learner_of
from isthmus.ops.island.device_call import DeviceCall
from isthmus.ops.learner.feed import Feed
from isthmus.ops.learner.gradient_report import Reporter


class ElasticStep:
    """Batches and calls in, votes out; from the lowest slot also the model and the state.

    The model leaves every `emit_every` steps, the state every `snapshot_seconds`. `tokens` is the budget of the run,
    which the learning rate follows.
    """

    outputs = ("vote", "model", "state", "progress")

    def __init__(self, task: Any, *, tokens: int, emit_every: int, snapshot_seconds: float = SECONDS) -> None:
        self._task, self._budget, self._emit_every = task, tokens, emit_every
        self._phase: Literal["ready", "stepping", "final"] = "ready"
        self._round = 0
        self._is_due = Due(snapshot_seconds)
        self._scalars: Mapping[str, float] = {}
        self._feed = Feed()
        self.is_idle = True
        self.is_finished = False

    def prepare(self) -> None:
        """Trace every function, which needs no device."""
        from isthmus.ops.island.jax_gradients import trace

        trace(self._task, first_batch(self._task, 0))

    def calls_on(self, devices: tuple[Any, ...] | None, seed: int, slot: int) -> Iterator[DeviceCall]:
        """Every function that a learner in this slot calls on these devices, for compilation ahead of time."""
        from isthmus.ops.island.jax_gradients import calls

        return calls(self._task, first_batch(self._task, seed, slot), devices)

    def open(self, context: Any) -> None:
        """Compile every function, and create the initial parameters."""
        self._context = context
        self._feed.open(context)
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        batch = first_batch(self._task, context.seed, self._slot)
        self._learner = gradient_learner_of(self._task, context.seed, batch, context.island)
        self._reporter = Reporter(context, self._learner.device_kind)

    def __call__(
        self, batch: Any, call: Mapping[Any, Call] | None, cursor: Cursor | None = None
    ) -> list[tuple[str, Any]]:
        """Perform one step; `batch` and `call` are None in the first firing, which only announces this learner."""
        if cursor is not None:
            self._feed.hear(cursor)
        if batch is not None:
            self._feed.take()
        emitted = [each for item in (call or {}).values() for each in self._follow(batch, item)]
        emitted += self._reporter.report(self._phase)
        self.is_idle = False
        self.is_finished = self._phase == "final"
        return emitted

    def _follow(self, batch: Any, call: Call) -> list[tuple[str, Any]]:
        """Step along the mean, and vote; a learner that has missed a mean waits for a state."""
        me = [self._slot, self._incarnation]
        if call["mean"] is None:
            if call["state"]:
                self._learner.restore(call["state"])
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
        return [*self._model(call), *self._state(call), *self._vote(batch, call)]

    def _step(self, mean: Vector, call: Call) -> None:
        self._learner.apply(mean, min(1.0, call["trained_before"] / self._budget))
        if [self._slot, self._incarnation] in call["voters"]:
            self._reporter.trained(self._task.tokens_per_batch, self._scalars)
        if call["is_last"]:
            self._phase = "final"

    def _model(self, call: Call) -> list[tuple[str, Any]]:
        """The model for evaluation: at intervals from one learner, at the end from all, since any may have departed."""
        is_final = self._phase == "final"
        is_first = call["members"][:1] == [[self._slot, self._incarnation]]
        if not is_final and not (is_first and (call["round"] - 1) % self._emit_every == 0):
            return []
        return [("model", {"tree": self._learner.tree(), "tokens": call["trained"], "is_final": is_final})]

    def _state(self, call: Call) -> list[tuple[str, Any]]:
        """A snapshot, when it is due."""
        is_first = call["members"][:1] == [[self._slot, self._incarnation]]
        if not is_first or self._phase == "final" or not self._is_due(self._context.now()):
            return []
        state = State(
            tokens=call["trained"],
            steps=0,
            totals=call["totals"],
            positions=call["positions"],
            streams=call["streams"],
            leaves=list(self._learner.state()),
        )
        return [("state", state)]

    def _vote(self, batch: Any, call: Call) -> list[tuple[str, Any]]:
        if self._phase == "final":
            return []
        state: Sequence[Any] | None = self._learner.state() if call["donor"] == self._slot else None
        self._reporter.begins()
        self._scalars, gradient = self._learner.gradient(batch)
        vote = Vote(
            round=call["round"],
            slot=self._slot,
            incarnation=self._incarnation,
            tokens=self._task.tokens_per_batch,
            values=gradient,
            state=None if state is None else list(state),
            positions=[[self._slot, self._feed.reached]],
            stream=self._feed.told(),
        )
        return [("vote", vote)]
