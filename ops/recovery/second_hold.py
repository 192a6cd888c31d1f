"""The hold node of the evaluator: the versions that were taken for the last evaluation, in case shards and learners die
together and the run's home has nothing newer.

Decides when learners get copies of them. The home's disk has the states of the last snapshot, as a rule newer than
these, and its hold node gives copies of those. So nothing is given of a fragment of which the home has said that its
disk has that version, or a later one; and of any other only once the home has said that it has looked for what this
life of the shard needs, or some time after that has come back, in which a home that has come back, too, would have said
it. What this is for is a disk that has refused all states until everybody died, or has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

from isthmus.ops.exchange.messages import Held, ToldVersion, Update, Whole, copied, withdrawn
from isthmus.ops.recovery.hold import HeldShards, digest_of

LOOKS: Final = 10
"""Looks, one each 200 ms, before a copy is given: looks are counted, not time, because a clock may leap."""


@final
class SecondHold:
    """Versions that were taken, books of versions, and what the home has in; copies of the first out, on a timer."""

    outputs: ClassVar[tuple[str, ...]] = ("copy", "held")
    collects: ClassVar[tuple[str, ...]] = ("taken", "told", "elsewhere")
    schemas: ClassVar[dict[str, Any]] = {"told": ToldVersion, "elsewhere": Held}

    def __init__(self, *, role: str, shards: int) -> None:
        self._owners = HeldShards(role, shards)
        self._held: dict[int, Whole] = {}
        self._told: dict[int, ToldVersion] = {}
        self._saved: dict[int, list[int]] = {}
        """By fragment, the newest version on the home's disk."""
        self._looked: list[list[int]] = []
        """The lives of shards for which the home has looked what its disk has, as [shard, life]."""
        self._looks: dict[tuple[int, int], int] = {}
        """How often a life of a shard was seen that has not published a fragment yet, by fragment and life."""
        self._copies: dict[int, tuple[int, list[Any]]] = {}
        """Fragment -> the life of its shard for which a copy was given, and its row in `Held.given`."""

    def open(self, context: Any) -> None:
        """Keep the context, for the live members."""
        self._owners.open(context)

    def __call__(
        self,
        taken: Mapping[Any, Whole] | None = None,
        told: Mapping[Any, ToldVersion] | None = None,
        elsewhere: Mapping[Any, Held] | None = None,
    ) -> list[tuple[str, Any]] | None:
        """Store what has come; the copies to give, those to withdraw, and what is held, if that has changed."""
        self._held |= {item["fragment"]: item for item in (taken or {}).values()}
        for item in (told or {}).values():
            former = self._told.get(item["fragment"])
            if former is None or item["incarnation"] >= former["incarnation"]:
                self._told[item["fragment"]] = item
        for report in (elsewhere or {}).values():
            self._saved = {fragment: version for fragment, *version in sorted(report["saved"])}
            self._looked = [] if report["error"] else report["lives"]  # A disk that fails may have more than it says.
        return [*(("copy", copy) for copy in self._given()), *self._news()] or None

    def _given(self) -> list[Update]:
        """The copies to give now, and withdrawals of those that are not needed any more."""
        copies: list[Update] = []
        for p, held in sorted(self._held.items()):
            life = self._owners.life(p)
            if p in self._copies and self._has_published(p, self._copies[p][0]):
                del self._copies[p]
                copies.append(withdrawn(p))
            elif self._is_wanted(p, held, life):
                digest = digest_of(held["values"], held["clock"], held["positions"])
                self._copies[p] = life, [p, *held["version"], digest, []]
                copies.append(copied(held))  # type: ignore[arg-type]
        return copies

    def _is_wanted(self, p: int, held: Whole, life: int) -> bool:
        """Whether a copy is to be given for this life of the shard."""
        is_behind = held["version"][0] < life and not self._has_published(p, life)
        if not is_behind or self._saved.get(p, []) >= held["version"] or self._copies.get(p, (0,))[0] >= life:
            return False
        self._looks[p, life] = looks = self._looks.get((p, life), 0) + 1
        return looks > LOOKS or [self._owners.shard(p), life] in self._looked

    def _has_published(self, p: int, life: int) -> bool:
        """Whether this life of its shard, or a later one, has published a fragment."""
        told = self._told.get(p)
        return told is not None and told["incarnation"] >= life

    def _news(self) -> list[tuple[str, Held]]:
        """The report of what is held, if that has changed."""
        known = [*self._held.values(), *self._told.values()]
        return self._owners.news(
            fragments=sorted(self._held),
            merged=sorted({each["fragment"] for each in known if each["version"][1]}),
            given=[row for _, (_, row) in sorted(self._copies.items())],
        )
