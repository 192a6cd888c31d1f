"""The believed numbers of tokens that lives of learners have trained, by their sources.

Decides which source counts. A life that reports is the only source about itself. About a life that was never heard,
which a shard that comes back finds where learners have died, the recorder is a source; and so are learners, which know
it from the shard before. One of them may be wrong, so learners' numbers about others count as far as more than half of
the live ones report at least as much. A learner that is alone is believed: it is the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from isthmus.ops.exchange.messages import Progress
from isthmus.ops.exchange.token_totals import Totals

LIVES_MAX: Final = 4096
"""Lives known only from others: a learner can make up any number."""


def is_majority(count: int, of: int) -> bool:
    """Whether `count` is more than half of all."""
    return 2 * count > of


class Hearsay:
    """Believed tokens by (slot, incarnation) (`totals`)."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._own: set[tuple[int, int]] = set()
        self._claims: dict[tuple[int, int], dict[int, int]] = {}
        """Tokens of lives that have not reported, by the slot of the claiming learner."""

    def hear_learner(self, report: Progress, live: Callable[[], Collection[int]], learners: int) -> None:
        """Add the report of one of `learners` live learners, about itself and others.

        `live()` returns the slots of those that have reported; it is called only for claims about others.
        """
        life = report["slot"], report["incarnation"]
        self._own.add(life)
        self._claims.pop(life, None)
        self.totals.hear([[*life, report["tokens"]]])
        for slot, incarnation, tokens in report["totals"]:
            if (slot, incarnation) not in self._own and tokens > self.totals.of(slot, incarnation):
                self._hear_claim((slot, incarnation), report["slot"], tokens, live, learners)

    def hear_recorder(self, told: Iterable[Sequence[int]]) -> None:
        """Add the recorder's numbers of lives that have not reported themselves."""
        self.totals.hear(each for each in told if (each[0], each[1]) not in self._own)

    def slots(self) -> set[int]:
        """All slots that any source has mentioned, believed or not."""
        return {slot for slot, *_ in self.totals.told()} | {slot for slot, _ in self._claims}

    def _hear_claim(
        self, life: tuple[int, int], by: int, tokens: int, live: Callable[[], Collection[int]], learners: int
    ) -> None:
        if life not in self._claims and len(self._claims) >= LIVES_MAX:
            return
        claims = self._claims.setdefault(life, {})
        claims[by] = max(tokens, claims.get(by, 0))
        slots = live()
        said = sorted((each for slot, each in claims.items() if slot in slots), reverse=True)
        needed = max(learners, len(slots)) // 2
        if len(said) > needed:
            self.totals.hear([[*life, said[needed]]])
