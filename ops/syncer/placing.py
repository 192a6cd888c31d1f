"""Where new lives of learners begin in their slots' batches, as one shard sees it.

Decides when a shard may tell a life how far its slot is merged. It does not merge, nor decide where the life begins:
that is after the highest of what all shards say (`data.places`).

Theory of operation. No batch may be trained twice among what is merged, by two lives of a slot. A life that begins
after everything that was merged of the lives before it keeps to that, as long as nothing more of them is merged later.
What could be is in rounds that are open when the shard hears of the new life, for a vote that counted stays when its
voter dies: rounds that open later do not list the former life, and answers to them come from nobody. So a life is
*placed* once the rounds that were open when it was first heard of are over. All of them end without it, for it is no
member before it steps; and it steps once it is placed. What the former lives had trained and nobody has merged is
trained again; what one fragment has merged and another has not is lost to the other, and is in the books as lost.
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
    """The lives of learners that a shard has heard of, and how far the batches of each slot are merged in it."""

    def __init__(self) -> None:
        self._lives: dict[int, int] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._states: dict[int, tuple[int, Any]] = {}

    def hear_learner(self, slot: int, incarnation: int, rounds: Collection[int]) -> None:
        """A life speaks while these rounds are open. The first of a slot has no former ones to begin after."""
        if incarnation > self._lives.get(slot, 1):
            self._lives[slot] = incarnation
            self._waiting[slot] = _Waiting(incarnation, frozenset(rounds))

    def hear_merges(self, reached: Mapping[Any, Reached] | None) -> None:
        """Take how far fragments are merged: each tells the whole of its newest version."""
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
