"""The firings of one host: those under way, and how long any was.

It measures only. A node that is not in a firing waits, for items, for credit or for nothing in particular; a node that
is declared `may_block` may wait for another host inside a firing, so its firings do not count.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.runtime.clock import Duration, Instant


class Firings(NamedTuple):
    """`busy`: the time in which any firing was under way so far; `oldest`: the age of the oldest one now, of `node`.

    0 and '' without any.
    """

    busy: Duration
    oldest: Duration
    node: str


class Busy:
    """The busy time of one host. Threads report firings under a lock of theirs; any thread may query."""

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
        """The firing of a node has ended."""
        if self._begun.pop(node, None) is not None and not self._begun:
            self._before += now - self._since

    def firings(self, now: Instant) -> Firings:
        """The firings under way at `now`."""
        under_way = sorted((begun, node) for node, begun in list(self._begun.items()))
        if not under_way:
            return Firings(Duration(self._before), Duration(0), "")
        begun, node = under_way[0]
        return Firings(Duration(self._before + max(0, now - self._since)), Duration(max(0, now - begun)), node)
