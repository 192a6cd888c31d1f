"""The positions at which new lives of learners begin in their slots' batches, as one shard sees them.

Decides when a shard may report to a life how far its slot is merged. It does not merge, nor decide where the life
begins: that is after the highest position that any shard reports (`data.places`).

Theory of operation. No batch may be trained twice among those merged, by two lives of a slot. A life that begins after
everything that was merged of the lives before it satisfies that, as long as nothing more of them is merged later. Such
merges are possible in rounds that are open when the shard first receives a report of the new life, because a vote that
counted stays when its voter dies: rounds that open later do not list the former life, and no learner answers them for
it. So a life is *placed* once the rounds that were open at its first report are over. All of them end without it,
because it is no member before it steps; and it steps once it is placed. Batches that the former lives had trained and
no shard has merged are trained again; a batch that one fragment has merged and another has not is lost to the other,
and is booked as lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.ops.data.places import Place, by_slot
from isthmus.ops.exchange.messages import Reached


@dataclass(slots=True)
class _Waiting:
    """A life that is to be placed once these rounds are over."""

    incarnation: int
    rounds: frozenset[int]


class Placing:
    """The lives of learners known to a shard, and the positions up to which it has merged the batches of each slot."""

    def __init__(self) -> None:
        self._lives: dict[int, int] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._states: dict[int, tuple[int, Any]] = {}

    def hear_learner(self, slot: int, incarnation: int, rounds: Collection[int]) -> None:
        """Record a life that reports while these rounds are open. A slot's first has no former ones to follow."""
        if incarnation > self._lives.get(slot, 1):
            self._lives[slot] = incarnation
            self._waiting[slot] = _Waiting(incarnation, frozenset(rounds))

    def hear_merges(self, reached: Mapping[Any, Reached] | None) -> None:
        """Record the progress of fragments: each item describes all of its newest version."""
        for item in (reached or {}).values():
            self._positions[item["fragment"]] = by_slot(item["positions"])
            for slot, position, state in item["states"]:
                if position >= self._states.get(slot, (0, None))[0]:
                    self._states[slot] = position, state

    def due(self, rounds: Collection[int], *, shard: int = 0, shards: int = 1) -> list[Place]:
        """The lives that can be placed while these rounds are open, each once, by slot."""
        ready = [slot for slot, each in sorted(self._waiting.items()) if each.rounds.isdisjoint(rounds)]
        return [self._place(slot, self._waiting.pop(slot).incarnation, shard, shards) for slot in ready]

    def _place(self, slot: int, incarnation: int, shard: int, shards: int) -> Place:
        position = max((positions.get(slot, 0) for positions in self._positions.values()), default=0)
        state_position, state = self._states.get(slot, (0, None))
        return Place(
            slot=slot,
            incarnation=incarnation,
            shard=shard,
            shards=shards,
            position=position,
            state_position=state_position,
            state=state,
        )
