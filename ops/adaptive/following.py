"""A shard whose settings follow its links: what its rounds ask for, and what is told of changes.

Decides nothing itself: it gives the `Chooser` what learners and rounds say, and gives rounds what that chose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from isthmus.ops.adaptive.choice import Link, Needs, Rate
from isthmus.ops.adaptive.chooser import Chooser, Move
from isthmus.ops.adaptive.wanted import Wanted
from isthmus.ops.exchange.messages import Asked, Change, Format

LEARNER: Final = "learner"
"""The role of those at the other ends."""
PLACES: Final = 64
"""Changes that wait for a recorder that is away: more than there are settings, each of which changes seldom."""


class Steps(Protocol):
    """What is needed of a learner."""

    @property
    def slot(self) -> int:
        """Its slot."""

    @property
    def step_time(self) -> int:
        """Nanoseconds; 0 where not known yet."""

    @property
    def links(self) -> Sequence[Sequence[Any]]:
        """What its links carry, [role, slot, bytes a second in the mean, at best]."""


class Following:
    """The settings of the shard that `member` is, with fragments of so many values. `is_needed`: whether any of them
    follows the links."""

    def __init__(self, wanted: Wanted, sizes: Sequence[int], member: Any) -> None:
        self.is_needed = bool(wanted.auto)
        self._chooser = Chooser(wanted)
        self._sizes = tuple(sizes)
        self._member = member
        self._told = 0

    @property
    def interval(self) -> int:
        """H, in inner steps."""
        return self._chooser.choice.interval

    @property
    def overlap(self) -> int:
        """tau, in inner steps."""
        return self._chooser.choice.overlap

    def given(self, interval: int, overlap: int) -> None:
        """Take H and tau as they are, where they are numbers."""
        self._chooser.given(interval, overlap)

    def forget(self, slot: int) -> None:
        """Let go of what is known of a learner's former life."""
        self._chooser.forget(slot)

    def asked(self, members: Sequence[Sequence[int]]) -> Asked:
        """What a round asks of its members."""
        choice = self._chooser.choice
        push = [[slot, self._chooser.push(slot)] for slot, _ in members]
        return Asked(push=push, update=cast(Format, choice.update), interval=choice.interval, overlap=choice.overlap)

    def observe(
        self,
        learners: Sequence[Steps],
        goodput: Mapping[tuple[str, int], Sequence[int]],
        *,
        round_trip: float,
        round_steps: float,
        is_late: bool,
        round_number: int,
        now: int,
    ) -> list[Change]:
        """What changes by one more turn.

        Arguments:
            learners: those that step.
            goodput: what this shard's own links carry, by (role, slot).
            round_trip: what a round takes, without grace, in steps of the fastest learner.
            round_steps: what of that is to fit into the overlap, in steps of the slowest.
            is_late: whether a fragment waits too long for its turn.
            round_number: the next round's.
            now: this shard's clock.
        """
        times = [learner.step_time for learner in learners if learner.step_time > 0]
        links = [
            Link(learner.slot, self._up(learner), Rate(*goodput.get((LEARNER, learner.slot), ())))
            for learner in sorted(learners, key=lambda each: each.slot)
        ]
        overlap = math.ceil(round_steps) + 1
        if is_late:
            overlap = max(overlap, self.overlap + 1)
        needs = Needs(sum(self._sizes), max(self._sizes), min(times, default=0), round_trip, overlap)
        return [self._change(move, round_number, now) for move in self._chooser.observe(links, needs, len(self._sizes))]

    def statistics(self) -> dict[str, Any]:
        """What the status shows: formats, of pushes by slot."""
        if not self.is_needed:
            return {}
        choice = self._chooser.choice
        return {"push": dict(sorted(choice.push.items())), "update": choice.update, "changes": self._told}

    def _up(self, learner: Steps) -> Rate:
        """What a learner says that its link to this shard carries."""
        own = self._member.replica
        found = (Rate(*rate) for role, slot, *rate in learner.links if (role, slot) == (own.role, own.slot))
        return next(found, Rate())

    def _change(self, move: Move, round_number: int, now: int) -> Change:
        self._told += 1
        return Change(
            shard=self._member.replica.slot,
            epoch=self._member.incarnation,
            number=self._told,
            place=self._told % PLACES,
            round=round_number,
            setting=move.setting,
            slot=move.slot,
            before=move.before,
            after=move.after,
            reason=move.reason,
            link=move.cause.link,
            goodput=move.cause.goodput,
            needed=move.cause.needed,
            round_trip=move.round_trip,
            at=now,
        )
