"""The inner-step node: a learner's boundaries, one firing each.

At each boundary, in this order: adopt the updates that have come, answer the pulls that have come, then make one step,
of which a device may still compute the last part while the next is prepared. The answers leave before the step begins.
The order matters: a pull answered before the updates would carry a stale base. Losses are read when they are told.

Phases. *ready*: with fragments, a learner waits (idle) until it has adopted all of them; without, it begins with first
parameters of its own. *stepping*, as long as the budget is not known to be spent; then it is idle, for it would train
beyond it. *final*: told so by a pull of kind 'final', or, where it came too late for that, by a fragment that is final
already (where there is no syncer, by `stop`), it stays idle to answer and to adopt. A learner whose loss is not finite
says that it is sick, and starts its optimizer anew once it has adopted every fragment again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from isthmus.ops.accounts import FragmentLedger, Odometer, clock_of
from isthmus.ops.data import of_slot
from isthmus.ops.fragment import Fragment
from isthmus.ops.items import Capture, Progress, Round, Update, Vector
from isthmus.ops.learning import Learning, learner_of
from isthmus.ops.totals import Totals

REPORT_NS: Final = 100_000_000
WATCH_NS: Final = 250_000_000
STEP_TIME_DECAY: Final = 0.9
LOSSES_MAX: Final = 64
"""Losses that may wait to be read."""


class InnerStep:
    """Batches in; captured fragments, progress and, every `emit_every` steps, all parameters out.

    `progress` is for those who pace, every `report_every` steps or 100 ms; `report` is the same for those who watch,
    every 250 ms, or as often where nobody paces.

    `fragments` are those of the program, none for programs that exchange whole trees; `report_every` the steps between
    two reports of progress, which come at least every 100 ms; `tokens` the budget that the learning rate follows, where
    nobody sends it; `alpha` how much of a learner's own fragment survives an adoption.
    """

    outputs = ("parameters", "fragment", "progress", "report")

    def __init__(
        self,
        task: Any,
        *,
        fragments: Sequence[Fragment] = (),
        emit_every: int | None = None,
        report_every: int = 3,
        tokens: int = 0,
        alpha: float = 0.0,
    ) -> None:
        self._task = task
        self._fragments = tuple(fragments)
        self._emit_every = emit_every
        self._report_every = report_every
        self._budget = tokens
        self._alpha = alpha
        self.is_idle = bool(fragments)
        self.is_finished = False
        self._phase: Literal["ready", "stepping", "final"] = "ready" if fragments else "stepping"
        self._ledgers: dict[int, FragmentLedger] = {}
        self._anchors: dict[int, Vector] = {}
        self._clocks: dict[int, list[list[int]]] = {}
        self._answered: dict[int, tuple[int, int]] = {}
        self._postponed: dict[int, Round] = {}
        self._totals = Totals()
        self._loss_sum = 0.0
        self._loss_count = 0
        self._losses: list[Any] = []
        self._captured: Any = None
        self._odometer = Odometer()
        self._step_time = self._delay_steps = 0
        self._reported_step = -1
        self._reported_at = self._watched_at = self._began_at = self._first_at = self._stepping = 0
        self._sick = self._has_begun = self._is_over = False
        self._unhealed: set[int] = set()

    def prepare(self) -> None:
        """Trace every function, which needs no device."""
        from isthmus.ops.data import At
        from isthmus.ops.training import functions_of

        functions_of(self._task, self._fragments, self._alpha).trace(self._task.batch(At(0, 0, 0)))

    def open(self, context: Any) -> None:
        """Compile every function; without a syncer, make the first parameters, too."""
        from isthmus.ops.data import At

        self._context = context
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._learner: Learning = learner_of(self._task, self._fragments, seed=context.seed, alpha=self._alpha)
        self._learner.compile(self._task.batch(At(context.seed, self._slot, 0)))
        if not self._fragments:
            self._learner.begin()

    def __call__(
        self,
        batch: Any,
        update: Any = None,
        pull: Mapping[Any, Round] | None = None,
        progress: Any = None,
    ) -> Generator[list[tuple[str, Any]], None, list[tuple[str, Any]]]:
        """One boundary; `batch` is None where this node is idle. Yields the answers, returns everything else."""
        before = self._phase, self.is_idle
        news = self._adopt_all(update) + self._hear(progress)
        answers: list[tuple[str, Any]] = []
        for request in sorted((pull or {}).values(), key=lambda asked: asked["round"]):
            news += 1
            self._totals.hear(request["totals"])
            answers.extend(self._answer(request))
        answers.extend(self._answer_postponed())
        if answers:
            yield answers
        has_stepped = self._phase == "stepping" and batch is not None and not self._is_spent()
        if has_stepped:
            self._train(batch)
        if self._phase == "final":
            self._read_losses(left=0)
        emitted = self._parameters(has_stepped=has_stepped)
        self.is_idle = self._phase != "stepping" or self._is_spent()
        self.is_finished = self._phase == "final" and not self._fragments
        last = self._answer_postponed() if self.is_idle else []
        return last + emitted + self._reports(has_news=news > 0, has_changed=before != (self._phase, self.is_idle))

    @property
    def phase(self) -> Literal["ready", "stepping", "final"]:
        """Where this learner is: who drives it from outside may have it step later, or answer, while it is idle."""
        return self._phase

    def _is_spent(self) -> bool:
        """Whether all that is known to be trained makes up the budget: then no step is needed any more."""
        return 0 < self._budget <= self._totals.trained

    # -- what comes in -------------------------------------------------------------------------------------------------

    def _adopt_all(self, update: Any) -> int:
        """Adopt what came; how many items that was."""
        items = _items(update)
        for item in items:
            if isinstance(item, Mapping) and "fragment" in item and "version" in item:
                self._adopt(item)  # type: ignore[arg-type]
            else:
                self._learner.adopt_tree(item)
        return len(items)

    def _adopt(self, update: Update) -> None:
        p, version = update["fragment"], (update["version"][0], update["version"][1])
        self._totals.hear(update["totals"])
        clock = clock_of(update["clock"], self._slot)
        ledger = self._ledgers.get(p)
        # Of the zeros before a first version nothing may survive, nor of what is not finite.
        adopt = self._learner.replace if ledger is None or self._sick else self._learner.adopt
        if ledger is None:
            self._ledgers[p] = FragmentLedger(self._incarnation, version, self._odometer)
        elif version < ledger.base or (version == ledger.base and update["kind"] == "recover"):
            return
        else:
            answered = self._answered.pop(p, None)
            # How long a shard was away says nothing of a round trip.
            if answered is not None and version[0] == ledger.base[0] and update["kind"] != "recover":
                self._delay_steps = self._odometer.steps - answered[1]
            ledger.adopted(version, clock)
        self._anchors[p], self._clocks[p] = update["values"], update["clock"]
        adopt(p, update["values"])
        self._heal(p)
        self._is_over |= update["kind"] == "final"
        if len(self._ledgers) == len(self._fragments):
            if self._phase == "ready":
                self._learner.reset_moments()
                self._phase = "stepping"
            if self._is_over:
                self._phase = "final"

    def _hear(self, control: Any) -> int:
        """Take in progress and a request to stop, where this program has no syncer."""
        items = _items(control)
        for item in items:
            self._totals.hear(item["totals"])
            self._budget = item["tokens"]
            if item["stop"] and not self._fragments:
                self._phase = "final"
        return len(items)

    def _heal(self, adopted: int) -> None:
        self._unhealed.discard(adopted)
        if self._sick and not self._unhealed:
            self._learner.reset_moments()
            self._losses.clear()  # Those of the steps before say nothing of what it holds now.
            self._sick = False

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _answer(self, request: Round) -> list[tuple[str, Capture]]:
        """The capture that a pull asks for, if it asks this incarnation and was not answered before."""
        p, number = request["fragment"], request["round"]
        if [self._slot, self._incarnation] not in [list(member) for member in request["members"]]:
            return []
        if request["kind"] == "initial":
            return self._first_version(request)
        ledger = self._ledgers.get(p)
        if request["kind"] == "recover":
            return [("fragment", self._recovery(request, ledger))] if ledger is not None else []
        if ledger is None or self._answered.get(p, (-1, 0))[0] == number:
            return []
        self._postponed.pop(p, None)
        if request["kind"] == "final":
            self._phase = "final"
        elif self._odometer.steps and not ledger.steps and request["grace"] is not None:
            self._postponed[p] = request
            return []
        return self._give(request, ledger)

    def _answer_postponed(self) -> list[tuple[str, Capture]]:
        """The answers to pulls that came with an update of their fragment, once there is an interval's work in it.

        The two come together behind a link that cannot carry what is due. At once there would be nothing to say, and
        an answer that is late for its round counts in the next. A round that waits for everybody is answered at once,
        and so is any, whatever there is to say, once no more steps are made.
        """
        if not self._postponed:
            return []
        is_last = self._phase != "stepping" or self._is_spent()
        due = [p for p, request in self._postponed.items() if is_last or self._ledgers[p].steps >= request["interval"]]
        return [answer for p in due for answer in self._give(self._postponed.pop(p), self._ledgers[p])]

    def _give(self, request: Round, ledger: FragmentLedger) -> list[tuple[str, Capture]]:
        p, number = request["fragment"], request["round"]
        capture = self._capture(request)
        ledger.answered(self._odometer.tokens)
        self._answered[p] = (number, self._odometer.steps)
        return [("fragment", capture)]

    def _first_version(self, request: Round) -> list[tuple[str, Capture]]:
        """The first version of a fragment, of the model that this learner begins with if nobody has given one; the one
        that it holds, where a shard that died had still published one and the next does not know of it."""
        ledger = self._ledgers.get(request["fragment"])
        if ledger is not None:
            return [("fragment", self._recovery(request, ledger))]
        if not self._has_begun:
            self._learner.begin()
            for p, values in self._anchors.items():
                self._learner.replace(p, values)
            self._has_begun = True
        return [("fragment", self._capture(request))]

    def _capture(self, request: Round) -> Capture:
        p = request["fragment"]
        ledger = self._ledgers.get(p)
        return Capture(
            fragment=p,
            round=request["round"],
            kind=request["kind"],
            slot=self._slot,
            incarnation=self._incarnation,
            base=None if ledger is None else list(ledger.base),
            begin=0 if ledger is None else ledger.begin,
            end=self._odometer.tokens,
            steps=0 if ledger is None else ledger.steps,
            clock=[],
            values=self._learner.extract(p),
            anchor=self._anchors.get(p),
        )

    def _recovery(self, request: Round, ledger: FragmentLedger) -> Capture:
        """The newest global version that this learner knows, for a shard that lost it."""
        p = request["fragment"]
        return Capture(
            fragment=p,
            round=request["round"],
            kind=request["kind"],
            slot=self._slot,
            incarnation=self._incarnation,
            base=list(ledger.base),
            begin=self._odometer.tokens,
            end=self._odometer.tokens,
            steps=0,
            clock=self._clocks[p],
            values=self._anchors[p],
            anchor=None,
        )

    def _parameters(self, *, has_stepped: bool) -> list[tuple[str, Any]]:
        """All parameters: the copy taken a boundary ago, which the device has made by now; at the end, the last."""
        if self._emit_every is None or "parameters" not in self._context.connected:
            return []
        captured, self._captured = self._captured, None
        if self._phase == "final":
            captured = self._learner.copy()
        elif has_stepped and self._odometer.steps % self._emit_every == 0:
            self._captured = self._learner.copy()
        return [] if captured is None else [("parameters", self._learner.tree(captured))]

    # -- the step ------------------------------------------------------------------------------------------------------

    def _train(self, batch: Any) -> None:
        now = self._context.now()
        if self._odometer.steps == 0:
            self._first_at = now
        else:
            took = now - self._began_at
            average = self._step_time or took
            self._step_time = round(STEP_TIME_DECAY * average + (1 - STEP_TIME_DECAY) * took)
        self._began_at = now
        count = of_slot(self._task.tokens_per_batch, self._slot)
        # Below 1: no step is made once the budget is spent.
        loss = self._learner.step(batch, self._totals.trained / self._budget if self._budget else 0.0)
        self._odometer.steps += 1
        self._odometer.tokens += count
        self._totals.add(self._slot, self._incarnation, count)
        self._losses.append(loss)
        if len(self._losses) > LOSSES_MAX:
            self._read_losses(left=1)

    def _read_losses(self, *, left: int) -> None:
        """Read all losses but the last `left`, which a device may not have made yet."""
        count = max(0, len(self._losses) - left)
        losses = [float(np.asarray(loss)) for loss in self._losses[:count]]  # A sixth of what jax's own float() takes.
        del self._losses[:count]
        self._loss_sum += sum(losses)
        self._loss_count += count
        if not self._sick and not all(map(math.isfinite, losses)):
            self._sick = True
            self._unhealed = set(range(len(self._fragments)))

    # -- reports -------------------------------------------------------------------------------------------------------

    def _reports(self, *, has_news: bool, has_changed: bool) -> list[tuple[str, Progress]]:
        """What there is to tell those who pace, and those who watch."""
        is_first = self._reported_step < 0
        if not is_first and not self._is_report_due(has_news=has_news, has_changed=has_changed):
            return []
        ports = ["progress"] if "progress" in self._context.connected else []
        if "report" in self._context.connected:
            is_rare = self._context.now() - self._watched_at >= WATCH_NS
            if not ports or is_first or has_changed or is_rare or self._phase != "stepping":
                ports.append("report")
        if not ports:
            return []
        report = self._report()
        if "report" in ports:
            self._watched_at, self._loss_sum, self._loss_count = self._reported_at, 0.0, 0
        return [(port, report) for port in ports]

    def _is_report_due(self, *, has_news: bool, has_changed: bool) -> bool:
        if has_changed:
            return True
        if self.is_idle:
            return has_news
        due = self._odometer.steps - self._reported_step >= self._report_every
        return due or self._context.now() - self._reported_at >= REPORT_NS

    def _report(self) -> Progress:
        self._read_losses(left=1)
        self._reported_step, self._reported_at = self._odometer.steps, self._context.now()
        self._context.publish({"phase": self._phase, "step": self._odometer.steps, "sick": self._sick})
        if self._odometer.steps and self._phase == "stepping":
            self._stepping = self._reported_at - self._first_at
        ledgers = [self._ledgers.get(p) for p in range(len(self._fragments))]
        traffic = self._context.traffic
        return Progress(
            slot=self._slot,
            incarnation=self._incarnation,
            phase=self._phase,
            step=self._odometer.steps,
            tokens=self._odometer.tokens,
            stepping=self._stepping,
            step_time=self._step_time,
            loss=self._loss_sum / self._loss_count if self._loss_count else math.nan,
            delay_steps=self._delay_steps,
            staleness=max((ledger.steps for ledger in ledgers if ledger is not None), default=0),
            sick=self._sick,
            accounts=[ledger.account() if ledger is not None else [0, 0, 0, 0, 0] for ledger in ledgers],
            versions=[list(ledger.base) if ledger is not None else [0, 0] for ledger in ledgers],
            totals=self._totals.told(),
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            waited=traffic.waited.get(self._context.node, 0),
            device_kind=self._learner.device_kind,
        )


def _items(received: Any) -> list[Any]:
    """The items of a port: the bare one, or those of a dict (replica, key) -> item, by replica and key."""
    if received is None:
        return []
    if isinstance(received, Mapping) and received and all(isinstance(key, tuple) for key in received):
        return [item for _, item in sorted(received.items(), key=lambda entry: (entry[0][0], str(entry[0][1])))]
    return [received]
