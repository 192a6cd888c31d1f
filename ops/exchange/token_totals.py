"""What a run is known to have trained: tokens by life of a learner, and their sum, which is asked for at every step.

Decides nothing. Whoever paces, watches or trains keeps one, hears those of others, and passes its own on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

TOLD_MAX: Final = 16
"""Lives of which a report tells beside its own: of a large run, who hears many reports hears enough."""


@final
@dataclass(slots=True)
class Totals:
    """Tokens by (slot, incarnation). They only grow, so of what is known and what is heard the larger holds."""

    trained: int = field(default=0, init=False)
    _told: int = field(default=0, init=False)
    """How many lives, in the order in which they were heard of first, were told by `next_told`."""
    _tokens: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int), init=False)

    def hear(self, told: Iterable[Sequence[int]]) -> None:
        """Take the maximum, life by life, of what is known and what is told: [slot, incarnation, tokens] triples."""
        for slot, incarnation, tokens in told:
            more = tokens - self._tokens[slot, incarnation]
            if more > 0:
                self._tokens[slot, incarnation] = tokens
                self.trained += more

    def add(self, slot: int, incarnation: int, tokens: int) -> None:
        """Count so many tokens more of one life."""
        self._tokens[slot, incarnation] += tokens
        self.trained += tokens

    def of(self, slot: int, incarnation: int) -> int:
        """Those of one life; 0 if it was never heard of."""
        return self._tokens.get((slot, incarnation), 0)

    def told(self) -> list[list[int]]:
        """[slot, incarnation, tokens] of every life, in this order, as an item carries it."""
        return [[slot, incarnation, tokens] for (slot, incarnation), tokens in sorted(self._tokens.items())]

    def next_told(self, slot: int, incarnation: int) -> list[list[int]]:
        """[slot, incarnation, tokens] of that life, and of TOLD_MAX others at most: each time of the next ones, so that
        whoever hears often has soon heard of all, also where not every item reaches it."""
        lives, own = list(self._tokens), (slot, incarnation)
        if len(lives) <= TOLD_MAX:
            return self.told()
        chosen = {own} | {lives[(self._told + i) % len(lives)] for i in range(TOLD_MAX)}
        self._told = (self._told + TOLD_MAX) % len(lives)
        return [[*life, self._tokens[life]] for life in sorted(chosen) if life in self._tokens]
