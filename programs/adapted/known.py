"""A recorder's view of settings that follow the links: each change once, and the values in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from isthmus.programs.adapted.words import ChangeRecord

LAST_COUNT: Final = 16
"""Changes that a status shows; changes.jsonl has all."""
FIELDS: Final = tuple(name for name in ChangeRecord.__struct_fields__ if name != "time")
"""Fields of a line of changes.jsonl, beside its time."""


class Changes:
    """Changes of all shards."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._in_use: dict[tuple[int, str, int], str] = {}
        self._last: deque[dict[str, Any]] = deque(maxlen=LAST_COUNT)
        self._count = 0

    def take(self, change: Mapping[str, Any], at: float | None) -> bool:
        """Take in a change, `at` seconds after the first step; returns whether it is new. A shard's arrive in order."""
        shard, newest = change["shard"], (change["epoch"], change["number"])
        known = self._newest.get(shard, (0, 0))
        if newest <= known:
            return False
        if newest[0] > known[0]:  # A life begins with the requested settings.
            self._in_use = {key: value for key, value in self._in_use.items() if key[0] != shard}
        self._newest[shard] = newest
        slot = -1 if change["slot"] is None else change["slot"]
        self._in_use[shard, change["setting"], slot] = change["after"]
        self._last.append({"time": at, **{name: change[name] for name in FIELDS}})
        self._count += 1
        return True

    def figures(self) -> dict[str, Any]:
        """For a status: the number of changes, the last ones, and the values in use of all settings that ever changed:
        [shard, setting, slot or None, format or steps]."""
        in_use = [
            [shard, setting, None if slot < 0 else slot, value]
            for (shard, setting, slot), value in sorted(self._in_use.items())
        ]
        return {"count": self._count, "in_use": in_use, "last": list(self._last)}


def in_order(changes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Changes that arrived together, in the order in which they were made."""
    return sorted(changes, key=lambda change: (change["shard"], change["epoch"], change["number"]))
