"""ZeroMQ sockets on an event loop, without `zmq.asyncio`.

Decides socket options and how a socket is read; knows nothing of what its messages mean.

Theory of operation. A ZeroMQ socket has one file descriptor, readable when libzmq has news. The loop watches it; we
then take messages until libzmq has none left, and check again after every send, because sending clears the descriptor's
signal, too. A turn takes a bounded number of messages and bytes and leaves the rest to the next one, so that no peer
monopolizes the loop.

We reconnect, not libzmq: a dialled socket has one connection in its life. When it ends, libzmq reports that nothing can
be sent any more, and the socket is replaced. A bound socket outlives its peers; sending to one that has gone fails. The
high-water marks lie above what credit allows. Reaching one means that our counting is wrong.

A socket may dial through a SOCKS5 proxy: the porter of the machine that it dials, or one that the environment names.
The way is dialled by `porter_relay`, because libzmq does not survive a proxy that turns it down.

With keys every socket is CURVE. A bound one looks up, for each message, the key that its connection has proved, and
drops those of a key that is not, or no longer, admitted, before anything reads them; a dialled one accepts one key
only.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zmq

from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.items.layout import CHUNK_BYTES, Bytes
from isthmus.runtime.system import forks
from isthmus.runtime.system.addresses import BACKLOG, PROBE_SECONDS, PROBED_AFTER_SECONDS, PROBES_MAX, UNHEARD_MS_MAX
from isthmus.runtime.system.shared_loop import Loop
from isthmus.runtime.wire import security_curve
from isthmus.runtime.wire.peers import Gone, Limits, OnMessage, Purpose, Reached, Socket
from isthmus.runtime.wire.protocol_credit import CHARGE_MIN, WINDOW_BYTES_MAX
from isthmus.runtime.wire.protocol_messages import FRAMES_MAX, TOKEN_BYTES
from isthmus.runtime.wire.protocol_session import AHEAD_MAX
from isthmus.runtime.wire.security_curve import Handshakes, Zap
from isthmus.runtime.wire.security_keys import Keyring
from isthmus.runtime.wire.segment_links import SegmentDesk

if TYPE_CHECKING:
    from isthmus.runtime.wire.porter_relay import PorterRelay

FRAME_BYTES_MAX: Final = CHUNK_BYTES + (64 << 10)
"""libzmq closes a connection that announces a larger frame, before it takes memory for it."""
MARKS: Final[dict[Purpose, int]] = {
    "data": 2 * (WINDOW_BYTES_MAX // CHARGE_MIN + 64),
    "control": 2 * (AHEAD_MAX + 256),
}
"""High-water marks, in messages: twice what credit allows, because libzmq learns only every half mark what was read.
For control, what may be ahead, and a minute of heartbeats; a silent peer is lost before."""
COPY_BYTES_MAX: Final = 128 << 10
"""Smaller frames are copied when sent. Measured: a copy of 128 KiB takes 3 us, handing memory over and back 4.5 us."""
TURN_MESSAGES_MAX: Final = 128
TURN_BYTES_MAX: Final = CHUNK_BYTES
"""Bytes read in one turn of the loop: at 4 GB/s and 5 us a message, about a millisecond."""
TURN_FRAMES_KEPT: Final = FRAMES_MAX + 4
"""Further frames of a message are dropped as they come; the session refuses a message with so many."""
SOCKETS_MIN: Final = 16
"""Sockets of a context, beside four for each peer: two to dial with, and a monitor for each."""
SOCKETS_MAX: Final = 65_535
"""libzmq makes no context for more (ZMQ_SOCKET_LIMIT); a peer that dials us needs none."""

ENDS: Final = int(zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED)
PROGRESS: Final = int(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
POLLIN: Final = int(zmq.POLLIN)
POLLOUT: Final = int(zmq.POLLOUT)
EVENTS: Final = int(zmq.EVENTS)
NOBLOCK: Final = int(zmq.NOBLOCK)
SNDMORE_NOBLOCK: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
"""As plain integers: an operation on pyzmq's enumerations costs more than asking libzmq."""

_send: Final = zmq.backend.Socket.send
"""Without pyzmq's Python layer, which serves kinds of sockets that we do not use."""


class ZmqSocket:
    """A socket of libzmq on the loop.

    Arguments:
        loop: where it is read.
        context: libzmq's.
        kind: as libzmq numbers it.
        mark: the high-water mark, in messages.
        on_message: called with the frames of each message.
        gone: called with the reason when it is lost.
        keys: this machine's and the admitted ones; None without.
        counts: gets the failed handshakes of a bound one, and messages of keys that were expelled.
        domain: that of the authentication.
        proxy: the address of a porter to dial through.
        relay: dials through that.
        reached: called with the progress of one that dials.
        is_far: the other end is reached through a bucket.
    """

    def __init__(
        self,
        loop: Loop,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        mark: int,
        on_message: OnMessage,
        gone: Gone | None = None,
        *,
        keys: Keyring | None,
        counts: Counter[str],
        domain: str = "",
        proxy: str = "",
        relay: PorterRelay | None = None,
        reached: Reached | None = None,
        is_far: bool = False,
    ) -> None:
        """`relay`: dials through `proxy`, where that is given."""
        self._loop = loop
        self._context = context
        self._on_message = on_message
        self._gone = gone
        self._keys = keys
        self._counts, self._domain = counts, domain
        self._proxy, self._relay, self._reached, self._mark = proxy, relay, reached, mark
        self._is_closed = self._is_scheduled = False
        self._is_far = is_far
        self._is_router = kind == zmq.ROUTER
        self._socket = context.socket(kind)
        self._events: Callable[[], Any] = partial(self._socket.getsockopt, EVENTS)
        self._send = partial(_send, self._socket)
        for option, value in _options(kind, mark, is_far=is_far).items():
            self._socket.setsockopt(option, value)
        self._monitor: zmq.Socket[bytes] | None = None
        self._report: list[bytes] | None = None
        """The last report of the monitor, where progress is looked for."""
        self._handshakes: Handshakes | None = None
        self._early: list[list[Any]] | None = None
        """Messages that wait until a proxy has led to the peer: up to the high-water mark, as in libzmq."""
        self._wayless = ""
        """Why there is no way through the proxy."""
        self._fds: list[int] = []
        self._listen(self._socket, self._read)

    def bind(self, endpoint: str) -> str:
        """Listen; returns the endpoint with its actual port. Raises OSError.

        With keys, ZAP authenticates each connection, under the name `domain`.
        """
        if self._keys is not None:
            security_curve.secure_server(self._socket, self._keys, self._domain, is_far=self._is_far)
            self._handshakes = Handshakes(self._loop, self._context, self._socket, self._count)
        try:
            actual = security_curve.bind(self._socket, endpoint)
        except zmq.ZMQError as error:
            raise OSError(str(error)) from error
        forks.note(actual)
        self._schedule()
        return actual

    def connect(self, endpoint: str, server_key: str) -> None:
        """Dial, with keys only the machine that has `server_key`; `gone` is called when that fails, too.

        Raises OSError for an invalid endpoint.
        """
        security_curve.secure_client(self._socket, self._keys, server_key)
        if self._relay is not None:
            self._early = []
            self._relay.dial(self._proxy, endpoint, self._on_way)
        else:
            self._dial(endpoint)

    def _on_way(self, where: str, reason: str) -> None:
        """The relay has a way at an endpoint, or none."""
        early, self._early = self._early, None
        if self._is_closed or early is None:
            return
        if not where:
            self._wayless = reason
            self._end()
            return
        try:
            self._dial(where)
        except OSError:
            self._end()
            return
        for frames in early:
            self.send(frames)

    def _dial(self, endpoint: str) -> None:
        events = ENDS | security_curve.FAILURES | (0 if self._reached is None else PROGRESS)
        self._monitor = security_curve.watched(self._socket, self._context, events)
        self._listen(self._monitor, self._watch)
        try:
            forks.note(endpoint)
            if self._relay is None:
                security_curve.allow_ipv6(self._socket, endpoint)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise OSError(str(error)) from error
        # libzmq signals only what comes after its events were read for the first time.
        self._schedule()
        self._watch()

    def send(self, frames: Sequence[Any]) -> bool:
        """Hand a message to libzmq; False if it has no peer. LocalProtocolError at the high-water mark."""
        if self._is_closed:
            return False
        if self._early is not None:
            if len(self._early) == self._mark:
                return False
            self._early.append(list(frames))
            return True
        *others, last = frames
        try:
            for frame in others:
                self._send(frame, SNDMORE_NOBLOCK, len(frame) < COPY_BYTES_MAX)
            self._send(last, NOBLOCK, len(last) < COPY_BYTES_MAX)
        except zmq.Again as error:
            if self._is_router:
                raise LocalProtocolError("a high-water mark was reached, which credit should prevent") from error
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._look()  # A failed send may have cleared another peer's signal, too.
            return False
        self._look()
        return True

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._deafen()
            if self._handshakes is not None:
                self._handshakes.close()
            if self._monitor is not None:
                self._socket.disable_monitor()
                self._monitor.close(linger=0)
            self._socket.close(linger=0)

    def _read(self) -> None:
        """Take messages, up to the bounds of a turn; called when there probably are some."""
        self._is_scheduled = False
        messages = size_bytes = 0
        is_over = self._is_closed
        try:
            while not is_over and messages < TURN_MESSAGES_MAX and size_bytes < TURN_BYTES_MAX:
                received = self._receive()
                if received is not None:
                    address, frames, user_id = received
                    messages += 1
                    size_bytes += sum(map(len, frames))
                    if self._keys is None or not self._is_router:
                        self._on_message(address, frames, None)
                    else:
                        self._judge(self._keys, address, frames, user_id)
                is_over = self._is_closed or not self._has_message()
        finally:
            if not is_over:
                self._look()

    def _judge(self, keys: Keyring, address: bytes, frames: list[Bytes], user_id: str | None) -> None:
        """Pass a message on, unless its key is no longer admitted."""
        machine = keys.name_of(user_id)
        if machine is None:
            self._count("expelled")
        else:
            self._on_message(address, frames, machine)

    def _count(self, reason: str) -> None:
        self._counts[f"refused_{reason}"] += 1

    def _receive(self) -> tuple[bytes, list[Bytes], str | None] | None:
        """(address, frames, user id) of the next message; None if there is none."""
        try:
            address = self._socket.recv(NOBLOCK) if self._is_router else b""
            frame = self._socket.recv(NOBLOCK, False)
        except zmq.Again:
            return None
        user_id = security_curve.user_id(frame) if self._keys is not None and self._is_router else None
        frames: list[Bytes] = [frame.buffer]
        while frame.more:
            frame = self._socket.recv(NOBLOCK, False)
            if len(frames) < TURN_FRAMES_KEPT:
                frames.append(frame.buffer)
        return address, frames, user_id

    def _look(self) -> None:
        """Schedule a read for the next turn if libzmq has a message, unless one is scheduled already."""
        if not self._is_closed and not self._is_scheduled and self._has_message():
            self._schedule()

    def _has_message(self) -> bool:
        """Query libzmq: whether there is a message; where there is none, whether the connection has ended."""
        state = self._events()
        if state & POLLIN:
            return True
        if not self._is_router and not state & POLLOUT:
            self._end()
        return False

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._read)

    def _watch(self) -> None:
        """End on any report of the monitor that is none of progress."""
        assert self._monitor is not None
        while not self._is_closed and int(self._monitor.get(EVENTS)) & POLLIN:
            progress = None
            if self._reached is not None:
                self._report = self._monitor.recv_multipart(NOBLOCK)
                progress = security_curve.progress(self._report)
            if progress is None or self._reached is None:
                self._end()
                return
            self._reached(progress)

    def _end(self) -> None:
        """The connection has ended: report it once, from the loop."""
        gone, self._gone = self._gone, None
        self._deafen()
        if gone is not None and not self._is_closed:
            self._loop.call_soon(gone, self._reason())

    def _reason(self) -> str:
        """Why a dialled connection ended, as far as the relay or the monitor reports."""
        if self._wayless:
            return self._wayless
        reason = None if self._report is None else security_curve.failure(self._report)
        monitor = self._monitor
        while monitor is not None and reason is None and int(monitor.get(EVENTS)) & POLLIN:
            reason = security_curve.failure(monitor.recv_multipart(NOBLOCK))
        if reason is None or (reason == security_curve.CUT and self._keys is None):
            return "disconnected"
        return f"no connection: {security_curve.WORDS[reason]}"

    def _listen(self, socket: zmq.Socket[bytes], heard: Callable[[], None]) -> None:
        fd = socket.getsockopt(zmq.FD)
        assert isinstance(fd, int)
        self._fds.append(fd)
        self._loop.add_reader(fd, heard)

    def _deafen(self) -> None:
        while self._fds:
            self._loop.remove_reader(self._fds.pop())


class ZmqSockets:
    """The sockets of one host, on one libzmq context, which has one thread; with `keys` all are encrypted.

    With `proxy`, the ADDRESS:PORT of a SOCKS5 proxy, they dial through it, and through no porter. `is_far`: some peers
    are reached through a bucket, and show their keys late. `desk`: where hosts of this machine share memory.
    `peers_max`: peers that are dialled at once.
    """

    def __init__(
        self,
        loop: Loop,
        keys: Keyring | None = None,
        proxy: str = "",
        *,
        is_far: bool = False,
        desk: SegmentDesk | None = None,
        peers_max: int = Limits().peers_max,
    ) -> None:
        self.keys, self._proxy, self._is_far, self.desk = keys, proxy, is_far, desk
        self._loop = loop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, min(4 * peers_max + SOCKETS_MIN, SOCKETS_MAX))
        self._zap: Zap | None = None
        self._relay: PorterRelay | None = None
        """From the first socket that dials through a proxy on."""

    def dealer(
        self, purpose: Purpose, on_message: OnMessage, gone: Gone, *, porter: str = "", reached: Reached | None = None
    ) -> Socket:
        proxy = self._proxy or porter.removeprefix("tcp://")
        if proxy and self._relay is None:
            from isthmus.runtime.wire.porter_relay import PorterRelay  # Where a way leads through a porter or a proxy.

            self._relay = PorterRelay(self._loop)
        return ZmqSocket(
            self._loop,
            self._context,
            zmq.DEALER,
            MARKS[purpose],
            on_message,
            gone,
            keys=self.keys,
            counts=Counter[str](),
            proxy=proxy,
            relay=self._relay if proxy else None,
            reached=reached,
            is_far=self._is_far,
        )

    def router(self, purpose: Purpose, on_message: OnMessage, counts: Counter[str]) -> Socket:
        if self._zap is None and self.keys is not None:
            self._zap = Zap(self._loop, self._context, self.keys)
        loop, context, mark = self._loop, self._context, MARKS[purpose]
        return ZmqSocket(
            loop,
            context,
            zmq.ROUTER,
            mark,
            on_message,
            keys=self.keys,
            counts=counts,
            domain=purpose,
            is_far=self._is_far,
        )

    def token(self) -> bytes:
        """Unguessable random bytes."""
        return secrets.token_bytes(TOKEN_BYTES)

    def close(self) -> None:
        """Destroy the context, and every socket that is left."""
        if self._zap is not None:
            self._zap.close()
        if self.desk is not None:
            self.desk.close()
        self._context.destroy(linger=0)
        if self._relay is not None:
            self._relay.close()


def _options(kind: int, mark: int, *, is_far: bool) -> dict[int, int]:
    unheard_ms = security_curve.handshake_ms(is_far=True) if is_far else UNHEARD_MS_MAX
    options: dict[int, int] = {
        zmq.LINGER: 0,
        zmq.SNDHWM: mark,
        zmq.RCVHWM: mark,
        zmq.MAXMSGSIZE: FRAME_BYTES_MAX,
        zmq.RECONNECT_IVL: -1,
        zmq.HANDSHAKE_IVL: unheard_ms,
        zmq.TCP_MAXRT: unheard_ms,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: PROBED_AFTER_SECONDS,
        zmq.TCP_KEEPALIVE_INTVL: PROBE_SECONDS,
        zmq.TCP_KEEPALIVE_CNT: PROBES_MAX,
    }
    if kind == zmq.ROUTER:
        options[zmq.ROUTER_MANDATORY] = 1
        options[zmq.BACKLOG] = BACKLOG
    return options
