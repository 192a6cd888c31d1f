"""The syncer of elastic data-parallel: the members of each step, and the mean of their gradients.

`Caller` decides the members of a round and the learners that receive a state; `Average` makes the mean, in slot order.
Neither waits: the quorum of Average closes a round when all live members have voted, so a death costs the others a
stall, and the remaining members make the step.

Theory of operation. Members of a round are those whose votes were in the one before, and those that get a state with
its mean. A learner that reports *ready* while others step is a newcomer: in the next round the lowest slot is the
donor, whose vote carries its state, and from the one after it the newcomer is a member. If the donor dies on the way,
another is asked. The state is nowhere but in the learners: when all are gone, so is the run. The syncer's next life
begins rounds anew, with the last snapshot, on port `kept`: all go back to that. Its rounds have numbers that none of
its former lives has used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

import numpy as np

from isthmus.ops.data.positions import position_of
from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import (
    Call,
    Control,
    Progress,
    ReachedPositions,
    RoundOpening,
    Vector,
    Vote,
    WholeState,
    newest,
)
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.syncer.pacer import START_WAIT
from isthmus.ops.syncer.schedule import LearnerRoster, Placing

if TYPE_CHECKING:
    from types import ModuleType


ROUNDS_MAX: Final = 1 << 40
"""The limit for the rounds of one life of the syncer: a round takes a thousandth of a second at the very best."""
KEPT_WAIT: Final = 10_000_000_000
"""Nanoseconds for the last snapshot to arrive, after the first report of a learner."""


class Averaged(TypedDict):
    """average -> caller: the mean of a round, its voters, and the number of their tokens, each and in all.

    `state` came with one of the votes. `reached` is the progress of the merges in the batches of each slot, with the
    states of their streams, as in `ReachedPositions`.
    """

    mean: Vector
    voters: list[list[int]]
    shares: list[int]
    tokens: int
    state: list[Any] | None
    reached: ReachedPositions


class Caller:
    """Opens one round after the other: Opening to average, Call to every learner; and places new lives.

    Fires on AnyOf("progress", "averaged", "kept", "control"): "control" lets it notice the passage of time at the
    start, where it waits for `learners`, and brings a request to stop. `tokens` is the budget of the run.
    """

    outputs = ("round", "call", "place")
    collects = ("progress", "kept", "control")
    schemas: ClassVar[dict[str, Any]] = {"progress": Progress, "kept": WholeState, "control": Control}

    def __init__(self, *, learners: int, tokens: int) -> None:
        self._learners, self._budget = learners, tokens
        self._roster, self._placing = LearnerRoster(), Placing()
        self._begins_by: int | None = None
        self._round = self._trained = self._rounds_before = 0
        self._kept: WholeState | None = None
        self._newcomers: list[list[int]] = []
        self._reached = ReachedPositions(fragment=0, clock=[], positions=[], states=[])
        self._totals = Totals()
        self._is_stopping = False
        self.is_finished = False

    def open(self, context: Any) -> None:
        """Set the clock, and the first round number of this life."""
        self._context = context
        self._round = self._rounds_before = (context.member.incarnation - 1) * ROUNDS_MAX

    def __call__(
        self,
        progress: Mapping[Any, Progress] | None = None,
        averaged: Averaged | None = None,
        kept: Mapping[Any, WholeState] | None = None,
        control: Mapping[Any, Control] | None = None,
    ) -> list[tuple[str, Any]]:
        """Process the inputs; returns the next round, if it is its turn, and the lives that can be placed."""
        state = newest(kept)
        self._kept = state if state is not None and state["leaves"] else self._kept
        for report in sorted((progress or {}).values(), key=lambda report: (report["slot"], report["incarnation"])):
            self._roster.record(report)
            self._placing.add_learner(report["slot"], report["incarnation"], [self._round])
        self._is_stopping |= any(order["stop"] for order in (control or {}).values())
        opened: dict[str, Any] | None = None
        if self._round == self._rounds_before:
            opened = self._begin()
        elif averaged is not None:
            self._reached = averaged["reached"]
            for (slot, incarnation), tokens in zip(averaged["voters"], averaged["shares"], strict=True):
                self._totals.add(slot, incarnation, tokens)
            self._placing.add_merges({0: self._reached})
            opened = self._next(averaged)
        places = self._placing.due([self._round])
        return [*(opened or {}).items(), *(("place", place) for place in places)]

    def _begin(self) -> dict[str, Any] | None:
        """The first round, once all learners are there: they begin with the same parameters, or go back to a snapshot.

        RuntimeError in a later life, if there is no snapshot.
        """
        ready, now = [learner.member for learner in self._roster.live()], self._context.now()
        if not ready:
            return None
        if self._begins_by is None:
            self._begins_by = now + START_WAIT
        if len(ready) < self._learners and now < self._begins_by:
            return None
        if self._rounds_before and self._kept is None:
            # It comes with the first message of the host that keeps it; a report may overtake it.
            if now < self._begins_by - START_WAIT + KEPT_WAIT:
                return None
            raise RuntimeError(
                "the syncer of elastic-data-parallel died before any learner had taken a snapshot. Start a new run"
            )
        self._trained = 0
        if self._rounds_before and self._kept:
            self._trained = self._kept["tokens"]
            self._totals.raise_to(self._kept["totals"])
            positions, states = self._kept["positions"], self._kept["streams"]
            self._reached = ReachedPositions(fragment=0, clock=[], positions=positions, states=states)
            self._placing.add_merges({0: self._reached})
        return self._open(ready, None, served=[], is_last=False)

    def _next(self, averaged: Averaged) -> dict[str, Any]:
        """The round after one that is over; there is none after the last."""
        served = self._newcomers if averaged["state"] is not None else []
        members = sorted([*averaged["voters"], *served])
        self.is_finished = self._is_stopping or self._trained + averaged["tokens"] >= self._budget
        return self._open(members, averaged, served=served, is_last=self.is_finished)

    def _open(
        self, members: list[list[int]], averaged: Averaged | None, *, served: list[list[int]], is_last: bool
    ) -> dict[str, Any]:
        ready = [learner.member for learner in self._roster.live() if learner.phase == "ready"]
        self._newcomers = [member for member in ready if member not in members]
        self._round += 1
        before = self._trained
        self._trained += averaged["tokens"] if averaged is not None else 0
        self._context.publish({"rounds_opened": self._round - self._rounds_before, "members": len(members)})
        call = Call(
            round=self._round,
            members=members,
            mean=averaged["mean"] if averaged is not None else None,
            voters=averaged["voters"] if averaged is not None else [],
            served=served,
            state=self._kept["leaves"] if averaged is None and self._kept else averaged and averaged["state"],
            donor=members[0][0] if self._newcomers else None,
            trained_before=before,
            trained=self._trained,
            totals=self._totals.rows(),
            positions=self._reached["positions"],
            streams=self._reached["states"],
            is_last=is_last,
        )
        if is_last:
            return {"call": call}
        opening = RoundOpening(round=self._round, members=members, count_min=len(members), grace=None)
        return {"round": opening, "call": call}


class Average:
    """A round and its votes in; their mean out, weighted by tokens. `whole` is the model as one fragment, a vote has at
    most `tokens_most`."""

    outputs = ("averaged",)
    collects = ("vote",)

    @staticmethod
    def schemas(whole: Sequence[Fragment], *, tokens_most: int) -> dict[str, Any]:
        """The form of learners' votes."""
        return {"vote": schemas.vote(whole, tokens_most)}

    def __init__(self, whole: Sequence[Fragment], *, tokens_most: int) -> None:
        del tokens_most  # For `schemas`.
        (self._whole,) = whole
        self._positions: dict[int, int] = {}
        self._states: dict[int, list[Any]] = {}

    def open(self, context: Any) -> None:
        """Load the kernels before the first round closes."""
        from isthmus.ops.kernels import averaging

        averaging.warm()
        self._merging: ModuleType = averaging

    def __call__(
        self, round: RoundOpening, vote: Mapping[Any, Vote], decision: Mapping[str, Any] | None = None
    ) -> dict[str, Averaged]:
        """The mean of a round. RuntimeError if no learner is left that could vote."""
        votes = sorted(vote.values(), key=lambda item: item["slot"])
        if not votes:
            raise RuntimeError(
                "all learners of elastic-data-parallel are gone, and the model with them. Start a new run"
            )
        lengths = np.zeros(len(self._whole.units), np.float32)  # An average ignores them.
        merged = self._merging.merge(
            [item["values"] for item in votes],
            [float(item["tokens"]) for item in votes],
            [lengths] * len(votes),
            self._whole,
            "average",
            slots=[item["slot"] for item in votes],
        )
        for item in votes:
            self._positions[item["slot"]] = position_of(item["positions"], item["slot"])
            if item["stream"] is not None:
                self._states[item["slot"]] = item["stream"]
        reached = ReachedPositions(
            fragment=self._whole.index,
            clock=[],
            positions=[[slot, position] for slot, position in sorted(self._positions.items())],
            states=[[slot, *state] for slot, state in sorted(self._states.items())],
        )
        averaged = Averaged(
            mean=merged.gradient(self._whole),
            voters=[[item["slot"], item["incarnation"]] for item in votes],
            shares=[item["tokens"] for item in votes],
            tokens=sum(item["tokens"] for item in votes),
            state=next((item["state"] for item in votes if item["state"] is not None), None),
            reached=reached,
        )
        return {"averaged": averaged}
