"""The inner-step node: what a learner does at each boundary between two steps, one firing each.

Decides the phase of the learner, when it steps, and what it reports. Phases: *ready* until it has adopted all fragments
(it is idle; a program without fragments skips this phase); *stepping* while the token budget is not known to be spent,
then idle; *leaving* once its host is to leave, or has trained its site's data often enough: it only answers and
adopts, until all of its work is in the model or refused; *final* once a pull or a fragment of kind 'final' has arrived,
or, without a syncer, a stop: it only answers and adopts. A learner whose loss is not finite reports that it is sick,
and restarts its optimizer once it has adopted every fragment again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np

from isthmus.ops.data.batches import first_batch, tokens_in
from isthmus.ops.data.positions import Cursor, Step
from isthmus.ops.data.site_terms import DataAllowance, SpentData
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.merge_rules import RULES
from isthmus.ops.exchange.messages import (
    CompanionReport,
    Control,
    Loan,
    Own,
    Progress,
    Restored,
    Round,
    StepReport,
    Update,
    Vector,
    is_withdrawn,
)
from isthmus.ops.exchange.token_accounts import FATES, FragmentLedger, Odometer, Totals, clock_of
from isthmus.ops.exchange.wanted_settings import coarser
from isthmus.ops.island.compiling import published
from isthmus.ops.island.contract import Carrying, LearnerSource, LoopLearning, SoleLearning, prepare_learner
from isthmus.ops.island.host_waits import CountsWaits
from isthmus.ops.island.kind import Computed, LearnerParts, kind_of
from isthmus.ops.island.life import DeviceCall, LearnerLife
from isthmus.ops.learner.answers import Answers, Feed, HeldFragment, StepMetrics
from isthmus.ops.learner.boundary import Boundary, Companion, companions_of
from isthmus.ops.learner.first_version import begun_from
from isthmus.ops.learner.follow import Follow
from isthmus.ops.learner.fragment_exchange import PLAIN, FragmentExchange
from isthmus.ops.learner.fragment_send import outer_gradient
from isthmus.ops.learner.recovery import Inheritance, Lending
from isthmus.ops.learner.run_terms import UNBOUNDED, RunTerms
from isthmus.ops.learner.step_times import StepTimes

REPORT_NS: Final = 100_000_000
WATCH_NS: Final = 250_000_000
AGAIN: Final = ("recover", "copy")
"""Kinds of updates that publish a version again: not news to a learner that holds it."""


class InnerStep:
    """Batches in; captured fragments, progress and, every `emit_every` steps, all parameters out.

    `progress` is for pacing, every `report_every` steps or 100 ms; `report`, with everything, is for observers, every
    250 ms, or as often as `progress` where no node paces.

    Arguments:
        fragments: those of the program; none for programs that exchange whole trees.
        emit_every: the steps between two copies of all parameters.
        report_every: the steps between two reports of progress, which come at least every 100 ms.
        run: what learners know of their run.
        exchange: how fragments are exchanged.

    Its local leaves are lent to others on `moments`, and those of others arrive on `loan`.
    """

    outputs = ("parameters", "fragment", "progress", "report", "moments")
    collects = ("update", "pull", "control", "loan")
    noted: ClassVar = {"report": ("step",)}
    follower: ClassVar = Follow

    @staticmethod
    def schemas(task: Any, *, fragments: Sequence[Fragment] = (), **_: Any) -> dict[str, Any]:
        """The forms of the messages of shards and the lend node; whole trees may have any form."""
        shards = {"update": Update, "pull": Round} if fragments else {}
        return {**shards, "loan": Loan}

    def __init__(
        self,
        task: Any,
        *,
        fragments: Sequence[Fragment] = (),
        emit_every: int | None = None,
        report_every: int = 3,
        run: RunTerms = UNBOUNDED,
        exchange: FragmentExchange = PLAIN,
    ) -> None:
        self._task, self._exchange = task, exchange
        self._allowance = DataAllowance(task, run.epochs_max)
        self._spent: SpentData | None = None
        self._parts = tuple(fragments)
        self._fragments = self._parts if exchange.paths is None else exchange.paths.own
        self._emit_every = emit_every or 0
        self._report_every = report_every
        self._run, self._budget = run, run.tokens
        self._answers_last = exchange.answers_last and bool(fragments)
        self.is_idle = bool(fragments)
        self.is_finished = False
        self._phase: Literal["ready", "stepping", "leaving", "final"] = "ready" if fragments else "stepping"
        self._held: list[HeldFragment | None] = [None] * len(self._fragments)
        self._totals = Totals()
        self._metrics = StepMetrics()
        self._captured: Any = None
        self._odometer = Odometer()
        self._feed = Feed()
        self._delay_steps = 0
        self._reported_step = -1
        self._reported_at = self._watched_at = self._stepping = 0
        self._away_known = self._overwritten = 0
        self._sick = self._is_over = False
        self._unhealed: set[int] = set()
        self._sick_step = 0
        self._loop: LoopLearning | None = None
        self.companions: tuple[Companion, ...] = ()
        """The companions of this learner at its boundaries."""

    def prepare(self) -> None:
        """Do what needs no device: trace every function, or import the task's framework."""
        prepare_learner(self._task, self._fragments, self._exchange.alpha)

    def calls_on(self, devices: tuple[Any, ...] | None, seed: int, slot: int) -> Iterator[DeviceCall]:
        """Every function that a learner in this slot calls on these devices, for compilation ahead of time."""
        from isthmus.ops.island.functions import functions_of

        functions = functions_of(self._task, self._fragments, self._exchange.alpha, devices)
        codes_there = functions.codes_on(is_apart=functions.platform != "cpu")
        codes = coarser(self._exchange.push) if codes_there else ()
        return functions.calls(first_batch(self._task, seed, slot), codes, carries=self._exchange.carries)

    @property
    def can_warm(self) -> bool:
        """Whether there is something to compile before a life of a learner is known; not for a task that brings its
        learner, whose framework is imported by then."""
        return not isinstance(self._task, LearnerSource)

    def warm(self, seed: int) -> None:
        """Compile what any life calls that this process opens later, on the devices that it has."""
        first = LearnerLife(seed, 0, 1)
        learner = kind_of(None).learner(self._parts_of(first), lambda: Step(0), lambda: 0)
        learner.compile(first_batch(self._task, seed, 0))

    def _parts_of(self, life: LearnerLife) -> LearnerParts:
        return LearnerParts(
            self._task,
            self._fragments,
            life,
            self._exchange.alpha,
            pushes=coarser(self._exchange.push),
            carries=self._exchange.carries,
            frozen=self._exchange.frozen,
        )

    def open(self, context: Any) -> None:
        """Compile every function; without a syncer, create the initial parameters, too."""
        self._context = context
        self._times = StepTimes(context.now, context.away)
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._feed.open(context)
        paths = self._exchange.paths
        self._numbers = tuple(range(len(self._parts))) if paths is None else paths.numbers(paths.path_of(self._slot))
        self._own_of = {number: p for p, number in enumerate(self._numbers)}
        if "parameters" not in context.connected:
            self._emit_every = 0
        parts = self._parts_of(LearnerLife(context.seed, self._slot, self._incarnation))
        self._learner = kind_of(context.island).learner(parts, self._where, context.now)
        self._loop = self._learner if isinstance(self._learner, LoopLearning) else None
        self._answers = Answers(
            self._slot,
            self._incarnation,
            learner=self._learner,
            fragments=self._fragments,
            held=self._held,
            odometer=self._odometer,
            feed=self._feed,
            push=self._exchange.push,
            begun_from=lambda p, values: begun_from(context.folder, self._parts[p], values),
            own_of=dict(enumerate(paths.own_of)) if paths is not None else self._own_of,
            numbers=self._numbers,
            carries=self._exchange.carries,
        )
        self._inheritance = Inheritance(
            context,
            learner=self._learner,
            held=self._held,
            odometer=self._odometer,
            alpha=self._exchange.alpha,
            fragments=self._fragments,
            reached=lambda: self._feed.reached,
            keeps_work=self._answers_last,
        )
        self._lending = Lending(context, self._learner, self._odometer)
        if self._fragments:
            self.companions = companions_of(self._boundary(), self._task)
        with published(context):
            self._learner.compile(first_batch(self._task, context.seed, self._slot))
        if not self._fragments:
            self._learner.begin()

    def computes(self, seed: int, slot: int) -> Computed:
        """What a process that leads such an island's processes needs; it is told the batch of each step."""
        return Computed(self._task, self._fragments, self._exchange.alpha)

    def _where(self) -> Step:
        """The position of the batch of the next step in its slot."""
        return Step(self._feed.latest, self._feed.reached_state())

    def _boundary(self) -> Boundary:
        return Boundary(
            self._context,
            self._learner,
            self._fragments,
            self._held,
            self._odometer,
            self._times,
            self._metrics,
            self._run,
            trained=lambda: self._totals.trained,
            phase=lambda: self._phase,
            publish=self._publish,
        )

    def _whole(self) -> SoleLearning:
        """The learner, in a program that exchanges whole trees: such programs refuse islands of several processes."""
        return cast(SoleLearning, self._learner)

    def __call__(
        self,
        batch: Any,
        update: Mapping[Any, Any] | None = None,
        pull: Mapping[Any, Round] | None = None,
        control: Mapping[Any, Control] | None = None,
        cursor: Cursor | None = None,
        loan: Mapping[Any, Loan] | None = None,
    ) -> Generator[list[tuple[str, Any]] | None, None, list[tuple[str, Any]]]:
        """Process one boundary; `batch` is None where this node is idle. Yields the answers, returns the rest.

        Where a loop of the user's makes the steps, it yields None for each: the step is made before the call goes on.
        """
        before = self._phase, self.is_idle  # Of the last boundary: any input below may change them.
        has_news = update is not None or control is not None or bool(pull)
        # The cursor before the updates: a life that lacked only its position continues from the cut in its snapshot,
        # and that only if it holds the versions of the cut, which an update of this boundary would replace.
        if cursor is not None:
            self._feed.accept(cursor)
            self._move_on()  # Steps begin only once their position is known.
        # Updates before pulls: an answer captured before an update would have a stale base.
        if update is not None:
            if self.companions:
                is_last = self._ends_with(update, pull, control)
                for each in self.companions:
                    each.adopting(is_last=is_last)
            self._adopt_all(update)
        # Before the answers: once the budget is spent none is postponed.
        if control is not None:
            self._follow_control(control)
        if loan:
            self._inheritance.borrowed(self._lending.accept(loan))
        if self._phase == "stepping" and self._answers_last:
            self._leave_if_spent(batch)
            if self._context.leave_requested():
                self._phase = "leaving"
        answers = self._answer(pull) if pull else []
        # After the pulls: each replaces the postponed one of its fragment, and a final one ends all postponement.
        answers += self._answers.postponed(is_last=self._is_last)
        # Before the step: a round does not wait for it.
        if answers:
            yield answers
            del answers  # The captures are not kept while the step is made.
        if before[0] != "leaving" and self._phase == "leaving" and not self._sick:
            self._inheritance.leave_last_copy()  # After the answers, which wait for no disk.
        companions_news = [each.before_step() for each in self.companions]  # Each is called, whatever another one says.
        tokens = 0
        if batch is not None and not self._is_last:
            if self._loop is None:
                # Of the whole batch, once for all processes of an island; without a token it makes no step.
                tokens = tokens_in(batch, self._task.tokens_per_batch, self._slot)
            else:
                self._prepare_step()
                self._loop.open_step(self.share)
                yield None
                tokens = self._loop.made_tokens()
        has_stepped = tokens > 0
        # Counted before the step, which tells the other processes of an island the position of its batch.
        if batch is not None:
            self._feed.advance(is_trained=has_stepped)
        if has_stepped:
            self._train(batch, tokens)
        if self._phase == "final":
            self._read_metrics(left=0)
        emitted = self._parameters(has_stepped=has_stepped) if self._emit_every else []  # Those after the step.
        # The step may have spent the budget; what is postponed would then never contain more work.
        self.is_idle = self._is_last
        self.is_finished = self._phase == "final" and not self._fragments
        last = self._answers.postponed(is_last=self._is_last) if self.is_idle else []
        now = self._times.last_at if has_stepped else self._context.now()
        has_changed = self._reported_step < 0 or any(companions_news) or before != (self._phase, self.is_idle)
        # After the last answers: the report has the accounts with them.
        if has_changed or self._is_report_due(now, has_news=has_news):
            emitted += self._reports(now, has_changed=has_changed)
        return last + emitted + self._lending.announcements(is_sick=self._sick)

    def close(self) -> None:
        """This life is over."""
        for each in self.companions:
            each.closing()

    @property
    def is_engaged(self) -> bool:
        """Whether it has work that may still come into the model."""
        return not self._sick and any(held is not None and held.ledger.work() for held in self._held)

    @property
    def phase(self) -> Literal["ready", "stepping", "leaving", "final"]:
        """This learner's phase: a caller that drives it from outside may have it step later, or answer while idle."""
        return self._phase

    @property
    def position(self) -> int:
        """The position after the last batch of this slot that was trained on, or, in a life that has trained on none,
        after those that are merged."""
        return self._feed.reached

    def will_make(self, p: int) -> int:
        """The count of the version to which the next answer about a fragment contributes; 0 where none is held."""
        held = self._held[p]
        return 0 if held is None else held.ledger.base[1] + 1

    def own(self, overlap: int) -> Own | None:
        """The state that only this learner has, when it has answered; None if a later life could not use it."""
        return None if self._sick else self._inheritance.own(overlap, self._totals)

    def give(self, restored: Restored) -> None:
        """Store the saved state of this slot: the first step waits for it."""
        if self._inheritance.give(restored):
            self._move_on()

    @property
    def share(self) -> float:
        """The share of the budget that is known to be trained, which the learning rate follows in every learner."""
        return self._totals.trained / self._budget if self._budget else 0.0

    def drop(self) -> None:
        """Count a batch that is not trained on."""
        self._feed.advance(is_trained=False)

    def _leave_if_spent(self, batch: Any) -> None:
        """Leave for good where the step on this batch would train more of the site's data than this slot may.

        What a step of a user's loop trains is known behind it only: the last one may train more.
        """
        if batch is None or not self._allowance.is_bounded or self._is_spent():
            return
        tokens = 1 if self._loop is not None else tokens_in(batch, self._task.tokens_per_batch, self._slot)
        self._spent = self._allowance.spent(self._totals.of_slot(self._slot), tokens)
        if self._spent is not None:
            self._context.leave()

    def _is_spent(self) -> bool:
        """Whether the tokens known to be trained make up the budget: then no more steps are needed."""
        return 0 < self._budget <= self._totals.trained

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _ends_with(
        self, update: Mapping[Any, Any], pull: Mapping[Any, Round] | None, control: Mapping[Any, Control] | None
    ) -> bool:
        """Whether no step follows, by all that has come to this boundary: what is adopted may be first to say so."""
        items = [*update.values(), *(pull or {}).values()]
        if self._is_last or any(item["kind"] == "final" for item in items):
            return True
        rows = (row for item in (*items, *(control or {}).values()) for row in item["totals"])
        return 0 < self._budget <= self._totals.trained_with(rows)

    def _adopt_all(self, update: Mapping[Any, Any]) -> None:
        """Adopt updates of fragments or, in a program without fragments, whole trees."""
        if self._fragments:
            # The first boundary after an absence: the model has gone on, and what it overwrites is told.
            is_back = self._times.away > self._away_known
            before = self._wasted() if is_back else 0.0
            for item in sorted(update.values(), key=itemgetter("fragment")):
                self._adopt(item)
            if is_back:
                self._away_known = self._times.away
                self._overwritten += max(0, round(self._wasted() - before))
        else:
            for tree in _items(update):
                self._whole().adopt_tree(tree)

    def _wasted(self) -> float:
        """The tokens of this life whose work was overwritten or left out so far: a mean over fragments, by size."""
        sizes = [fragment.size for fragment in self._fragments]
        wasted = [0 if held is None else held.ledger.overlapped + held.ledger.refused for held in self._held]
        return sum(size * tokens for size, tokens in zip(sizes, wasted, strict=True)) / max(1, sum(sizes))

    def _adopt(self, update: Update) -> None:
        if is_withdrawn(update):
            return
        if update["fragment"] not in self._own_of:  # No shard sends it one of another path.
            return
        p, version = self._own_of[update["fragment"]], (update["version"][0], update["version"][1])
        if update["kind"] not in AGAIN or not self._inheritance.is_whole:
            self._totals.raise_to(update["totals"])
        held = self._held[p]
        # No share of the zeros before a first version may survive, nor of values that are not finite; and with the last
        # version all learners have one model.
        is_last = update["kind"] == "final"
        adopt = self._learner.replace if held is None or self._sick or is_last else self._learner.adopt
        if held is None:
            ledger = FragmentLedger(self._incarnation, version, self._odometer)
            self._held[p] = HeldFragment(
                ledger, update["values"], update["clock"], update["positions"], carries=self._exchange.carries
            )
        elif version < held.ledger.base or (version == held.ledger.base and not self._is_anew(update)):
            return
        else:
            # The duration of a shard's absence is not a round trip. Before `adopted`, which replaces the base.
            if held.answered is not None and version[0] == held.ledger.base[0] and update["kind"] not in AGAIN:
                self._delay_steps = self._odometer.steps - held.answered[1]
            # After the last version no answer would have it, and the values of a sick learner are worth nothing.
            # Work of a life before, of which it has some, is in its parameters.
            clock = clock_of(update["clock"], self._slot)
            is_carried = not (self._sick or is_last or held.ledger.is_former_in(clock))
            carries = held.may_carry and is_carried
            # Before the values are replaced: it raises for a version, or a clock, that cannot be.
            held.ledger.adopted(version, clock, carries=carries)
            if carries and held.ledger.work():
                adopt = partial(self._carry, anchor=held.anchor, sent=held.sent)
            held.anchor, held.clock, held.answered = update["values"], update["clock"], None
            held.positions, held.sent = update["positions"], None
        adopt(p, update["values"])
        for each in self.companions:
            each.adopted(p, is_last=is_last)
        self._inheritance.overtaken(p)
        if self._sick:  # After the adoption: the optimizer restarts from sound values.
            self._heal(p)
        self._is_over |= is_last
        self._move_on()  # To the final phase, where this was the last version.

    def _carry(self, p: int, values: Vector, *, anchor: Vector, sent: Any) -> None:
        """Adopt new values of a fragment, float32[n], and keep what was trained since the last answer, with the values
        that were `sent`, or since the last adoption where there was none.

        Units that are means of values are replaced: a difference of two variances may be below zero.
        """
        if isinstance(self._learner, Carrying) and self._learner.carry(p, values, anchor if sent is None else sent):
            return
        fragment, now = self._fragments[p], np.asarray(self._learner.extract(p), np.float32)
        trained = -outer_gradient(anchor, now, fragment) if sent is None else now - np.asarray(sent)
        for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
            if not RULES[unit.merge].steps:
                trained[begin:end] = 0.0
        self._learner.replace(p, values + trained)

    def _move_on(self) -> None:
        """Step, once all fragments are adopted and the next batch is known; at the end, stop."""
        if not self._fragments or not all(self._held):
            return
        if self._phase == "ready" and ((self._feed.is_placed and not self._inheritance.is_awaited) or self._is_over):
            self._learner.restart()
            # It replaces leaves that `restart` creates.
            self._totals = self._inheritance.take_over(self._feed.reached, self._totals)
            self._phase = "stepping"
        if self._is_over:
            self._phase = "final"

    def _is_anew(self, update: Update) -> bool:
        """Whether to begin again from the version that this learner holds.

        It does if it is sick, if its answer was refused, or if the version is final. Otherwise it would lose the work
        since then for another learner's answer.
        """
        is_refused = [self._slot, self._incarnation] in update["refused"]
        return update["kind"] not in AGAIN and (self._sick or is_refused or update["kind"] == "final")

    def _follow_control(self, control: Mapping[Any, Control]) -> None:
        """Store the progress of the run and a request to stop, where no syncer pulls."""
        for item in control.values():
            self._totals.raise_to(item["totals"])
            self._budget = item["tokens"]
            if item["stop"] and not self._fragments:
                self._phase = "final"

    def _heal(self, adopted: int) -> None:
        self._unhealed.discard(adopted)
        if not self._unhealed:
            for number, held in enumerate(self._held):
                if held is not None and number != adopted:  # Steps since its adoption have spoilt it once more.
                    self._learner.replace(number, held.anchor)
            self._learner.restart()
            self._metrics.forget()  # Those of the steps before do not describe its present parameters.
            self._sick = False

    # -- answers and parameters ----------------------------------------------------------------------------------------

    def _answer(self, pull: Mapping[Any, Round]) -> list[tuple[str, Any]]:
        """The captures that answer these pulls."""
        for request in pull.values():
            self._totals.raise_to(request["totals"])
        answers = self._answers.to(pull)
        if self._answers.is_final:  # One of these pulls may be the final one.
            self._phase = "final"
        return list(answers)

    @property
    def _is_last(self) -> bool:
        """Whether no more steps are made: the end is near, or the run stops, and its last rounds wait for no step.

        Where all step in turns, a turn that has begun is made. A home that has lost its ledger knows of no stop, and
        its run goes on: so must its learners.
        """
        is_stopped = self._answers_last and self._context.is_stopping()
        return self._phase != "stepping" or self._is_spent() or is_stopped

    def _parameters(self, *, has_stepped: bool) -> list[tuple[str, Any]]:
        """All parameters: the copy taken a boundary ago, which the device has finished by now; at the end, the last."""
        captured, self._captured = self._captured, None
        if self._phase == "final":
            captured = self._whole().copy()
        elif has_stepped and self._odometer.steps % self._emit_every == 0:
            self._captured = self._whole().copy()
        return [] if captured is None else [("parameters", self._whole().tree(captured))]

    # -- the step ------------------------------------------------------------------------------------------------------

    def _prepare_step(self) -> None:
        """Do what precedes a step; a second time changes nothing."""
        if not self._times.first_at:
            self._times.begin()
            self._lending.begin(is_anew=not self._inheritance.has_found)
        # Before the step: the life of the cut would have adopted them at this boundary.
        self._inheritance.adopt_due()

    def _train(self, batch: Any, tokens: int) -> None:
        """Perform one step, which begins before the budget is spent. Steps are timed from end to end."""
        if self._loop is None:
            self._prepare_step()
        metrics = self._learner.step(batch, self.share)
        self._times.stepped()
        self._odometer.steps += 1
        self._odometer.tokens += tokens
        self._totals.add(self._slot, self._incarnation, tokens)
        # After the count: the step whose loss is not finite is found by its distance from the last one counted.
        if self._metrics.add(metrics):
            self._read_metrics(left=1)
        # After the losses were read: a copy must not have the leaves of a sick learner.
        if self._fragments and not self._sick:
            self._inheritance.leave_copy()

    def _read_metrics(self, *, left: int) -> None:
        """Read the scalars of all steps but the last `left`, which a device may not have finished yet."""
        ago = self._metrics.read(left=left)
        if ago is not None and not self._sick:
            self._sick, self._sick_step = True, self._odometer.steps - ago
            self._unhealed = set(range(len(self._fragments)))

    # -- reports -------------------------------------------------------------------------------------------------------

    def _is_report_due(self, now: int, *, has_news: bool) -> bool:
        """Whether a report is due where the phase has not changed."""
        if self.is_idle:
            return has_news
        return self._odometer.steps - self._reported_step >= self._report_every or now - self._reported_at >= REPORT_NS

    def _reports(self, now: int, *, has_changed: bool) -> list[tuple[str, Any]]:
        """The messages to the pacer and to observers."""
        connected = self._context.connected
        is_paced = "progress" in connected
        is_usual = is_paced and not has_changed and self._phase == "stepping"
        is_watched = "report" in connected and not (is_usual and now - self._watched_at < WATCH_NS)
        if not (is_paced or is_watched):
            return []
        if is_watched:  # Before anything is published: it may find that this learner is sick.
            self._read_metrics(left=1)
        self._reported_step, self._reported_at = self._odometer.steps, now
        if self._odometer.steps and self._phase == "stepping":
            self._stepping = self._times.stepping(now)
        self._publish(self._phase)
        progress = self._progress()
        for_pacer: list[tuple[str, Any]] = [("progress", progress)] if is_paced else []
        return [*for_pacer, ("report", self._report(progress))] if is_watched else for_pacer

    def _publish(self, phase: str) -> None:
        begun: dict[str, Any] = {"first_step": self._times.first_at} if self._times.first_at else {}
        usual = {"usual_step_ns": usual_step} if (usual_step := self._times.usual) else {}
        usual |= {"overwritten": self._overwritten} if self._overwritten else {}
        if self._spent is not None:
            begun["spent"] = self._spent.published()
        status = {"phase": phase, "step": self._odometer.steps, "sick": self._sick}
        for each in self.companions:
            status |= each.published()
        self._context.publish({**status, **begun, **usual})

    def _progress(self) -> Progress:
        progress = Progress(
            slot=self._slot,
            incarnation=self._incarnation,
            phase=self._phase,
            step=self._odometer.steps,
            tokens=self._odometer.tokens,
            step_time=self._times.average,
            delay_steps=self._delay_steps,
            epochs=self._of_whole([0 if held is None else held.ledger.base[0] for held in self._held], 0),
            totals=self._totals.next_rows(self._slot, self._incarnation),
        )
        if self._phase == "leaving":
            own = zip(self._numbers, self._held, strict=True)
            progress["unmerged"] = [number for number, held in own if held is not None and held.ledger.work()]
        if self._phase == "ready" and (reached := self._inheritance.reached):
            progress["reached"] = reached
        if self._exchange.tells_links:
            progress["links"] = [[*link, *rate] for link, rate in sorted(self._context.traffic.goodput.items())]
        return progress

    def _report(self, progress: Progress) -> StepReport:
        ledgers = [None if held is None else held.ledger for held in self._held]
        traffic, nothing = self._context.traffic, [0] * len(FATES)
        means, more = self._metrics.means(), CompanionReport()
        for each in self.companions:
            more |= each.reported()
        if self._inheritance.lacks_memory:
            more["lacks_memory"] = self._inheritance.lacks_memory
        if isinstance(self._learner, CountsWaits) and (waits := self._learner.host_waits.rows()):
            more["host_waits"] = [list(row) for row in waits]
        report: StepReport = {
            **progress,
            **more,
            "stepping": self._stepping,
            "away": self._times.away,
            "loss": means.pop("loss", math.nan),
            "metrics": [[name, mean] for name, mean in means.items()],
            "staleness": max((ledger.steps for ledger in ledgers if ledger is not None), default=0),
            "sick": self._sick,
            "sick_step": self._sick_step,
            "accounts": self._of_whole([nothing if each is None else each.account() for each in ledgers], nothing),
            "versions": self._of_whole([[0, 0] if each is None else list(each.base) for each in ledgers], [0, 0]),
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "payload_bytes_sent": self._answers.payload_bytes,
            "answers": self._answers.given,
            "waited": traffic.nodes[self._context.node].waited,
            "device_kind": self._learner.device_kind,
            "began": self._inheritance.began,
            "in_model": [],
            "not_finite": self._metrics.not_finite,
        }
        self._watched_at = self._reported_at
        return report

    def _of_whole(self, own: list[Any], nothing: Any) -> list[Any]:
        """What is said of each own fragment, for those of the whole; `nothing` of those of other paths."""
        if self._exchange.paths is None:
            return own
        said = dict(zip(self._numbers, own, strict=True))
        return [said.get(number, nothing) for number in range(len(self._parts))]


def _items(received: Mapping[Any, Any]) -> list[Any]:
    """The items of a port, by replica and key."""
    return [item for _, item in sorted(received.items(), key=lambda entry: (entry[0][0], str(entry[0][1])))]
