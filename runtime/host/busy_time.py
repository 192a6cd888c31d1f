"""What the nodes of one host are at: which firings are under way, and for how long anything was.

It measures only. Whoever is in no firing waits, for items, for credit or for nothing in particular; a node that is
declared `may_block` may wait for somebody inside of a firing, so its firings do not count.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.runtime.clock import Duration, Instant


class Firings(NamedTuple):
    """`busy`: for how long so far any firing was under way; `oldest`: for how long the oldest one is, of `node`; 0 and
    '' without any."""

    busy: Duration
    oldest: Duration
    node: str


class Busy:
    """Of one host. Threads may tell it of firings, under a lock of theirs; anybody may ask."""

    def __init__(self) -> None:
        self._begun: dict[str, Instant] = {}
        self._before = 0
        self._since = Instant(0)

    def began(self, node: str, now: Instant) -> None:
        """A firing of a node begins."""
        if not self._begun:
            self._since = now
        self._begun[node] = now

    def ended(self, node: str, now: Instant) -> None:
        """The firing of a node is over."""
        if self._begun.pop(node, None) is not None and not self._begun:
            self._before += now - self._since

    def firings(self, now: Instant) -> Firings:
        """What is under way now."""
        under_way = sorted((begun, node) for node, begun in list(self._begun.items()))
        if not under_way:
            return Firings(Duration(self._before), Duration(0), "")
        begun, node = under_way[0]
        return Firings(Duration(self._before + max(0, now - self._since)), Duration(max(0, now - begun)), node)
