"""A channel's state of one peer: items for it and from it, the present connection, and the route to the next one.

Decides how long to wait before the next attempt; everything else is the channel's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.ids import Member
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.protocol.credit import Intake
from isthmus.runtime.protocol.session import Pair, Session
from isthmus.runtime.wire.links import Link

Watch: TypeAlias = Callable[[int, Member, Member, int, Instant, Instant], None]
"""Called with (edge, source, target, size in bytes, begun, arrived) for every transfer."""
Route: TypeAlias = Endpoints | Member | None
"""The route to a peer: its endpoints, the peer that relays, or None for one that dials us."""

PEERS_MAX: Final = 1024


class Limits(NamedTuple):
    """Bounds and times of a channel.

    - `window_bytes`: accepted from one peer beyond what was reported as taken; eight chunks, 50 ms of 5 Gbit/s.
      `relay_window_bytes` the same for a relayed peer: two chunks, so that one goes while the other one is passed on.
    - `peers_max`: members at once; each may dial two sockets, and libzmq keeps a table of all.
    - `heartbeat`: the interval at which hosts report to daemons, too. `silence_max`: twenty of them; by then a member
      that is gone was forgotten, so this only ends connections that broke silently.
    - `handshake_max`: what TCP may need to establish a slow connection twice.
    - `retry_min`, `retry_max`: a restarted process is back within a second or so; a refused attempt costs both sides
      about 0.1 ms.
    """

    window_bytes: int = 32 << 20
    relay_window_bytes: int = 8 << 20
    peers_max: int = PEERS_MAX
    heartbeat: Duration = milliseconds(250)
    silence_max: Duration = seconds(5)
    handshake_max: Duration = seconds(5)
    retry_min: Duration = milliseconds(50)
    retry_max: Duration = seconds(1)


class Held(msgspec.Struct, frozen=True):
    """Parcels of one message that wait for the receiver, and the credit that all of them cost."""

    session: Session
    parcels: deque[tuple[int, Parcel]]
    cost: int


class Peer:
    """One other member, over all connections with it."""

    __slots__ = (
        "accepted", "attempts", "began_at", "cancel_retry", "dialled", "early", "heard_at", "held", "is_expected",
        "is_up", "link", "member", "pair", "reason", "route", "session", "word_at",
    )  # fmt: skip

    def __init__(self, member: Member) -> None:
        self.member = member
        self.pair = Pair()
        self.route: Route = None
        self.session: Session | None = None
        self.link: Link | None = None
        self.held: deque[Held] = deque()
        self.is_expected = self.is_up = False
        self.reason = ""
        self.began_at = self.heard_at = Instant(0)
        self.word_at: Instant | None = None
        self.early: tuple[int, Sequence[Bytes]] | None = None
        self.accepted = self.dialled = self.attempts = 0
        self.cancel_retry: Callable[[], None] | None = None

    def intake(self, limits: Limits) -> Intake:
        """The account for a new connection: items of earlier ones that have not been taken count in it."""
        size_bytes = limits.relay_window_bytes if isinstance(self.route, Member) else limits.window_bytes
        return Intake(size_bytes, sum(held.cost for held in self.held))

    def delay(self, limits: Limits) -> Duration:
        """The back-off before the next attempt; doubles until one succeeds."""
        delay = min(limits.retry_min << min(self.attempts, 20), limits.retry_max)
        self.attempts += 1
        return Duration(delay)

    def is_idle(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        if self.is_expected or self.session is not None or self.held:
            return False
        pair = self.pair
        return not (pair.outbound.line or pair.outbound.items_begun or pair.inbound.delivered or pair.grants.given)
