"""The holders of the model, as far as a recorder knows, and whether the model is lost.

A fragment is held by the hosts that report so (`ops.recovery.hold`), by the learners whose last report has a version of
it, and by the life of its shard that published it last; each only while that life is live. A model is lost if a
fragment of it was merged, by the books, by its holders, or by a shard that heard of them, and some fragment has no
holder any more: no shard begins it anew (`ops.recovery.hold`). In a program in which no host reports what it holds
nothing is lost. Nor is a fragment whose shard is not live: a recorder that comes back before its home has found the
other hosts again is alone in its roster, and knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from isthmus.ops.exchange.messages import Held
from isthmus.programs.recorder.books import Books
from isthmus.runtime.ids import LEARNER, SYNCER

LOST_TIMES: Final = 100
"""Ten seconds of looks: hosts that come back report what they hold within a second or two, and a recorder that comes
back hears it then. Looks are counted, not time, because a clock may leap."""


class ModelHolders:
    """Looks, ten times a second, whether each of `count` fragments is held."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: dict[Any, frozenset[int]] = {}
        self._is_merged = False
        self._looks: dict[int, int] = {}
        """Fragment -> looks in a row in which it had no holder."""

    def hear(self, held: Mapping[Any, Held]) -> None:
        """Take the holders' reports, by (replica, key)."""
        self._held |= {replica: frozenset(item["fragments"]) for (replica, _), item in held.items()}
        self._is_merged |= any(item["merged"] for item in held.values())

    def look(self, books: Books, members: Iterable[Any]) -> None:
        """Look which fragments have a holder, once there is a merged model."""
        is_judged = self._held and (books.versions or self._is_merged)
        unheld = self._unheld(books, members) if is_judged else []
        self._looks = {fragment: self._looks.get(fragment, 0) + 1 for fragment in unheld}

    @property
    def gone(self) -> list[int]:
        """The fragments that no host has held for LOST_TIMES looks."""
        return [fragment for fragment, looks in self._looks.items() if looks >= LOST_TIMES]

    def lost(self, saved: Container[int]) -> str | None:
        """The verdict that the model is lost, or None; of fragments that are `saved` as final nothing can be lost."""
        lost = [fragment for fragment in self.gone if fragment not in saved]
        if not lost:
            return None
        return (
            f"the model is lost: every host that held fragment {lost[0]} ({len(lost)} of {self._count} "
            "fragments) has ended, after fragments were merged. It is not begun anew; run again."
        )

    def _unheld(self, books: Books, members: Iterable[Any]) -> list[int]:
        lives = {(member.replica.role, member.replica.slot): member.incarnation for member in members}
        held = set[int]()
        for replica, fragments in self._held.items():
            held |= fragments if (replica.role, replica.slot) in lives else set()
        for slot, report in books.reports.items():
            if lives.get((LEARNER, slot)) == report["incarnation"]:
                held |= {fragment for fragment, version in enumerate(report["versions"]) if version[0]}
        for fragment, (shard, epoch) in books.publishers.items():
            is_back = lives.get((SYNCER, shard), epoch) != epoch  # A later life, which began without the fragment.
            held |= set() if is_back else {fragment}
        return [fragment for fragment in range(self._count) if fragment not in held]
