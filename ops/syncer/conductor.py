"""The conductor of a program in lock-step: which fragment is merged next, after how many steps, with which learners
(DiLoCo, arXiv 2311.08105; Streaming DiLoCo, arXiv 2501.18512).

Decides the turns. It does not collect votes, wait, or touch values: the quorum of merge waits for every member of a
round, and each learner's gate keeps to the steps that a turn names (`lock_step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, final

from isthmus.ops.data.positions import of_slot
from isthmus.ops.exchange.messages import (
    Control,
    Held,
    Kind,
    Merging,
    Progress,
    ReachedPositions,
    Turn,
    boundary,
    last_merged,
)
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.recovery.hold import RelayedTotals, ShardMemory
from isthmus.ops.step_tokens import AtMost, ChangedStepTokens, StepTokens
from isthmus.ops.syncer.pacer import OVERDUE, RECOVERY_GRACE, START_WAIT, Pacer, Start
from isthmus.ops.syncer.schedule import LearnerRoster, Placing, learners_live
from isthmus.ops.syncer.terms import Conditions, everybody, last

TICK_NS: Final = 200_000_000
"""As often as holders look at what they hold."""


def open_rounds_max(overlap: int, fragments: int, interval: int) -> int:
    """The number of rounds that are open at once: one, and one for each capture within the overlap."""
    return 1 + overlap * fragments // interval


@final
class Tick:
    """Lets a conductor notice that time passes while no host reports: waiting learners do not, and recorder and holders
    may be cut off. Fires every TICK_NS."""

    outputs: ClassVar[tuple[str, ...]] = ("tick",)

    def __call__(self) -> dict[str, dict[str, Any]]:
        """A tick."""
        return {"tick": {}}


class Conductor:
    """Opens the rounds of a run: the same Turn on ports `round` (to merge) and `pull` (to every gate).

    Fires on AnyOf("progress", "merged", "control", "held", "tick").

    Arguments:
        fragments: P.
        interval: H.
        overlap: tau.
        learners: the number that the start waits for.
        tokens: the budget of the run.
        tokens_per_batch: those of one step, the mean of all learners.
        step_tokens: those of each learner.

    Fragment p of P is captured after (p + 1) H / P steps, and then every H. The number of open rounds is one more than
    the captures within the overlap; each merge opens the next. All learners are members of every round, so it lasts as
    long as the slowest of them. The phases are those of `pacer`:

        initial, recover    the first version of every fragment, of one learner; the newest one, for a syncer that came
                            back. Then the conductor waits for a holder of all of them, and for learners
        merge               one turn after the other, on a plan that is exact in tokens as long as no learner dies; a
                            syncer that came back continues after the turn that was merged last. Where tokens are
                            counted, the plan takes the mean of the steps so far, and what is left of the budget after
                            the planned turns is trained in turns of as many steps, until the count is reached
        final               after as many more steps as the budget has left, every fragment once, with all that answer
                            within a learned bound

    The token totals that learners receive of each other, which the learning rate may follow, are counted by merges and
    not by reports: so a run in which no learner dies is the same for any durations. For lives that are over only merged
    tokens count: so a run that continues from a snapshot has the budget that it had there.

    A learner that comes back holds no part of an open round. It takes the newest version of every fragment, and is a
    member from the next round on. A learner that left no trace in two rounds in a row counts as gone until its next
    report.
    """

    outputs = ("round", "pull", "place", "held")
    collects = ("progress", "merged", "control", "held", "reached")
    schemas: Final = staticmethod(Pacer.schemas)

    def __init__(
        self,
        *,
        fragments: int,
        interval: int,
        overlap: int,
        learners: int,
        tokens: int,
        tokens_per_batch: int,
        step_tokens: StepTokens = 1,
    ) -> None:
        self.is_finished = False
        self._fragments, self._interval, self._overlap = fragments, interval, overlap
        self._learners, self._budget = learners, tokens
        self._step_tokens: int | tuple[int, ...] | None = None
        """Those of each learner; None where they are counted, or a turn has steps of before a change of them."""
        if not isinstance(step_tokens, AtMost | ChangedStepTokens):
            self._step_tokens = step_tokens
        self._mean = tokens_per_batch, 1
        """Tokens in so many steps; where they are counted, of those that were merged last."""
        self._start, self._roster = Start(learners), LearnerRoster()
        self._relayed = RelayedTotals()
        self._totals = self._relayed.totals  # As reported, at any time.
        self._counted = Totals()  # Up to the last capture that was merged.
        self._open: dict[int, Turn] = {}  # By fragment.
        self._opened_at: dict[int, int] = {}
        self._round_longest = 0
        self._born: set[int] = set()
        self._ended: set[int] = set()
        self._round_last = self._index = 0
        self._waits_until: dict[str, int] = {}
        self._memory = ShardMemory()
        self._placing = Placing()
        self._published: dict[int, ReachedPositions] = {}
        """Fragment -> the progress of its newest version."""
        self._totals_before: list[list[list[int]]] = []
        """The totals in the next turns: the turns that were open at a cut carried the totals merged by then."""
        self._living: list[list[int]] = []
        self._has_begun = False
        self._is_stopping = False

    def open(self, context: Any) -> None:
        """Set the life of this syncer."""
        self._context = context
        # Answers to the rounds of a former life may still be on their way.
        self._round_last = (context.member.incarnation - 1) << 32

    def __call__(
        self,
        progress: Mapping[Any, Progress] | None = None,
        merged: Mapping[Any, Merging] | None = None,
        control: Mapping[Any, Control] | None = None,
        held: Mapping[Any, Held] | None = None,
        reached: Mapping[Any, ReachedPositions] | None = None,
        tick: Any = None,
    ) -> list[tuple[str, Any]] | None:
        """Process the inputs, open the rounds that follow from them, and place new lives of learners."""
        self._living = learners_live(progress, self._context.members()) or self._living
        for report in sorted((progress or {}).values(), key=lambda report: (report["slot"], report["incarnation"])):
            self._roster.record(report)
            self._placing.add_learner(report["slot"], report["incarnation"], self._round_numbers())
            self._relayed.add_learner(report, self._roster.live_slots, len(self._living))
        self._placing.add_merges(reached)
        self._published |= {item["fragment"]: item for item in (reached or {}).values()}
        self._memory.add_holders(held)
        for order in (control or {}).values():
            self._relayed.add_recorder(order["totals"])
            self._memory.add_recorder(order)
            self._is_stopping |= order["stop"]
        for merging in sorted((merged or {}).values(), key=lambda merging: merging["round"]):
            self._end(merging)
        opened = [*self._closings(), *self._openings()]
        self.is_finished = len(self._ended) == self._fragments
        if opened or merged:
            self._context.publish(self.statistics())
        turns = [(port, turn) for turn in opened for port in ("round", "pull")]
        places = self._placing.due(self._round_numbers()) if len(self._born) == self._fragments else []
        return [*turns, *(("place", place) for place in places), *self._memory.news(self._context)] or None

    def statistics(self) -> dict[str, Any]:
        """The figures for the status: counts, and inner steps."""
        return {
            "rounds_opened": self._round_last & 0xFFFFFFFF,
            "rounds_in_flight": len(self._open),
            "fragments_ended": len(self._ended),
            "interval": self._interval,
            "overlap": self._overlap,
        }

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _end(self, merging: Merging) -> None:
        """End the round of a merge that is reported; a merge of a round that is no longer open is ignored."""
        fragment = merging["fragment"]
        turn = self._open.get(fragment)
        if turn is None or turn["round"] != merging["round"]:
            return
        del self._open[fragment]
        if turn["kind"] == "merge":
            self._round_longest = max(self._round_longest, merging["published_at"] - merging["opened_at"])
        traces = {*merging["voters"], *merging["left_out"], *(refused[0] for refused in merging["refused"])}
        # A recovery names only one of the learners that answered; and one that waits at its gate reports nothing new.
        missing = [member for member in turn["members"] if turn["kind"] != "recover" and member[0] not in traces]
        for slot, incarnation in missing:
            self._roster.miss(slot, incarnation)
        match turn["kind"]:
            case "initial" if merging["version"] is None:
                self._start.failed(fragment, turn["members"][0], merging["reason"])
            case "initial" | "recover" if merging["version"] is not None:
                self._born.add(fragment)
                if turn["kind"] == "recover":
                    self._count(fragment)
                    self._go_on()
            case "merge":
                self._count_turn(turn, [member for member in turn["members"] if member not in missing])
            case "final":
                self._ended.add(fragment)

    def _count(self, fragment: int) -> None:
        """Count the tokens in the version with which a fragment continues, for lives that are over; for others, all."""
        living = {(learner.slot, learner.incarnation) for learner in self._roster.live()}
        merged = [*self._memory.totals(), *self._clock(fragment)]
        self._counted.raise_to(row for row in merged if (row[0], row[1]) not in living)
        self._counted.raise_to(row for row in self._totals.rows() if (row[0], row[1]) in living)

    def _count_turn(self, turn: Turn, members: Sequence[Sequence[int]]) -> None:
        """Count the tokens of a turn that was merged: by its steps or, where they are counted, by its merge."""
        if self._step_tokens is not None:
            for slot, incarnation in members:
                self._counted.add(slot, incarnation, turn["steps"] * of_slot(self._step_tokens, slot))
            return
        before = self._counted.trained
        self._counted.raise_to(self._clock(turn["fragment"]))
        steps, tokens = turn["steps"] * len(members), self._counted.trained - before
        self._mean = (tokens, steps) if tokens and steps else self._mean

    def _clock(self, fragment: int) -> list[list[int]]:
        return self._published[fragment]["clock"] if fragment in self._published else []

    def _go_on(self) -> None:
        """Go on with the turn after the last that was merged, once all fragments are there.

        Where all learners start again, the next turns carry the totals of those that were open at the cut.
        """
        if len(self._born) < self._fragments:
            return
        positions = {fragment: item["positions"] for fragment, item in self._published.items()}
        self._index = last_merged(positions, self._fragments) + 1
        if self._has_begun:
            return
        behind = open_rounds_max(self._overlap, self._fragments, self._interval)
        for index in range(self._index - behind, self._index - 1):
            totals = Totals()
            totals.raise_to(self._memory.totals())
            totals.raise_to(self._clock(index % self._fragments))
            self._totals_before.append(totals.rows())

    def _round_numbers(self) -> list[int]:
        return [turn["round"] for turn in self._open.values()]

    # -- turns to open -------------------------------------------------------------------------------------------------

    def _openings(self) -> list[Turn]:
        if len(self._born) < self._fragments:
            return self._open_first()
        if not self._memory.is_kept(range(self._fragments), self._context) or not self._may_begin():
            return []
        opened = []
        while not self._is_stopping and len(self._open) < open_rounds_max(
            self._overlap, self._fragments, self._interval
        ):
            turn = self._open_merge()
            if turn is None:
                break
            opened.append(turn)
        return opened or self._open_final()

    def _open_first(self) -> list[Turn]:
        """The first version of all fragments that have none: the one that learners hold, if this syncer comes back."""
        unborn = [fragment for fragment in range(self._fragments) if fragment not in self._born | self._open.keys()]
        holders = {fragment: [learner.member for learner in self._roster.holding(fragment)] for fragment in unborn}
        if any(holders.values()):
            there = len(self._roster.live()) if self._memory.has_heard_holders(self._context) else 0
            if not self._is_due_by("recovery", RECOVERY_GRACE, there):
                return []
            # Where all start again, all are members of the next round again.
            self._has_begun = bool(self._roster.stepping())
            self._counted.raise_to(self._memory.totals())
            return [self._turn(p, "recover", members, 0) for p, members in holders.items() if members]
        fresh = self._memory.fresh(unborn, self._context)
        live = [learner.member for learner in self._roster.live()]
        giver = self._start.giver(live, self._context.now()) if fresh else None
        return [] if giver is None else [self._turn(p, "initial", [giver], 0) for p in fresh]

    def _may_begin(self) -> bool:
        """Whether all learners that the start waits for can take part in the first round.

        The wait happens once, and not again for learners without which the first version was made.
        """
        stepping = self._roster.stepping()
        missing = [each for each in self._roster.live() if each not in stepping and each.member in self._living]
        is_rest_there = self._start.has_waited and bool(stepping) and not missing
        self._has_begun = self._has_begun or is_rest_there or self._is_due_by("start", START_WAIT, len(stepping))
        return self._has_begun

    def _is_due_by(self, what: str, wait: int, there: int) -> bool:
        """Whether all learners are there, or `wait` nanoseconds have passed since the first call for `what`."""
        now = self._context.now()
        return there >= self._learners or now >= self._waits_until.setdefault(what, now + wait)

    def _open_merge(self) -> Turn | None:
        """The next turn; None where the budget ends with it or before it, or no learner is there to take part."""
        members = [learner.member for learner in self._roster.stepping()]
        fragment, steps = self._index % self._fragments, self._steps()
        if not members or fragment in self._open:
            return None
        left = self._steps_left(len(members))
        if self._is_last(steps, left):
            if self._open or self._is_sure(len(members)):
                return None
            steps = max(1, self._overlap, min(steps, left))  # Learners may be as far ahead as the overlap.
        self._index += 1
        turn = self._turn(fragment, "merge", members, steps)
        if self._totals_before:
            turn["totals"] = self._totals_before.pop(0)
        return turn

    def _open_final(self) -> list[Turn]:
        """All final rounds at once, when nothing else is open and no other merge comes before the end of the budget."""
        members = [learner.member for learner in self._roster.finishing()]
        steps = self._steps()
        left = self._steps_left(max(1, len(self._roster.stepping())))
        if self._open or self._ended or not members or not (self._is_stopping or self._is_last(steps, left)):
            return []
        more = self._overlap if self._is_stopping else max(left, self._overlap)
        return [self._turn(p, "final", members, more) for p in range(self._fragments)]

    def _closings(self) -> list[Turn]:
        """Close final rounds that are open for longer than all answers can take, by a new attempt without members.

        The merges so far are then the end, and tokens trained beyond them are lost.
        """
        closed = []
        for fragment, turn in sorted(self._open.items()):
            waited = self._context.now() - self._opened_at[fragment]
            if turn["kind"] == "final" and turn["members"] and waited > OVERDUE * (turn["grace"] or 0):
                self._open[fragment] = {**turn, "attempt": turn["attempt"] + 1, "members": []}
                closed.append(self._open[fragment])
        return closed

    def _is_last(self, steps: int, left: int) -> bool:
        """Whether the budget has no room for a turn of so many steps, the adoption of its result, and an end."""
        return steps + max(self._overlap, 1) > left

    def _is_sure(self, members: int) -> bool:
        """Whether the budget is spent at the end of the final rounds: for certain, where tokens are counted."""
        if self._step_tokens is not None:
            return True
        return self._budget - self._planned <= members * self._overlap  # A step has a token at least.

    def _steps(self) -> int:
        """The steps between the capture of the next turn and the one before it."""
        before, next_ = (boundary(self._index + n, self._interval, self._fragments) for n in (-1, 0))
        return next_ - before

    def _steps_left(self, members: int) -> int:
        """The steps until the budget is spent, from the last capture that is planned."""
        tokens, steps = self._mean
        return max(0, -(-(self._budget - self._planned) * steps // (members * tokens)))

    @property
    def _planned(self) -> int:
        """The tokens that are counted, and those that are expected of the open turns."""
        tokens, steps = self._mean
        ahead = sum(turn["steps"] * len(turn["members"]) for turn in self._open.values() if turn["kind"] == "merge")
        return self._counted.trained + ahead * tokens // steps

    def _turn(self, fragment: int, kind: Kind, members: list[list[int]], steps: int) -> Turn:
        """The item of a round that opens now."""
        self._round_last += 1
        conditions = everybody(len(members))
        if kind in ("initial", "recover"):
            conditions = Conditions(1, 0 if kind == "initial" else RECOVERY_GRACE, [], None)
        elif kind == "final":
            slowest = max((learner.step_time for learner in self._roster.live()), default=0)
            conditions = last(self._round_longest, slowest, steps)
        turn = Turn(
            round=self._round_last,
            fragment=fragment,
            attempt=1,
            kind=kind,
            members=members,
            count_min=conditions.count_min,
            grace=conditions.grace,
            required=conditions.required,
            deadline=conditions.deadline,
            chain=None,
            interval=self._interval,
            totals=self._counted.rows(),
            known=self._memory.known(fragment) if kind == "recover" else [],
            steps=steps,
        )
        self._open[fragment], self._opened_at[fragment] = turn, self._context.now()
        return turn
