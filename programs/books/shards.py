"""The merges that shards report: the newest merge of each fragment in each epoch, and its origin.

Decides which of the tokens that were ever merged are in the model. A shard that comes back begins with a version that
others hold, its *origin*; merges of its former life beyond that version are *undone*. So the model's tokens are those
of the newest epoch, of the epoch before it up to the origin, and so on. Where a recorder has missed a merge, the counts
of its fragment are only a bound, and are marked so: those in the model, where a merge is missing that is in it; those
undone, where any is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, final

from isthmus.ops.exchange.messages import Merging

Life: TypeAlias = tuple[int, int]
"""(slot, incarnation) of a learner."""
KEPT_MAX: Final = 8
"""Merges of a fragment in an epoch that are kept one by one, beside those of versions on disk: a shard that comes back
is given the newest version of all holders, which is the last one that its former life published, or one of the few
before it; without any holder, the one on disk."""
SAVED_MAX: Final = 4
"""Versions of a fragment that are taken to be on disk: those of the last two snapshots, and of two that have gone."""


@final
class ShardBooks:
    """The merges of shards by fragment and epoch; the books only grow, and take items in any order and twice."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], Merging] = {}
        self._kept: dict[tuple[int, int], dict[int, list[list[int]]]] = {}
        self._origins: dict[tuple[int, int], list[int]] = {}
        self._claimed: dict[tuple[int, int], int] = {}
        self._saved: dict[int, list[tuple[int, int]]] = {}
        """Fragment -> versions on disk, the newest last."""

    def take(self, merging: Merging) -> bool:
        """Take in a merge; returns whether it is newer than the known ones of its fragment in this epoch."""
        fragment, epoch, version = merging["fragment"], merging["epoch"], merging["version"]
        known = self._newest.get((fragment, epoch))
        if known is not None and known["round"] >= merging["round"]:
            return False
        self._newest[fragment, epoch] = merging
        if merging["origin"] is not None:
            self._begun(fragment, epoch, merging["origin"])
        if version is not None and version[0] == epoch:
            self._keep(fragment, epoch, version[1], merging["merged_tokens"])
        return True

    def claimed(self, versions: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note the versions of fragments that learners hold, or that epochs began with: lower bounds of the merges."""
        for fragment, version in versions:
            of = (fragment, version[0])
            self._claimed[of] = max(self._claimed.get(of, 0), version[1])

    def _begun(self, fragment: int, epoch: int, origin: Sequence[int]) -> None:
        self._origins[fragment, epoch] = list(origin)
        self.claimed([(fragment, origin)])

    def saved(self, versions: Iterable[Sequence[int]]) -> None:
        """Note the versions on disk, as [fragment, epoch, count]: their merges are kept."""
        for fragment, epoch, count in versions:
            known = self._saved.setdefault(fragment, [])
            if (epoch, count) not in known:
                self._saved[fragment] = sorted([*known, (epoch, count)])[-SAVED_MAX:]

    def _keep(self, fragment: int, epoch: int, count: int, merged: list[list[int]]) -> None:
        kept = self._kept.setdefault((fragment, epoch), {})
        kept[count] = merged
        for old in sorted(kept)[:-KEPT_MAX]:
            if (epoch, old) not in self._saved.get(fragment, ()):
                del kept[old]

    # -- results -------------------------------------------------------------------------------------------------------

    def mergings(self) -> list[Merging]:
        """The newest merge of each fragment in each epoch of its shard, in this order."""
        return [merging for _, merging in sorted(self._newest.items())]

    def in_model(self, fragment: int) -> tuple[Counter[Life], bool]:
        """The tokens of each life that are in the newest version of a fragment, and whether no merge that is in it is
        missing in that count."""
        epoch = max((epoch for p, epoch in self._origins if p == fragment), default=None)
        is_whole = all(self._is_known(*of) for of in self._claimed if of[0] == fragment and of[1] >= (epoch or 0))
        if epoch is None:
            return Counter(), is_whole
        merged = _counted(self._newest[fragment, epoch]["merged_tokens"])
        while (origin := self._origins.get((fragment, epoch), [epoch, 0]))[0] < epoch:
            epoch = origin[0]
            before, is_exact = self._at(fragment, epoch, origin[1])
            merged.update(before)
            is_whole = is_whole and is_exact
        return merged, is_whole

    def ever(self, fragment: int) -> tuple[Counter[Life], bool]:
        """The tokens of each life that were merged by any epoch, undone or not, and whether no merge is missing in that
        count."""
        merged: Counter[Life] = Counter()
        for (p, _), merging in self._newest.items():
            merged.update(_counted(merging["merged_tokens"]) if p == fragment else {})
        return merged, all(self._is_known(*of) for of in self._claimed if of[0] == fragment)

    def _is_known(self, fragment: int, epoch: int) -> bool:
        """Whether no host holds a newer version of an epoch than its shard has reported to the recorder."""
        origin = self._origins.get((fragment, epoch))
        counts = [*self._kept.get((fragment, epoch), {}), *([] if origin is None else [origin[1]])]
        return not epoch or self._claimed[fragment, epoch] <= max(counts, default=-1)

    def _at(self, fragment: int, epoch: int, count: int) -> tuple[Counter[Life], bool]:
        """The tokens that an epoch had merged up to a version, and whether it is known; else those known before it."""
        kept = self._kept.get((fragment, epoch), {})
        before = [each for each in kept if each <= count]
        origin = self._origins.get((fragment, epoch), [0, -1])
        if not before:
            return Counter(), count == origin[1]
        return _counted(kept[max(before)]), max(before) == count

    # -- from life to life ---------------------------------------------------------------------------------------------

    def memory(self) -> list[dict[str, Any]]:
        """The books, as rows for the next recorder."""
        return [
            {
                "newest": {**self._newest[of]},
                "origin": self._origins.get(of),
                "kept": [[count, merged] for count, merged in sorted(self._kept.get(of, {}).items())],
                "saved": [version for version in self._saved.get(of[0], ()) if version[0] == of[1]],
            }
            for of in sorted(self._newest)
        ]

    def recall(self, row: dict[str, Any]) -> None:
        """Take in a row."""
        newest: Merging = row["newest"]
        of = newest["fragment"], newest["epoch"]
        self._newest[of] = newest
        if row["origin"] is not None:
            self._begun(*of, row["origin"])
        self.saved([of[0], *version] for version in row["saved"])
        for count, merged in row["kept"]:
            self._keep(*of, count, merged)


def _counted(rows: Iterable[Sequence[int]]) -> Counter[Life]:
    return Counter({(slot, incarnation): tokens for slot, incarnation, tokens in rows})
