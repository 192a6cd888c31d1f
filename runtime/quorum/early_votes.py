"""Votes that are held because they may be early: their round is not open yet, or their voter is not a member of it yet.

It stores them, and bounds the number of their keys; `core` decides when one is held, counted or released. A voter has
one vote per key.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from isthmus.runtime.ids import Handle, Replica

EARLY_MAX: Final = 64
"""Unopened keys with held votes, and how far above the newest key they may lie: a voter is early by the delay of one
edge, in which at most the rounds in flight can open."""


@dataclass(slots=True)
class EarlyVotes:
    """The early votes of one quorum node."""

    _votes: dict[int, dict[Replica, Handle]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._votes.values()))

    def rounds(self) -> list[int]:
        """The rounds for which votes are held, sorted."""
        return sorted(self._votes)

    def voters(self, key: int) -> list[Replica]:
        """The voters whose votes are held for a round, sorted."""
        return sorted(self._votes.get(key, ()))

    def hold(self, key: int, voter: Replica, handle: Handle) -> None:
        self._votes.setdefault(key, {})[voter] = handle

    def take(self, key: int, voter: Replica) -> Handle:
        """Remove and return a held vote; KeyError if there is none."""
        handle = self._votes[key].pop(voter)
        if not self._votes[key]:
            del self._votes[key]
        return handle

    def take_all(self, voter: Replica) -> list[tuple[int, Replica, Handle]]:
        """Remove and return all held votes of a voter, by round."""
        return [(key, voter, self.take(key, voter)) for key in self.rounds() if voter in self._votes[key]]

    def take_round(self, key: int) -> list[tuple[Replica, Handle]]:
        """Remove and return all held votes for a round, by voter."""
        return sorted(self._votes.pop(key, {}).items())

    def has_room(self, key: int, opened: Container[int]) -> bool:
        """Whether votes can be held for a key that is not in `opened`, the open ones."""
        return sum(other not in opened for other in self._votes if other != key) < EARLY_MAX
