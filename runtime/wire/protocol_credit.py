"""Credit between two hosts: bytes on a connection, and items on Queue edges.

Decides how much may be under way and which reports of the other side are valid. Does not decide what is sent.

Theory of operation. Every counter is a total that only grows, so a report that arrives twice, late, or after a lost one
does no harm. Bytes are counted per connection, by both sides: the sender has at most a *window* under way that the
receiver has not reported as taken, or one message if it is larger, and the receiver checks that. A message costs its
own bytes or the claimed size of its items, whichever is more, and at least CHARGE_MIN: libzmq bounds messages, so a
window must be a number of messages, too. Items are counted per pair of members, over all connections: a consumer
reports how many it took in all.

Fast links need a large window; on a slow one it holds minutes of transfers that nothing newer can supersede. So a
sender that knows its link's goodput keeps to a *pace*: while more than that is under way, it begins no message, and
what waits can still be superseded. The newest message does not count: so the next one is on the link while the
acknowledgement of one that is larger than the pace is on its way back. The receiver is told the pace, and reports in
time for it.

The totals are reported at once where the sender may be waiting for them, and otherwise with the next report that goes
for another reason, at the latest the next heartbeat. The sender may be waiting where much was taken, or where the rest
of the window could be too small for the next message; a window that is smaller than a message is therefore reported
without delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.runtime.items.layout import RefusalError

CHARGE_MIN: Final = 16 << 10
"""Bytes; a message of one small item costs the two loops about as much as copying so many."""
EDGES_MAX: Final = 1 << 12
"""Edges between one pair of hosts; a program has tens."""
LARGE_BYTES: Final = 256 << 10
"""Size of a message or an item that is reported at once: its sender wants the memory back, and the report costs less
than a tenth of receiving it."""
PACE_BYTES_MIN: Final = 4 * CHARGE_MIN
"""A pace is a number of messages, too."""
WINDOW_BYTES_MAX: Final = 64 << 20
"""The most that is handed to ZeroMQ for a peer, even if it grants more; as a pace it bounds nothing."""
MESSAGE_BYTES_MAX: Final = 6 << 20
"""The most that an honest message costs: a chunk, a header, and the wrapping when they are relayed."""


def charge(message_bytes: int, claims_bytes: int) -> int:
    """The byte credit that a message costs."""
    return max(message_bytes, claims_bytes, CHARGE_MIN)


def claim(size_bytes: int, pieces_bytes: int) -> int:
    """The size that an item claims beyond its pieces."""
    return size_bytes - pieces_bytes if size_bytes > pieces_bytes else 0


class Window:
    """The sender's side of the byte credit of one connection."""

    __slots__ = ("_consumed", "_newest", "_sent", "size_bytes", "under_way")

    def __init__(self, size_bytes: int, held: int = 0) -> None:
        self.size_bytes, self.under_way = size_bytes, held
        self._sent, self._consumed, self._newest = held, 0, 0

    def may_go(self, cost: int, pace: int) -> bool:
        """Whether a message of this cost may go at this pace. Where nothing is under way, one of any size may."""
        is_granted = self.under_way + cost <= self.size_bytes and self.under_way - self._newest <= pace
        return not self.under_way or is_granted

    def spend(self, cost: int) -> None:
        """Count a sent message."""
        self._sent += cost
        self.under_way += cost
        self._newest = cost

    def acknowledge(self, total: int) -> None:
        """The other side has taken `total` so far; RefusalError for an impossible total."""
        if not self._consumed <= total <= self._sent:
            raise RefusalError("credit", f"{total} bytes taken, {self._consumed} before, {self._sent} were sent")
        self._consumed = total
        self.under_way = self._sent - total


class Intake:
    """The receiver's side of the byte credit of one connection; `held`, brought by earlier ones, counts.

    `pace` is the sender's, as last told.
    """

    __slots__ = ("_announced", "_consumed", "_received", "held", "pace", "size_bytes")

    def __init__(self, size_bytes: int, held: int = 0) -> None:
        self.size_bytes, self.held, self.pace = size_bytes, held, WINDOW_BYTES_MAX
        self._received = held
        self._consumed = self._announced = 0

    def receive(self, cost: int) -> None:
        """Count a message that arrived. RefusalError if there was no credit for it."""
        under_way = self._received - self._announced
        if under_way and under_way + cost > self.size_bytes:
            raise RefusalError("credit", f"{under_way} bytes are under way, {cost} more of {self.size_bytes}")
        self._received += cost

    def consume(self, cost: int) -> bool:
        """Count a message as taken; returns whether to report it to the sender now."""
        self._consumed += cost
        untold = self._consumed - self._announced
        is_short = self._consumed == self._received and untold + MESSAGE_BYTES_MAX > self.size_bytes
        return is_short or cost >= LARGE_BYTES or untold >= min(self.size_bytes, self.pace) // 4

    def announce(self) -> int:
        """The total to report to the sender."""
        self._announced = self._consumed
        return self._consumed


class Grants:
    """Credit in items, as totals per edge: they are idempotent, so nothing is lost with a connection.

    `totals` has all totals of this side, `news` those that are not reported to the peer yet.
    """

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}
        self.news: dict[int, int] = {}
        self._heard: dict[int, int] = {}

    def give(self, edge: int, count: int) -> None:
        """Count `count` items of an edge that were taken here."""
        self.totals[edge] = self.news[edge] = self.totals.get(edge, 0) + count

    def tell(self) -> dict[int, int]:
        """Return the news and clear them."""
        news, self.news = self.news, {}
        return news

    def receive(self, totals: Mapping[int, int]) -> list[tuple[int, int]]:
        """(edge, count) of what the peer has taken since its last report; RefusalError for a total that shrank."""
        more = [(edge, total - self._heard.get(edge, 0)) for edge, total in totals.items()]
        if any(count < 0 for _, count in more) or len(self._heard.keys() | totals.keys()) > EDGES_MAX:
            raise RefusalError("credit", "totals of item credit that shrink, or of too many edges")
        self._heard.update(totals)
        return [(edge, count) for edge, count in more if count]
