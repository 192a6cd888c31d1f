"""Goodput of a link, learned from the transfers that it has carried; there are no probes.

Decides the estimate of a link's rate, and from it how much is kept under way. Reads no clock: a channel's `watch`
reports when each transfer began, and when it had arrived, by the clock of its sender.

Theory of operation. Items for one peer arrive one after another, so a transfer that began while another was under way
has had the link from the arrival of that one. One that found the link idle includes a round trip: the item's way there,
and that of its acknowledgement back. Small items take just that, and the least of the last SMALL_COUNT is subtracted.
What is left is the time that the bytes took. Goodput is the bytes of the last large items divided by their time:
LARGE_COUNT of them, so that one that waited for a busy process matters little, but no more than the newest that took
SERVED_MAX, so that a link that has become much slower is noticed with its first or second transfer; and no more than a
transfer that is under way can still reach, which shows it earlier. Other delays (a process that waits for a core) are
included, too, and dominate for small items: so the best of those that found the link idle is reported beside, as the
upper bound.

Transfers under way cannot be superseded: on a link that turns slow, all of them go before anything newer. So each link
gets a *pace*, the bytes that it carries at best in twice the time until its sender hears of an arrival. With more under
way it would be no faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member, Replica

LARGE_BYTES: Final = 1 << 10
"""From this size on an item measures the rate; smaller ones, such as reports of learners, measure the round trip."""
SMALL_COUNT: Final = 32
LARGE_COUNT: Final = 8
LARGE_COUNT_MIN: Final = 3
"""Large items before a rate is reported: the first ones may wait for processes that are still starting."""
SERVED_MAX: Final = 500_000_000
"""Nanoseconds."""
HEARD_WITHIN: Final = 300_000_000
"""Nanoseconds until an arrival is known, beside the round trip: a heartbeat, and a turn of two loops."""
ANSWER: Final = 50_000_000
"""Nanoseconds until a peer acknowledges, beside the round trip: some turns of two loops on a busy machine."""
SERVED_MIN: Final = 10_000
"""Nanoseconds that a large item takes at least: clocks and loops are no finer."""


class Rate(NamedTuple):
    """Bytes a second, 0 if unknown: `mean` of the last large items together, and the `best` of them."""

    mean: int = 0
    best: int = 0


class Goodput:
    """The estimated goodput of one direction of the link to one peer."""

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
        """Round-trip time of an item without size; 0 until it is known."""
        return Duration(min(self._small, default=0))

    @property
    def pace(self) -> int:
        """Bytes under way that keep the link busy; 0 until that is known."""
        return self.rate.best * (2 * self.way + ANSWER) // 1_000_000_000

    def carried(self, size_bytes: int, begun: Instant, arrived: Instant) -> None:
        """A transfer that began at `begun` has `arrived`; transfers to one peer are reported in order."""
        if arrived < self._arrived:  # A clock that leapt.
            return
        if arrived == self._arrived and self._noted is not None:  # It came in one message with the item before.
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
            self.rate = Rate(*(min(bound or most, most) for bound in self.rate))

    def _note(self, size_bytes: int, served: int) -> deque[int] | deque[tuple[int, int, bool]] | None:
        """Store a sample of `size_bytes` in `served` nanoseconds; returns the samples it joined, None if unusable."""
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
        """The rate of the newest large items."""
        size_bytes = took = best = 0
        for size, served, was_free in reversed(self._large):
            size_bytes, took = size_bytes + size, took + served
            if was_free:
                best = max(best, size * 1_000_000_000 // served)
            if took >= SERVED_MAX:
                break
        mean = max(1, size_bytes * 1_000_000_000 // took)
        return Rate(mean, max(mean, best))


class PeerLinks:
    """Links to all others; `goodput` and `round_trips` by (role, slot), where known, the latter of items without size.
    A link to a new life is a new link.

    `keep(target, size_bytes)` sets the pace of one.
    """

    def __init__(self, keep: Callable[[Member, int], None] = lambda target, size_bytes: None) -> None:
        self._keep = keep
        self.goodput: dict[tuple[str, int], Rate] = {}
        self.round_trips: dict[tuple[str, int], Duration] = {}
        self._links: dict[Replica, tuple[int, Goodput]] = {}

    def carried(self, target: Member, size_bytes: int, begun: Instant, arrived: Instant) -> None:
        """A transfer to another host is known to have arrived."""
        replica, life = target.replica, target.incarnation
        incarnation, link = self._links.get(replica, (0, Goodput()))
        if incarnation > life:
            return
        if incarnation < life:
            link = Goodput()
            self._links[replica] = life, link
            self.goodput.pop((replica.role, replica.slot), None)
            self.round_trips.pop((replica.role, replica.slot), None)
        link.carried(size_bytes, begun, arrived)
        self._tell(target, link)

    def look(self, under_way: Callable[[], Iterable[tuple[Member, int, Instant]]], now: Instant) -> None:
        """Include transfers that are `under_way`: on every heartbeat, because nothing arrives on a stalled link."""
        for target, size_bytes, begun in under_way():
            life, link = self._links.get(target.replica, (0, None))
            if link is not None and life == target.incarnation:
                link.waited(size_bytes, begun, now)
                self._tell(target, link)

    def _tell(self, target: Member, link: Goodput) -> None:
        if link.way:
            self.round_trips[target.replica.role, target.replica.slot] = link.way
        if link.rate.mean:
            self.goodput[target.replica.role, target.replica.slot] = link.rate
            self._keep(target, link.pace)
