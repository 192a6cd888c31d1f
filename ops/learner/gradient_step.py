"""The inner-step node of data-parallel: a step for every mean of gradients, the same in every learner.

Each firing takes the mean of the step before and a batch: it steps along the mean, and sends the gradient of the batch,
in parts, into the ring. All learners begin with the same parameters and take the same steps, so they hold the same
bytes and agree, without further messages, when the budget is spent. A request to stop travels around the ring with the
gradients, so that all end after the same step.

Phases. *ready*: the ring is complete only when every learner knows all others; each reports whether it has received the
greetings of all of them, with a state as far as its own, and begins when all report that. *stepping*. *final*. The
others cannot go on without a learner that died: one that comes back while they step ends the run, with the reason.
Where all come back, because the operator ended them all, they go on from the last snapshot (`kept_state`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from isthmus.ops.data.batches import of_slot
from isthmus.ops.data.places import Place
from isthmus.ops.data.streams import first_batch
from isthmus.ops.exchange.kept_state import SECONDS, Due, State, newest
from isthmus.ops.exchange.messages import Control
from isthmus.ops.exchange.ring import START, Mean, parts
from isthmus.ops.island.contract import gradient_learner_of
from isthmus.ops.island.device_call import DeviceCall
from isthmus.ops.learner.gradient_report import Reporter

NO_MEAN: Final[dict[str, Any]] = START
"""The input of the first step in place of a mean."""


class GradientStep:
    """Batches and means in, parts of the gradient out; from slot 0 also the model and the state.

    The model leaves every `emit_every` steps, the state every `snapshot_seconds`. `learners` is M, `tokens` the budget
    of the run.
    """

    outputs = ("part", "hello", "model", "state", "place", "progress")

    def __init__(
        self, task: Any, *, learners: int, tokens: int, emit_every: int, snapshot_seconds: float = SECONDS
    ) -> None:
        self._task, self._learners, self._budget, self._emit_every = task, learners, tokens, emit_every
        self._phase: Literal["ready", "stepping", "final"] = "ready"
        self._heard: dict[int, Mapping[str, Any]] = {}
        self._saying: dict[str, Any] = {}
        self._said: Mapping[str, Any] = {}
        self._trained = self._steps_before = 0
        self._has_state = True
        self._is_due = Due(snapshot_seconds)
        self._scalars: Mapping[str, float] = {}
        self._is_asked = False
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
        """Compile every function, and create the initial parameters; a later life waits for a state."""
        self._context = context
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._has_state = self._incarnation == 1
        self._saying = {"slot": self._slot, "incarnation": self._incarnation}
        batch = first_batch(self._task, context.seed, self._slot)
        self._learner = gradient_learner_of(self._task, context.seed, batch, context.island)
        self._reporter = Reporter(context, self._learner.device_kind)

    def __call__(
        self,
        batch: Any,
        mean: Mean | dict[str, Any] | None,
        hello: Mapping[Any, Mapping[str, Any]] | None = None,
        kept: Mapping[Any, State] | None = None,
        control: Mapping[Any, Control] | None = None,
    ) -> list[tuple[str, Any]]:
        """Perform one step; `batch` and `mean` are None as long as the ring is not complete.

        RuntimeError in a life that comes back while others step.
        """
        self._is_asked |= any(told["stop"] for told in (control or {}).values())
        self._take(newest(kept))
        emitted = self._greet(hello)
        if mean is not None:
            emitted += self._step(batch, mean)
        emitted += self._reporter.report(self._phase)
        self.is_idle = self._phase == "ready"
        self.is_finished = self._phase == "final"
        return emitted

    def _take(self, state: State | None) -> None:
        """Go back to a state; ignored in a first life, and while stepping."""
        if state is None or self._incarnation == 1 or self._phase != "ready":
            return
        if state["leaves"]:
            self._learner.restore(state["leaves"])
        self._has_state, self._trained, self._steps_before = True, state["tokens"], state["steps"]

    def _place(self) -> Place:
        """The position at which the batches of this life begin."""
        return Place(
            slot=self._slot,
            incarnation=self._incarnation,
            shard=0,
            shards=1,
            position=self._steps_before,
            state_position=0,
            state=None,
        )

    def _greet(self, hello: Mapping[Any, Mapping[str, Any]] | None) -> list[tuple[str, Any]]:
        """Report whether all others were heard, and in which lives; begin when all report that, with the same state.

        RuntimeError where another steps with a former life of this learner.
        """
        self._heard.update({said["slot"]: said for said in (hello or {}).values()})
        if self._phase == "ready":
            lives = sorted([said["slot"], said["incarnation"]] for said in self._heard.values())
            self._saying |= {"at": self._trained, "hears_all": self._has_state and len(lives) == self._learners}
            me = [self._slot, self._incarnation]
            if any(said["steps"] and me not in said["lives"] for said in self._heard.values()):
                raise RuntimeError(
                    f"learner {self._slot} died, and data-parallel cannot go on without it: the others wait for its "
                    "gradient. Train anew, or by elastic-data-parallel, which goes on with those that are left"
                )
            agreeing = [said for said in self._heard.values() if said["hears_all"] and said["at"] == self._trained]
            if self._has_state and len(agreeing) == self._learners:
                self._phase = "stepping"
            self._saying |= {"lives": lives, "steps": self._phase == "stepping"}
        if self._saying == self._said:
            return []
        self._said = dict(self._saying)
        return [("hello", self._said), *([("place", self._place())] if self._said["steps"] else [])]

    def _step(self, batch: Any, mean: Mean | dict[str, Any]) -> list[tuple[str, Any]]:
        """Step along the mean, and send the next gradient, unless this was the last step."""
        if mean:
            self._learner.apply(mean["values"], min(1.0, self._trained / self._budget))
            self._trained += mean["tokens"]
            self._reporter.trained(of_slot(self._task.tokens_per_batch, self._slot), self._scalars)
            if mean["stop"] or self._trained >= self._budget:
                self._phase = "final"
        emitted = [*self._model(), *self._state()]
        if self._phase == "final":
            return emitted
        self._reporter.begins()
        self._scalars, gradient = self._learner.gradient(batch)
        own = parts(
            gradient,
            self._slot,
            self._learners,
            step=self._reporter.step,
            tokens=of_slot(self._task.tokens_per_batch, self._slot),
            stop=self._is_asked,
        )
        return [*emitted, *(("part", part) for part in own)]

    def _model(self) -> list[tuple[str, Any]]:
        """The model for evaluation: at intervals from one learner, at the end from all, since any may have departed."""
        is_final = self._phase == "final"
        if not is_final and (self._slot or (self._steps_before + self._reporter.step) % self._emit_every):
            return []
        return [("model", {"tree": self._learner.tree(), "tokens": self._trained, "is_final": is_final})]

    def _state(self) -> list[tuple[str, Any]]:
        """A snapshot, when it is due."""
        if self._slot or self._phase == "final" or not self._is_due(self._context.now()):
            return []
        steps, leaves = self._steps_before + self._reporter.step, list(self._learner.state())
        totals = [
            [slot, incarnation, self._reporter.step * of_slot(self._task.tokens_per_batch, slot)]
            for slot, incarnation in self._said["lives"]
        ]
        return [
            ("state", State(tokens=self._trained, steps=steps, totals=totals, positions=[], streams=[], leaves=leaves))
        ]
