"""The inner-step nodes of data-parallel training: one step for every mean of gradients, the same in every learner.

Decides when a learner votes, steps, gives its state to others, and reports. All learners begin with the same parameters
and take the same means, so they hold the same bytes and agree, without further messages, when the budget is spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from isthmus.ops.data.batches import first_batch, tokens_in
from isthmus.ops.data.positions import Cursor, Place, by_slot, position_of
from isthmus.ops.exchange.messages import (
    SECONDS,
    Call,
    Control,
    Due,
    LockStepGreeting,
    StepReport,
    Vector,
    Vote,
    WholeState,
    newest,
)
from isthmus.ops.exchange.ring import START, Mean, parts
from isthmus.ops.island.compiling import published
from isthmus.ops.island.life import DeviceCall
from isthmus.ops.learner.answers import Feed
from isthmus.ops.learner.inner_step import REPORT_NS
from isthmus.ops.learner.step_times import StepTimes
from isthmus.programs.wings.data_parallel.gradient_learners import gradient_learner_of, prepare_gradient_learner

Phase = Literal["ready", "stepping", "final"]


def in_slots(rows: Iterable[tuple[int, int]]) -> list[list[int]]:
    """[slot, tokens] over all lives, of rows (slot, tokens)."""
    tokens_of: Counter[int] = Counter()
    for slot, tokens in rows:
        tokens_of[slot] += tokens
    return [[slot, tokens] for slot, tokens in sorted(tokens_of.items())]


class Reporter:
    """The counts of one life of a learner. `in_model` are [slot, tokens] in the model that it has now.

    The first report is due at once, then one at every change of phase, and every 100 ms.
    """

    def __init__(self, context: Any, device_kind: str) -> None:
        self._context, self._device_kind = context, device_kind
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self.step = self.tokens = self._not_finite = 0
        self._times = StepTimes(context.now, context.away)
        self._stepping = self._reported_at = 0
        self._phase: Phase | None = None
        self._scalars: list[Mapping[str, float]] = []
        self.in_model: list[list[int]] = []

    def begins(self) -> None:
        """Record the start of a step."""
        if self.step == 0:
            self._times.begin()
        self._times.stepped()

    def trained(self, tokens: int, scalars: Mapping[str, float]) -> None:
        """Record the end of a step; `scalars` are those of its batch."""
        self.step += 1
        self.tokens += tokens
        self._not_finite += not math.isfinite(scalars["loss"])
        self._scalars.append(scalars)

    def report(self, phase: Phase) -> list[tuple[str, StepReport]]:
        """The report that is due now on port `progress`, if any."""
        now = self._context.now()
        if phase == self._phase and now - self._reported_at < REPORT_NS:
            return []
        self._phase, self._reported_at = phase, now
        if self.step and phase == "stepping":
            self._stepping = self._times.stepping(now)
        means = self._means()
        usual = {"usual_step_ns": usual_step} if (usual_step := self._times.usual) else {}
        self._context.publish({"phase": phase, "step": self.step, "sick": False, **usual})
        traffic = self._context.traffic
        report = StepReport(
            slot=self._slot,
            incarnation=self._incarnation,
            phase=phase,
            step=self.step,
            tokens=self.tokens,
            stepping=self._stepping,
            away=self._times.away,
            step_time=self._times.average,
            loss=means.pop("loss", math.nan),
            metrics=[[name, mean] for name, mean in means.items()],
            delay_steps=0,
            staleness=0,
            sick=False,
            sick_step=0,
            epochs=[],
            accounts=[],
            versions=[],
            totals=[[self._slot, self._incarnation, self.tokens]],
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            waited=traffic.nodes[self._context.node].waited,
            device_kind=self._device_kind,
            began=None,
            in_model=self.in_model,
            not_finite=self._not_finite,
        )
        return [("progress", report)]

    def _means(self) -> dict[str, float]:
        """The means of the scalars since the previous call; empty if no step was made."""
        names = self._scalars[0] if self._scalars else ()
        means = {name: sum(each[name] for each in self._scalars) / len(self._scalars) for name in names}
        self._scalars.clear()
        return means


class ElasticStep:
    """Batches and calls in, votes out; from the lowest slot also the model and the state.

    The model leaves every `emit_every` steps, the state every `snapshot_seconds`. `tokens` is the budget of the run,
    which the learning rate follows.

    Each firing takes a call and a batch: it steps along the mean of the round before, and votes in the next round with
    the gradient of the batch. The *donor*, named by the call, sends its state along with its vote; a new learner takes
    the state, then the mean of that round, and is at the same step as all others. Phases: *ready* without a valid
    model, until the beginning or a state addressed to it; *stepping*; *final*. A beginning that brings a state comes
    from a syncer in its next life: all learners go back to that state.
    """

    outputs = ("vote", "model", "state", "progress")
    collects = ("call",)
    schemas: ClassVar[dict[str, Any]] = {"call": Call}

    def __init__(self, task: Any, *, tokens: int, emit_every: int, snapshot_seconds: float = SECONDS) -> None:
        self._task, self._budget, self._emit_every = task, tokens, emit_every
        self._phase: Literal["ready", "stepping", "final"] = "ready"
        self._round = self._tokens = 0
        self._is_due = Due(snapshot_seconds)
        self._scalars: Mapping[str, float] = {}
        self._feed = Feed()
        self.is_idle = True
        self.is_finished = False

    def prepare(self) -> None:
        """Do what needs no device: trace every function, or import the task's framework."""
        prepare_gradient_learner(self._task)

    def calls_on(self, devices: tuple[Any, ...] | None, seed: int, slot: int) -> Iterator[DeviceCall]:
        """Every function that a learner in this slot calls on these devices, for compilation ahead of time."""
        from isthmus.programs.wings.data_parallel.jax_gradients import calls

        return calls(self._task, first_batch(self._task, seed, slot), devices)

    def open(self, context: Any) -> None:
        """Compile every function, and create the initial parameters."""
        self._context = context
        self._feed.open(context)
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        batch = first_batch(self._task, context.seed, self._slot)
        with published(context):
            self._learner = gradient_learner_of(self._task, context.seed, batch, context.island)
        self._reporter = Reporter(context, self._learner.device_kind)

    def __call__(
        self, batch: Any, call: Mapping[Any, Call] | None, cursor: Cursor | None = None
    ) -> list[tuple[str, Any]]:
        """Perform one step; `batch` and `call` are None in the first firing, which only announces this learner."""
        if cursor is not None:
            self._feed.accept(cursor)
        if batch is not None:
            self._feed.advance()
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
            self._reporter.trained(self._tokens, self._scalars)
        self._reporter.in_model = in_slots((slot, tokens) for slot, _, tokens in call["totals"])
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
        state = WholeState(
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
        self._tokens = tokens_in(batch, self._task.tokens_per_batch, self._slot)
        vote = Vote(
            round=call["round"],
            slot=self._slot,
            incarnation=self._incarnation,
            tokens=self._tokens,
            values=gradient,
            state=None if state is None else list(state),
            positions=[[self._slot, self._feed.reached]],
            stream=self._feed.reached_state(),
        )
        return [("vote", vote)]


NO_MEAN: Final[dict[str, Any]] = START
"""The input of the first step in place of a mean."""


class GradientStep:
    """Batches and means in, parts of the gradient out; from slot 0 also the model and the state.

    The model leaves every `emit_every` steps, the state every `snapshot_seconds`. `learners` is M, `tokens` the budget
    of the run.

    Each firing takes the mean of the step before and a batch: it steps along the mean, and sends the gradient of the
    batch, in parts, into the ring. A request to stop travels around the ring with the gradients, so that all end after
    the same step. *ready*: each reports whether it has received the greetings of all others, with a state as far as its
    own, and begins when all report that. The others cannot continue without a learner that died: one that comes back
    while they step ends the run, with the reason. Where all come back, they continue from the last snapshot, which
    the recorder keeps.
    """

    outputs = ("part", "hello", "model", "state", "place", "progress")
    collects = ("hello", "control", "kept")
    schemas: ClassVar[dict[str, Any]] = {"hello": LockStepGreeting, "control": Control, "kept": WholeState}

    def __init__(
        self, task: Any, *, learners: int, tokens: int, emit_every: int, snapshot_seconds: float = SECONDS
    ) -> None:
        self._task, self._learners, self._budget, self._emit_every = task, learners, tokens, emit_every
        self._phase: Literal["ready", "stepping", "final"] = "ready"
        self._heard: dict[int, Mapping[str, Any]] = {}
        self._greeting_next: dict[str, Any] = {}
        self._greeting: Mapping[str, Any] = {}
        self._trained = self._steps_before = self._position_before = 0
        self._feed = Feed()
        self._totals: dict[tuple[int, int], int] = {}
        self._positions: dict[int, int] = {}
        self._has_state = True
        self._is_due = Due(snapshot_seconds)
        self._scalars: Mapping[str, float] = {}
        self._is_stopping = False
        self._tokens = 0
        self.is_idle = True
        self.is_finished = False

    def prepare(self) -> None:
        """Do what needs no device: trace every function, or import the task's framework."""
        prepare_gradient_learner(self._task)

    def calls_on(self, devices: tuple[Any, ...] | None, seed: int, slot: int) -> Iterator[DeviceCall]:
        """Every function that a learner in this slot calls on these devices, for compilation ahead of time."""
        from isthmus.programs.wings.data_parallel.jax_gradients import calls

        return calls(self._task, first_batch(self._task, seed, slot), devices)

    def open(self, context: Any) -> None:
        """Compile every function, and create the initial parameters; a later life waits for a state."""
        self._context = context
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._feed.open(context)
        self._has_state = self._incarnation == 1
        self._greeting_next = {"slot": self._slot, "incarnation": self._incarnation}
        batch = first_batch(self._task, context.seed, self._slot)
        with published(context):
            self._learner = gradient_learner_of(self._task, context.seed, batch, context.island)
        self._reporter = Reporter(context, self._learner.device_kind)

    def __call__(
        self,
        batch: Any,
        mean: Mean | dict[str, Any] | None,
        hello: Mapping[Any, Mapping[str, Any]] | None = None,
        kept: Mapping[Any, WholeState] | None = None,
        control: Mapping[Any, Control] | None = None,
        cursor: Cursor | None = None,
    ) -> list[tuple[str, Any]]:
        """Perform one step; `batch` and `mean` are None as long as the ring is not complete.

        RuntimeError in a life that comes back while others step.
        """
        if cursor is not None:
            self._feed.accept(cursor)
        self._is_stopping |= any(item["stop"] for item in (control or {}).values())
        self._take(newest(kept))
        emitted = self._greet(hello)
        if mean is not None:
            emitted += self._step(batch, mean)
        emitted += self._reporter.report(self._phase)
        self.is_idle = self._phase == "ready"
        self.is_finished = self._phase == "final"
        return emitted

    def _take(self, state: WholeState | None) -> None:
        """Go back to a state; ignored in a first life, and while stepping."""
        if state is None or self._incarnation == 1 or self._phase != "ready":
            return
        if state["leaves"]:
            self._learner.restore(state["leaves"])
        self._has_state, self._trained, self._steps_before = True, state["tokens"], state["steps"]
        self._totals = {(slot, incarnation): tokens for slot, incarnation, tokens in state["totals"]}
        self._positions = by_slot(state["positions"])
        self._position_before = position_of(state["positions"], self._slot)

    def _place(self) -> Place:
        """The position at which the batches of this life begin."""
        return Place(
            slot=self._slot,
            incarnation=self._incarnation,
            shard=0,
            shards=1,
            position=self._position_before,
            state_position=0,
            state=None,
        )

    def _greet(self, hello: Mapping[Any, Mapping[str, Any]] | None) -> list[tuple[str, Any]]:
        """Report whether all others were heard, and in which lives; begin when all report that, with the same state.

        RuntimeError where another steps with a former life of this learner.
        """
        self._heard.update({greeting["slot"]: greeting for greeting in (hello or {}).values()})
        if self._phase == "ready":
            lives = sorted([greeting["slot"], greeting["incarnation"]] for greeting in self._heard.values())
            self._greeting_next |= {"at": self._trained, "hears_all": self._has_state and len(lives) == self._learners}
            me = [self._slot, self._incarnation]
            if any(greeting["steps"] and me not in greeting["lives"] for greeting in self._heard.values()):
                raise RuntimeError(
                    f"learner {self._slot} died, and data-parallel cannot go on without it: the others wait for its "
                    "gradient. Start a new run, or use elastic-data-parallel, which continues with the other learners"
                )
            agreeing = [
                greeting
                for greeting in self._heard.values()
                if greeting["hears_all"] and greeting["at"] == self._trained
            ]
            if self._has_state and len(agreeing) == self._learners:
                self._phase = "stepping"
                self._totals = {**dict.fromkeys(map(tuple, lives), 0), **self._totals}
            self._greeting_next |= {"lives": lives, "steps": self._phase == "stepping"}
        if self._greeting_next == self._greeting:
            return []
        self._greeting = dict(self._greeting_next)
        return [("hello", self._greeting), *([("place", self._place())] if self._greeting["steps"] else [])]

    def _step(self, batch: Any, mean: Mean | dict[str, Any]) -> list[tuple[str, Any]]:
        """Step along the mean, and send the next gradient, unless this was the last step."""
        if mean:
            self._learner.apply(mean["values"], min(1.0, self._trained / self._budget))
            lives = dict(self._greeting["lives"])
            for slot, tokens, position in mean["trained"]:
                self._trained += tokens
                self._totals[slot, lives[slot]] = self._totals.get((slot, lives[slot]), 0) + tokens
                self._positions[slot] = position
            self._reporter.trained(self._tokens, self._scalars)
            self._reporter.in_model = in_slots((slot, tokens) for (slot, _), tokens in self._totals.items())
            if mean["stop"] or self._trained >= self._budget:
                self._phase = "final"
        emitted = [*self._model(), *self._state()]
        if self._phase == "final":
            return emitted
        self._reporter.begins()
        self._scalars, gradient = self._learner.gradient(batch)
        self._tokens = tokens_in(batch, self._task.tokens_per_batch, self._slot)
        self._feed.advance()
        own = parts(
            gradient,
            self._slot,
            self._learners,
            step=self._reporter.step,
            tokens=self._tokens,
            position=self._feed.reached,
            stop=self._is_stopping,
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
        state = WholeState(
            tokens=self._trained,
            steps=self._steps_before + self._reporter.step,
            totals=[[*life, tokens] for life, tokens in sorted(self._totals.items())],
            positions=[[slot, self._positions[slot]] for slot in sorted(self._positions)],
            streams=[],
            leaves=list(self._learner.state()),
        )
        return [("state", state)]
