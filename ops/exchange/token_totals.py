"""What a run is known to have trained: tokens by life of a learner, and their sum, which is asked for at every step.

Decides nothing. Whoever paces, watches or trains keeps one, hears those of others, and passes its own on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(slots=True)
class Totals:
    """Tokens by (slot, incarnation). They only grow, so of what is known and what is heard the larger holds."""

    trained: int = field(default=0, init=False)
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
