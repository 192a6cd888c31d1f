"""A channel's state of one peer, the kinds of links to it, and the socket interface under them.

A link is a pair of sockets of our own, an address on sockets that we have bound, or a path through another peer; a
channel uses it without knowing its kind. `zmq_sockets` implement the socket interface on a network, `sim.network` in a
simulated world. It decides how long to wait before the next attempt; everything else is the channel's business.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from zlib import crc32

import msgspec

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.ids import PEERS_MAX, Member
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.wire.protocol_credit import Intake
from isthmus.runtime.wire.protocol_messages import RELAY
from isthmus.runtime.wire.protocol_session import Pair, Session
from isthmus.runtime.wire.security_keys import Keyring
from isthmus.runtime.wire.segment_links import SegmentDesk

Purpose: TypeAlias = Literal["control", "data"]

OnMessage: TypeAlias = Callable[[bytes, list[Bytes], str | None], None]
"""Called with the address that a bound socket gave the sender (empty on a dialled one), the frames, and the machine
whose key the sender has proved (None without keys, and on a dialled one)."""

Gone: TypeAlias = Callable[[str], None]
"""Called once with the reason, when the connection of a socket that has dialled has ended."""


Reached: TypeAlias = Callable[[Literal["connected", "greeted"]], None]
"""Called when a socket that dials is connected, and when both ends have shown their keys."""


class Socket(Protocol):
    """One socket."""

    def bind(self, endpoint: str) -> str:
        """Listen; returns the endpoint with its actual port. Raises OSError."""

    def connect(self, endpoint: str, server_key: str) -> None:
        """Dial; with keys only the machine that has `server_key`. Raises OSError for an invalid endpoint."""

    def send(self, frames: Sequence[Any]) -> bool:
        """Send a message, on a bound socket with the address first; False if it has no peer."""

    def close(self) -> None:
        """Close at once, and drop everything."""


class Sockets(Protocol):
    """Makes the sockets of one host."""

    @property
    def keys(self) -> Keyring | None:
        """The keys that encrypt the sockets; None if they are not encrypted."""

    @property
    def desk(self) -> SegmentDesk | None:
        """Where hosts of this machine share memory; None if they do not."""

    def dealer(
        self, purpose: Purpose, on_message: OnMessage, gone: Gone, *, porter: str = "", reached: Reached | None = None
    ) -> Socket:
        """A socket that dials, through `porter` if one is given."""

    def router(self, purpose: Purpose, on_message: OnMessage, counts: Counter[str]) -> Socket:
        """A socket to bind; `counts` gets the reasons of refusals."""

    def token(self) -> bytes:
        """Bytes that prove that a data connection belongs to a control connection."""

    def close(self) -> None:
        """Release what the sockets share; all are closed."""


class SessionLink(Protocol):
    """The connection that carries the messages of one session; False means that it is broken."""

    def send_control(self, message: bytes) -> bool:
        """Send a control message."""

    def send_data(self, frames: Sequence[Any]) -> bool:
        """Send a data message."""

    def close(self) -> None:
        """Give up the link."""


class DialledLink:
    """A control and a data socket that were made for one connection."""

    def __init__(self, control: Socket, data: Socket) -> None:
        self._control, self._data = control, data

    def send_control(self, message: bytes) -> bool:
        return self._control.send([message])

    def send_data(self, frames: Sequence[Any]) -> bool:
        return self._data.send(frames)

    def close(self) -> None:
        """Close both sockets."""
        self._control.close()
        self._data.close()


class AcceptedLink:
    """Two addresses on the bound sockets: `control`, and `data` once the peer has attached it.

    `on_close` is called once. Both are of `machine`, where there are keys. `hello_bytes` has the first message on the
    wire.
    """

    def __init__(
        self,
        sockets: tuple[Socket, Socket],
        control: bytes,
        on_close: Callable[[AcceptedLink], None],
        machine: str | None = None,
        hello_bytes: int = 0,
    ) -> None:
        self.control = control
        self.hello_bytes = hello_bytes
        self.data: bytes | None = None
        self.machine = machine
        self._sockets = sockets
        self._on_close = on_close

    def send_control(self, message: bytes) -> bool:
        return self._sockets[0].send([self.control, message])

    def send_data(self, frames: Sequence[Any]) -> bool:
        assert self.data is not None
        return self._sockets[1].send([self.data, *frames])

    def close(self) -> None:
        """Stop accepting messages from these addresses."""
        self._on_close(self)


class RelayedLink:
    """A link through the session with another peer; `wake` sends that session's pending messages."""

    def __init__(self, through: Session, own: Member, peer: Member, wake: Callable[[], None]) -> None:
        self._through, self._own, self._peer, self._wake = through, own, peer, wake

    def send_control(self, message: bytes) -> bool:
        is_taken = self._through.relay(RELAY, self._own, self._peer, message)
        self._wake()
        return is_taken

    def send_data(self, frames: Sequence[Any]) -> bool:
        is_taken = self._through.forward(self._own, self._peer, frames)
        self._wake()
        return is_taken

    def close(self) -> None:
        """There is nothing to close."""


Route: TypeAlias = Endpoints | Member | None
"""The route to a peer: its endpoints, the peer that relays, or None for one that dials us."""

LIVES_OF_PEER: Final = 2
"""Of each replica that a host meets, the life that its roster names, and the next one, which may dial before."""


class Limits(NamedTuple):
    """Bounds and times of a channel."""

    window_bytes: int = 32 << 20
    """Accepted from one peer beyond what was reported as taken; eight chunks, 50 ms of 5 Gbit/s."""
    relay_window_bytes: int = 8 << 20
    """The same for a relayed peer: two chunks, so that one goes while the other one is passed on."""
    peers_max: int = LIVES_OF_PEER * 512
    """Members at once, a bound of what strangers may cost; each may dial two sockets, and libzmq keeps a table of all.
    A host of a run has that of the replicas which it meets (`for_peers`)."""
    heartbeat: Duration = milliseconds(250)
    """The interval at which hosts report to daemons, too."""
    silence_max: Duration = seconds(5)
    """Twenty heartbeats; by then a member that is gone was forgotten, so this only ends connections that broke
    silently."""
    handshake_max: Duration = seconds(5)
    """What TCP may need to establish a slow connection twice."""
    direct_max: Duration = milliseconds(500)
    """For a TCP connection, before a porter is asked: three round trips around the world."""
    retry_min: Duration = milliseconds(50)
    """A restarted process is back within a second or so."""
    retry_max: Duration = seconds(1)
    """A refused attempt costs both sides about 0.1 ms."""

    def for_peers(self, count: int) -> Limits:
        """The same for a host that meets so many replicas at most."""
        return self._replace(peers_max=LIVES_OF_PEER * min(max(count, 1), PEERS_MAX))


FAR_LIMITS: Final = Limits(
    heartbeat=seconds(1), silence_max=seconds(180), handshake_max=seconds(120), retry_max=seconds(2)
)
"""Where some peers are reached through a bucket: what is said takes seconds, and the store may be away for minutes, in
which connections lose nothing. A connection begins with five round trips."""


class Detour:
    """Which way a peer is dialled whose machine has a porter: straight, or through it.

    Straight first, unless the peer is inside. An attempt that is not connected within `direct_max`, or ends before its
    session is up, is followed by one the other way, so that one of both is found whichever is closed. While a session
    is relayed for the first time, `probe` dials the peer straight for as long as TCP may need; where that reaches it,
    the session moves over. Where that fails, it is not tried again: some walls let handshakes pass and nothing else.
    """

    __slots__ = ("cancel", "is_inside", "is_relayed", "is_tried", "probe")

    def __init__(self, *, is_inside: bool) -> None:
        self.is_inside = self.is_relayed = is_inside
        self.is_tried = is_inside
        self.cancel: Callable[[], None] = lambda: None
        self.probe: Probe | None = None

    def turn(self, *, was_up: bool) -> None:
        """An attempt, or a session, has ended: choose the way of the next attempt."""
        self.stop()
        if not self.is_inside:
            self.is_relayed = not self.is_relayed and not was_up

    def stop(self) -> None:
        """Stop looking after the present attempt."""
        self.cancel()
        self.cancel = lambda: None
        if self.probe is not None:
            self.probe.close()
            self.probe = None


class Probe:
    """Two sockets that dial a peer and send nothing; `reached` is called once when both are greeted."""

    def __init__(self, sockets: Sockets, endpoints: Endpoints, reached: Callable[[], None]) -> None:
        self._missing: set[Purpose] = {"control", "data"}
        self._reached = reached
        self._made = [self._dial(sockets, purpose, endpoints) for purpose in ("control", "data")]

    def close(self) -> None:
        """Hang up."""
        self._missing.clear()
        for each in self._made:
            each.close()

    def _dial(self, sockets: Sockets, purpose: Purpose, endpoints: Endpoints) -> Socket:
        def on_progress(progress: str) -> None:
            if progress == "greeted" and purpose in self._missing:
                self._missing.remove(purpose)
                if not self._missing:
                    self._reached()

        made = sockets.dealer(purpose, lambda *message: None, lambda reason: None, reached=on_progress)
        made.connect(endpoints.control if purpose == "control" else endpoints.data, endpoints.key)
        return made


class HeldMessage(msgspec.Struct, frozen=True):
    """Parcels of one message that wait for the receiver, and the credit that all of them cost."""

    session: Session
    parcels: deque[tuple[int, Parcel]]
    cost: int


class Peer:
    """One other member, over all connections with it."""

    __slots__ = (
        "accepted", "attempts", "began_at", "cancel_retry", "detour", "dialled", "early", "heard_at", "held",
        "is_expected", "is_sharing", "is_up", "link", "member", "pair", "reason", "route", "session", "word_at",
    )  # fmt: skip

    def __init__(self, member: Member) -> None:
        self.member = member
        self.pair = Pair()
        self.route: Route = None
        self.detour: Detour | None = None
        self.session: Session | None = None
        self.link: SessionLink | None = None
        self.held: deque[HeldMessage] = deque()
        self.is_expected = self.is_up = False
        self.is_sharing = True
        """Whether the memory of either may be read by the other."""
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

    def delay(self, limits: Limits, own: Member, *, was_silent: bool = False) -> Duration:
        """The back-off of `own` before the next attempt; doubles until one succeeds.

        From half of it to the whole, by the names of both and the attempt: those whose connections with one host ended
        together do not dial it together. After a silence it is the longest at once: a link that was away for all of a
        host's peers has ended their sessions at one moment, and each attempt over it lasts as long for all of them, so
        that back-offs alone take them apart.
        """
        delay = limits.retry_max if was_silent else min(limits.retry_min << min(self.attempts, 20), limits.retry_max)
        share = crc32(f"{own} {self.member} {self.attempts}".encode()) / 2**32
        self.attempts += 1
        return Duration(round(delay * (1 + share) / 2))

    def is_idle(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        if self.is_expected or self.session is not None or self.held:
            return False
        pair = self.pair
        return not (pair.outbound.line or pair.outbound.items_begun or pair.inbound.delivered or pair.grants.totals)
