"""Gives the evaluator the values of the versions that it asks for.

Decides how long a version that has been replaced is kept: what is evaluated is a cut of the versions that the evaluator
knew at one moment, so the last version that it has said it knows stays until it knows a later one, or has got it. That
is one version of each fragment beside the newest, and none where no evaluator is live; what it knew of in between, and
has not said, is gone, and it gets the newest instead. Which versions are asked for, and when, is `island.cut_taker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np

from isthmus.ops.exchange.messages import SentVersion, ShardState, WantedVersion, Whole, passed_on


@final
class VersionSender:
    """States, and what is wanted, in; versions that are asked for out."""

    outputs: ClassVar[tuple[str, ...]] = ("version",)
    collects: ClassVar[tuple[str, ...]] = ("state", "wanted")
    schemas: ClassVar[dict[str, Any]] = {"wanted": WantedVersion}

    def __init__(self) -> None:
        self._newest: dict[int, Whole] = {}
        self._replaced: dict[int, Whole] = {}
        """By fragment, the version before the newest that may still be asked for."""
        self._wanted: dict[int, WantedVersion] = {}
        """By fragment, what was said last."""
        self._sent: dict[int, int] = {}
        """By fragment, the last transfer, as long as its version is kept for an evaluator that joins."""
        self._asker: Any = None

    def open(self, context: Any) -> None:
        """Keep the context, for the live members."""
        self._context = context

    def __call__(
        self, state: Mapping[Any, ShardState] | None = None, wanted: Mapping[Any, WantedVersion] | None = None
    ) -> list[tuple[str, Any]] | None:
        """Note new versions; send those that are asked for."""
        for (replica, p), asked in (wanted or {}).items():
            self._asker, self._wanted[p] = replica, asked
            if p in self._replaced and self._replaced[p]["version"] < asked["version"]:
                del self._replaced[p]
        for item in (state or {}).values():
            self._note(passed_on(Whole, item))  # Without momentum, which is replaced with the next version.
        return [("version", item) for p in sorted(self._wanted) for item in self._due(p)] or None

    def _note(self, item: Whole) -> None:
        """Note a version; keep the one that it replaces, unless an older one may be asked for, or nobody asks."""
        p, former = item["fragment"], self._newest.get(item["fragment"])
        self._newest[p] = item
        if former is None or former["version"] == item["version"]:
            return
        if p not in self._wanted or all(each.replica != self._asker for each in self._context.members()):
            self._replaced.pop(p, None)
        elif p not in self._replaced or self._replaced[p]["version"] != self._wanted[p]["version"]:
            self._replaced[p] = former

    def _due(self, p: int) -> list[SentVersion]:
        """The item to send of a fragment now."""
        asked, newest = self._wanted[p], self._newest.get(p)
        number = asked["number"]
        # Of a version that has been told of, and is not here yet, the state is on its way from the outer step.
        if newest is None or self._sent.get(p, 0) == number or (number and newest["version"] < asked["version"]):
            return []
        if number == 0:
            del self._sent[p]
            return [_item({**newest, "values": np.empty(0, np.float32)}, 0)]
        self._sent[p] = number
        replaced = self._replaced.get(p)
        is_there = replaced is not None and replaced["version"] == asked["version"]
        return [_item(replaced if is_there else newest, number)]  # type: ignore[arg-type]


def _item(version: Whole, number: int) -> SentVersion:
    item: SentVersion = passed_on(SentVersion, version, number=number)
    return item
