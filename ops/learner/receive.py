"""The receive node: decodes the coded updates that reach a host, in every role; no other node decodes them.

Decides the version of each fragment that this host has: codes are added to the values of their base version, each time
in a new buffer, which serves directly as anchor, for evaluation, or for a snapshot. Codes that arrive before their
predecessors are kept, at most KEPT_MAX of a fragment; meanwhile this node reports that it lacks some (`Need`), and is
sent a whole version, which the kept codes may follow. It has a thread of its own, so no step waits for it. Pulls pass
through it, behind the updates that came before them, because an answer on an older version would be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Need, Round, Turn, Update, is_withdrawn, whole_of

if TYPE_CHECKING:
    from types import ModuleType

KEPT_MAX = 4
"""Codes of a fragment that wait for a predecessor: no more versions than this have keys of their own in transit."""


class Receive:
    """Updates in, coded or whole, and pulls; whole updates, pulls, and missing versions (`need`) out.

    `in_turns`: pulls are the turns of programs in lock-step, where copies are for learners that hold no version yet.
    """

    outputs = ("update", "pull", "need")
    collects = ("update", "pull")

    @staticmethod
    def schemas(fragments: Sequence[Fragment], *, in_turns: bool = False) -> dict[str, Any]:
        """The forms of the messages of shards, and of holders of published versions."""
        return {"update": schemas.coded_update(fragments), "pull": Turn if in_turns else Round}

    def __init__(self, fragments: Sequence[Fragment], *, in_turns: bool = False) -> None:
        self._fragments = fragments
        self._in_turns = in_turns
        self._held: dict[int, Update] = {}
        self._kept: dict[int, list[Update]] = {}
        self._lacking: dict[int, list[int]] = {}
        """For each fragment that lacks codes: the version held when that was reported."""

    def prepare(self) -> None:
        """Load the kernels that decode."""
        self._load()
        self._coding.warm_updates()

    def open(self, context: Any) -> None:
        """Where no fork server has loaded them, the first update that needs them does: no first step waits for it."""
        self._load()

    def _load(self) -> None:
        from isthmus.ops.kernels import coding

        self._coding: ModuleType = coding

    def __call__(
        self, update: Mapping[Any, Update] | None = None, pull: Mapping[Any, Round] | None = None
    ) -> list[tuple[str, Any]] | None:
        """The newest version of each fragment that has news, missing versions, and the pulls."""
        emitted: list[tuple[str, Any]] = []
        items = sorted((update or {}).values(), key=itemgetter("fragment", "version"))
        news = [item["fragment"] for item in items if self._take(item)]
        for p in dict.fromkeys(item["fragment"] for item in items):
            followed = self._follow(p)
            if p in news or followed:
                emitted.append(("update", self._held[p]))
            emitted += [("need", need) for need in self._needs(p)]
        return [*emitted, *(("pull", each) for each in (pull or {}).values())] or None

    def _take(self, item: Update) -> bool:
        """Hold a whole version, or news about the held one; keep codes. Returns whether there is news."""
        p, held = item["fragment"], self._held.get(item["fragment"])
        if is_withdrawn(item) or p >= len(self._fragments):
            return False
        if self._in_turns and item["kind"] == "copy" and held is not None:
            if "frame" not in item:
                return False  # In lock-step it is not adopted, and codes follow what is.
            item = {**item, "kind": "merge"}  # It stands for codes that gates wait for.
        values = self._coding.as_sent(item, "values")
        if held is not None and item["version"] <= held["version"]:
            return self._say_again(item, held)
        if not self._coding.is_whole(values, self._fragments[p]) or not self._coding.is_finite(values):
            return False  # The fragment counts as lacking it.
        if not isinstance(values, self._coding.Coded):
            self._held[p] = whole_of(item, values)
            return True
        kept = [each for each in self._kept.get(p, []) if each["version"] != item["version"]]
        self._kept[p] = sorted([*kept, item], key=itemgetter("version"))[-KEPT_MAX:]
        return False

    def _follow(self, p: int) -> bool:
        """Apply the kept codes to the held version as far as they follow on; returns whether any did."""
        moved = False
        for item in self._kept.pop(p, []):
            held = self._held.get(p)
            if held is not None and item["version"] <= held["version"]:
                moved |= self._say_again(item, held)
                continue
            if held is None or item.get("base") != held["version"]:
                self._kept.setdefault(p, []).append(item)
                continue
            codes = self._coding.as_sent(item, "values")
            self._held[p] = whole_of(item, self._coding.add(held["values"], codes, self._fragments[p]))
            moved = True
        return moved

    def _say_again(self, item: Update, held: Update) -> bool:
        """Take everything but the values of an item about the held version; returns whether there is news.

        Above all, this may mark the version as final, which a copy of it does not know.
        """
        if item["version"] != held["version"] or (held["kind"] == "final" and item["kind"] != "final"):
            return False
        self._held[item["fragment"]] = whole_of(item, held["values"])
        return True

    def _needs(self, p: int) -> list[Need]:
        """The reports due about a fragment: that it lacks codes, and that it no longer does.

        The first is repeated only where the version sent did not help.
        """
        kept, reported, held = self._kept.get(p), self._lacking.get(p), self._held.get(p)
        version = [0, 0] if held is None else held["version"]
        if not kept:
            return [] if self._lacking.pop(p, None) is None else [Need(fragment=p, version=version, lacks=False)]
        if reported == version:
            return []
        self._lacking[p] = version
        return [Need(fragment=p, version=version, lacks=True)]
