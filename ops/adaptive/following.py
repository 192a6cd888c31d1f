"""A shard whose settings follow its links: the requests of its rounds, and the records of changes.

Decides nothing itself: it passes the reports of learners and rounds to the `Chooser`, and its choice to rounds.
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
"""The role at the other end of each link."""
PLACES: Final = 64
"""Changes that wait for an absent recorder: more than there are settings, each of which changes seldom."""


class Steps(Protocol):
    """The fields that are read of a learner."""

    @property
    def slot(self) -> int:
        """Its slot."""

    @property
    def step_time(self) -> int:
        """Nanoseconds; 0 where not known yet."""

    @property
    def links(self) -> Sequence[Sequence[Any]]:
        """The goodput of its links, [role, slot, bytes a second in the mean, at best]."""


class Following:
    """The settings of shard `member`, with fragments of these sizes. `is_needed`: some of them follow the links."""

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
        """Set H and tau where they are numbers."""
        self._chooser.given(interval, overlap)

    def forget(self, slot: int) -> None:
        """Forget a learner's former life."""
        self._chooser.forget(slot)

    def asked(self, members: Sequence[Sequence[int]]) -> Asked:
        """The requests of a round to its members."""
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
        """The changes by one more turn.

        Arguments:
            learners: those that step.
            goodput: that of this shard's own links, by (role, slot).
            round_trip: the duration of a round, without grace, in steps of the fastest learner.
            round_steps: the part of it that has to fit into the overlap, in steps of the slowest.
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
        """The settings in the status: formats, of pushes by slot."""
        if not self.is_needed:
            return {}
        choice = self._chooser.choice
        return {"push": dict(sorted(choice.push.items())), "update": choice.update, "changes": self._told}

    def _up(self, learner: Steps) -> Rate:
        """The goodput of a learner's link to this shard, as it reports it."""
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
