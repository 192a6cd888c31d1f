"""What is believed of the tokens that lives of learners have trained, by who says so.

Decides whose word counts. A life that reports speaks for itself, and nobody else does: what others say of it is left
aside. Of a life that has not been heard of, as a shard that comes back finds it where learners have died, the recorder
knows; and learners do, who were told by the shard before. One of them may be wrong, so what learners say of others
counts as far as more than half of those that are live say at least so much. One that is alone is believed: the run is
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from isthmus.ops.exchange.messages import Progress
from isthmus.ops.exchange.token_totals import Totals

LIVES_MAX: Final = 4096
"""Lives of which nobody but others has said anything: a learner can make up any number."""


def is_majority(count: int, of: int) -> bool:
    """Whether so many are more than half of all."""
    return 2 * count > of


class Hearsay:
    """Tokens by (slot, incarnation), as they are believed (`totals`)."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._own: set[tuple[int, int]] = set()
        self._claims: dict[tuple[int, int], dict[int, int]] = {}
        """Of lives that have not spoken: what the learner in each slot says of them."""

    def hear_learner(self, report: Progress, live: Callable[[], Collection[int]], learners: int) -> None:
        """Take what a learner says of itself and of others, one of `learners` that are live; `live()` are the slots of
        those that have spoken, which is asked for only where somebody else is believed."""
        life = report["slot"], report["incarnation"]
        self._own.add(life)
        self._claims.pop(life, None)
        self.totals.hear([[*life, report["tokens"]]])
        for slot, incarnation, tokens in report["totals"]:
            if (slot, incarnation) not in self._own and tokens > self.totals.of(slot, incarnation):
                self._hear_claim((slot, incarnation), report["slot"], tokens, live, learners)

    def hear_recorder(self, told: Iterable[Sequence[int]]) -> None:
        """Take what the recorder says of lives that have not spoken for themselves."""
        self.totals.hear(each for each in told if (each[0], each[1]) not in self._own)

    def slots(self) -> set[int]:
        """All that anybody has spoken of, believed or not."""
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
