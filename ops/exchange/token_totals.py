"""The known trained tokens of a run: by life of a learner, and their sum, which is read at every step.

Decides nothing. Pacers, recorders and learners each keep one, add those of others, and pass their own on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

TOLD_MAX: Final = 16
"""Other lives in a report: in a large run, a receiver of many reports gets enough to cover all."""


@final
@dataclass(slots=True)
class Totals:
    """Tokens by (slot, incarnation). They only grow, so the larger of two values holds."""

    trained: int = field(default=0, init=False)
    _told: int = field(default=0, init=False)
    """The number of lives, in order of first appearance, that `next_told` has returned."""
    _tokens: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int), init=False)

    def hear(self, told: Iterable[Sequence[int]]) -> None:
        """Take the maximum, life by life, of the known and the given [slot, incarnation, tokens] triples."""
        for slot, incarnation, tokens in told:
            more = tokens - self._tokens[slot, incarnation]
            if more > 0:
                self._tokens[slot, incarnation] = tokens
                self.trained += more

    def add(self, slot: int, incarnation: int, tokens: int) -> None:
        """Add tokens of one life."""
        self._tokens[slot, incarnation] += tokens
        self.trained += tokens

    def of(self, slot: int, incarnation: int) -> int:
        """The tokens of one life; 0 if it is unknown."""
        return self._tokens.get((slot, incarnation), 0)

    def told(self) -> list[list[int]]:
        """[slot, incarnation, tokens] of every life, in this order, as an item carries it."""
        return [[slot, incarnation, tokens] for (slot, incarnation), tokens in sorted(self._tokens.items())]

    def next_told(self, slot: int, incarnation: int) -> list[list[int]]:
        """[slot, incarnation, tokens] of that life, and of at most TOLD_MAX others.

        Each call continues with the next ones, so that a frequent receiver soon knows all, even where some items do not
        arrive.
        """
        lives, own = list(self._tokens), (slot, incarnation)
        if len(lives) <= TOLD_MAX:
            return self.told()
        chosen = {own} | {lives[(self._told + i) % len(lives)] for i in range(TOLD_MAX)}
        self._told = (self._told + TOLD_MAX) % len(lives)
        return [[*life, self._tokens[life]] for life in sorted(chosen) if life in self._tokens]
