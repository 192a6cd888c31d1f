"""What a link carries, learned from the transfers that it has carried; nothing is sent to find out.

Decides how fast a link is taken to be. Reads no clock: a channel's `watch` says when each transfer began, and when it
had arrived, by the clock of its sender.

Theory of operation. Items for one peer arrive one after another, so a transfer that began while another was under way
has had the link from the arrival of that one. One that found it empty took the way there, and the word of its arrival
the way back: so long small items take, and the least of the last SMALL_COUNT is taken off. What is left is the time
that the bytes took. Goodput is the bytes of the last large items by their time: of LARGE_COUNT of them, so that one
that waited for a busy process says little, but no more than the newest that took SERVED_MAX, so that a link that
carries much less than before is known by its first or second transfer; and no more than what a transfer that is under
way can still have, which says it earlier. What else takes time (a process that waits for a core) is in it, too, and
of small items most of it: so the best of those that found the link free is told beside, which no link exceeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member, Replica

LARGE_BYTES: Final = 1 << 10
"""From here on an item says something of the rate: reports of learners, which are smaller, of the way."""
SMALL_COUNT: Final = 32
LARGE_COUNT: Final = 8
LARGE_COUNT_MIN: Final = 3
"""Before so many were seen nothing is said: the first ones may wait for processes that are just beginning."""
SERVED_MAX: Final = 500_000_000
"""Nanoseconds."""
HEARD_WITHIN: Final = 300_000_000
"""Nanoseconds after which it is known, beside the way, that an item has arrived: a heartbeat, and a turn of two
loops."""
SERVED_MIN: Final = 10_000
"""Nanoseconds that a large item is taken to need at least: clocks and loops are no finer."""


class Rate(NamedTuple):
    """Bytes a second, 0 where not known: of the last large items together, and the best of them."""

    mean: int = 0
    best: int = 0


class Goodput:
    """What one direction of the link to one peer carries, as far as it is known."""

    __slots__ = ("_arrived", "_large", "_noted", "_since", "_size", "_small", "_was_free", "rate")

    def __init__(self) -> None:
        self.rate = Rate()
        self._arrived = Instant(0)
        self._since, self._size, self._was_free = Instant(0), 0, True
        self._small: deque[int] = deque(maxlen=SMALL_COUNT)
        self._large: deque[tuple[int, int, bool]] = deque(maxlen=LARGE_COUNT)
        self._noted: deque[int] | deque[tuple[int, int, bool]] | None = None

    @property
    def way(self) -> Duration:
        """How long an item of no size takes, there and back; 0 as long as it is not known."""
        return Duration(min(self._small, default=0))

    def carried(self, size_bytes: int, begun: Instant, arrived: Instant) -> None:
        """A transfer that began at `begun` has `arrived`; those to one peer come in their order."""
        if arrived < self._arrived:  # A clock that leapt.
            return
        if arrived == self._arrived and self._noted is not None:  # In one message with the item before it.
            self._noted.pop()
            size_bytes += self._size
        else:
            self._was_free = begun >= self._arrived
            self._since = begun if self._was_free else self._arrived
        self._arrived, self._size = arrived, size_bytes
        self._noted = self._note(size_bytes, arrived - self._since)

    def waited(self, size_bytes: int, begun: Instant, now: Instant) -> None:
        """A transfer that began at `begun` is not known to have arrived."""
        served = now - max(begun, self._arrived) - self.way - HEARD_WITHIN
        if served > 0 and size_bytes >= LARGE_BYTES:
            most = max(1, size_bytes * 1_000_000_000 // served)
            self.rate = Rate(*(min(known or most, most) for known in self.rate))

    def _note(self, size_bytes: int, served: int) -> deque[int] | deque[tuple[int, int, bool]] | None:
        """Note that so many bytes took so many nanoseconds; among what, None if it says nothing."""
        if served <= 0:
            return None
        if size_bytes < LARGE_BYTES:
            if not self._was_free:
                return None
            self._small.append(served)
            return self._small
        if self._was_free:
            served -= self.way
        self._large.append((size_bytes, max(served, SERVED_MIN), self._was_free))
        if len(self._large) >= LARGE_COUNT_MIN:
            self.rate = self._measured()
        return self._large

    def _measured(self) -> Rate:
        """That of the newest large items."""
        size_bytes = took = best = 0
        for size, served, was_free in reversed(self._large):
            size_bytes, took = size_bytes + size, took + served
            if was_free:
                best = max(best, size * 1_000_000_000 // served)
            if took >= SERVED_MAX:
                break
        mean = max(1, size_bytes * 1_000_000_000 // took)
        return Rate(mean, max(mean, best))


class Links:
    """What the links to all others carry; `goodput` by (role, slot), of those of which it is known. A link to a new
    life is another link."""

    def __init__(self) -> None:
        self.goodput: dict[tuple[str, int], Rate] = {}
        self._links: dict[Replica, tuple[int, Goodput]] = {}

    def carried(self, target: Member, size_bytes: int, begun: Instant, arrived: Instant) -> None:
        """A transfer to another host is known to have arrived."""
        replica, life = target.replica, target.incarnation
        known, link = self._links.get(replica, (0, Goodput()))
        if known > life:
            return
        if known < life:
            link = Goodput()
            self._links[replica] = life, link
            self.goodput.pop((replica.role, replica.slot), None)
        link.carried(size_bytes, begun, arrived)
        self._tell(replica, link)

    def look(self, under_way: Callable[[], Iterable[tuple[Member, int, Instant]]], now: Instant) -> None:
        """See what is `under_way` to whom, in bytes, since when: on every heartbeat, for on a link that has stalled
        nothing arrives."""
        for target, size_bytes, begun in under_way():
            life, link = self._links.get(target.replica, (0, None))
            if link is not None and life == target.incarnation:
                link.waited(size_bytes, begun, now)
                self._tell(target.replica, link)

    def _tell(self, replica: Replica, link: Goodput) -> None:
        if link.rate.mean:
            self.goodput[replica.role, replica.slot] = link.rate
