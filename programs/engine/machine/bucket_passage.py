"""One passage through a bucket: connections of bytes, carried both ways by objects that are written once.

It decides the names of the objects, what is in one, which object is read next, and how many are under way; bytes in,
events out. It opens no sockets, has no clock and no store: its two ends drive it. `bucket_keys` seals.

Theory of operation. A passage has an island's end and the home's end, and a random identity, so that no name is ever
used twice. Each end writes its objects under the numbers 0, 1, 2..., and reads those of the other end in that order;
nothing is listed to find the next one. An object is a header and frames. The header repeats passage, direction and
number, so that an object that was copied, or put under another name, is refused, and tells how many objects of the
other end were read: a writer stays at most AHEAD_MAX objects ahead, which bounds what lies in the bucket while the
other end is away. A frame opens a connection to a target, carries some bytes of one, or closes it; only the island's
end opens. Whatever is not exactly this ends the passage (`PassageError`), and with it its connections: the island
begins another one, and what was under way is sent again by the sessions above, as after any lost connection.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple, Protocol, TypeAlias, final

import msgspec

from isthmus.runtime.errors import LocalProtocolError

OBJECT_BYTES_MAX: Final = 4 << 20
"""Of frames in one object: as large as the pieces of items, so that few objects carry a fragment, and one that is under
way holds up the heartbeats behind it by a fraction of a second on 100 Mbit/s."""
AHEAD_MAX: Final = 32
"""Objects that the other end has not read: 128 MiB, four times the window of a session."""
TARGET_BYTES_MAX: Final = 300
"""HOST:PORT, a name of at most 253 characters."""
CONNECTIONS_MAX: Final = 256
"""At once in a passage: two for each pair of hosts, two for daemons, and those that are tried."""
IDENTITY_BYTES: Final = 16
HELLO: Final = "hello-"
_MAGIC: Final = b"isb1"
_HEADER: Final = struct.Struct("<4sB16sQQ")
_FRAME: Final = struct.Struct("<BII")
_OPEN, _DATA, _CLOSE, _END = range(1, 5)
SEAL_BYTES_MAX: Final = 64
SEALED_BYTES_MAX: Final = _HEADER.size + OBJECT_BYTES_MAX + TARGET_BYTES_MAX + _FRAME.size + SEAL_BYTES_MAX
"""An object with its seal."""


class Seal(Protocol):
    """Makes objects that only the other end can read and nobody else can have made."""

    def seal(self, plain: bytes) -> bytes:
        """The sealed object, at most SEAL_BYTES_MAX longer."""

    def open(self, sealed: bytes) -> bytes:
        """What was sealed; ValueError if the other end did not seal it."""


class PassageError(Exception):
    """An object that the other end cannot have written so, or a passage that it has ended: it cannot go on."""


class Opened(NamedTuple):
    """The island has opened a connection to `target`: HOST:PORT, or '' for the daemon."""

    connection: int
    target: str


class Received(NamedTuple):
    """Bytes of a connection."""

    connection: int
    data: bytes


class PassageConnectionClosed(NamedTuple):
    """The other end has closed a connection."""

    connection: int


class PassageEnded(NamedTuple):
    """The other end has ended the passage in order."""


PassageEvent: TypeAlias = Opened | Received | PassageConnectionClosed | PassageEnded


def object_name(identity: bytes, number: int, *, by_home: bool) -> str:
    """The name of one object of a passage."""
    return f"{identity.hex()}-{'down' if by_home else 'up'}-{number:010}"


def identity_of(name: str) -> bytes | None:
    """The passage that an object, or a hello, is of; None for a name of another form."""
    text = name.removeprefix(HELLO).partition("-")[0]
    try:
        identity = bytes.fromhex(text)
    except ValueError:
        return None
    return identity if len(identity) == IDENTITY_BYTES and text == identity.hex() else None


class UnsentFrames(msgspec.Struct):
    """Frames that wait to be written, in order, and their bytes."""

    frames: deque[tuple[int, int, bytes]] = msgspec.field(default_factory=deque)
    size_bytes: int = 0


@final
class BucketPassage:
    """One end of the passage `identity`. `is_home`: the home's end."""

    def __init__(self, identity: bytes, seal: Seal, *, is_home: bool) -> None:
        self.identity, self.is_home = identity, is_home
        self.connections: set[int] = set()
        """Those that are open."""
        self.written = self.taken = 0
        """Objects that this end has written, and has read."""
        self._seal = seal
        self._opened = self._read_there = self._told = 0
        self._waiting = UnsentFrames()
        self._has_ended = False

    # -- out -----------------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._waiting.size_bytes

    @property
    def has_news(self) -> bool:
        """Whether an object would say something: frames wait and may be written, or the other end has to learn what was
        read before it can write much more. Without the second, two ends that are ahead would wait for each other."""
        return (bool(self._waiting.frames) and self.may_write) or self.taken - self._told >= AHEAD_MAX // 4

    @property
    def is_full(self) -> bool:
        """Whether what waits fills an object that may be written."""
        return self._waiting.size_bytes >= OBJECT_BYTES_MAX and self.may_write

    @property
    def may_write(self) -> bool:
        """Whether the other end has read enough for another object."""
        return self.written - self._read_there < AHEAD_MAX

    def open(self, target: str) -> int:
        """Open a connection to HOST:PORT, or '' for the daemon; returns its number. LocalProtocolError for one too
        many."""
        if self.is_home or len(self.connections) >= CONNECTIONS_MAX:
            raise LocalProtocolError(f"this end cannot open a connection beside {len(self.connections)}")
        self._opened += 1
        self.connections.add(self._opened)
        self._put(_OPEN, self._opened, target.encode())
        return self._opened

    def send(self, connection: int, data: bytes) -> None:
        """Send bytes on a connection; dropped if it was closed."""
        if connection in self.connections and data:
            self._put(_DATA, connection, data)

    def close(self, connection: int) -> None:
        """Close a connection, after what was sent on it."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._put(_CLOSE, connection, b"")

    def end(self) -> None:
        """End the passage, after all that waits."""
        self._put(_END, 0, b"")

    def abort(self) -> None:
        """End the passage; the next object says so, and what waits is dropped."""
        self._waiting = UnsentFrames()
        self.end()

    def pop(self) -> tuple[str, bytes]:
        """The name and the contents of the next object, with what fits of what waits and may be written."""
        pieces, size = [b""], 0
        waiting, may_write = self._waiting, self.may_write
        while may_write and waiting.frames and size < OBJECT_BYTES_MAX:
            kind, connection, data = waiting.frames.popleft()
            room = OBJECT_BYTES_MAX - size
            if kind == _DATA and len(data) > room:
                waiting.frames.appendleft((kind, connection, data[room:]))
                data = data[:room]
            pieces += [_FRAME.pack(kind, connection, len(data)), data]
            size += len(data) + _FRAME.size
            waiting.size_bytes -= len(data)
        number, self._told = self.written, self.taken
        self.written += 1
        pieces[0] = _HEADER.pack(_MAGIC, self.is_home, self.identity, number, self.taken)
        return object_name(self.identity, number, by_home=self.is_home), self._seal.seal(b"".join(pieces))

    def _put(self, kind: int, connection: int, data: bytes) -> None:
        self._waiting.frames.append((kind, connection, data))
        self._waiting.size_bytes += len(data)

    # -- in ------------------------------------------------------------------------------------------------------------

    def wanted(self, ahead: int = 0) -> str:
        """The name of the object that is read next, or of one that follows it."""
        return object_name(self.identity, self.taken + ahead, by_home=not self.is_home)

    def names_left(self) -> list[str]:
        """The names of all objects that may be left in the bucket when the passage is over."""
        own = range(max(0, self.written - 2 * AHEAD_MAX), self.written)
        others = range(self.taken, self.taken + 2 * AHEAD_MAX)
        return [
            *(object_name(self.identity, number, by_home=self.is_home) for number in own),
            *(object_name(self.identity, number, by_home=not self.is_home) for number in others),
        ]

    def accept(self, sealed: bytes) -> list[PassageEvent]:
        """The events of the object that is wanted; PassageError for another one."""
        if self._has_ended:
            raise PassageError("it has ended")
        try:
            plain = memoryview(self._seal.open(sealed))
            magic, by_home, identity, number, read = _HEADER.unpack_from(plain)
        except (ValueError, struct.error):
            raise PassageError(f"object {self.taken} was not sealed by the other end") from None
        if (magic, by_home, identity, number) != (_MAGIC, not self.is_home, self.identity, self.taken):
            raise PassageError(f"object {self.taken} is another one, number {number}")
        if not self._read_there <= read <= self.written:
            raise PassageError(f"{read} of {self.written} objects were read, and {self._read_there} before")
        events = self._events(plain[_HEADER.size :])
        self._read_there = read
        self.taken += 1
        return events

    def _events(self, frames: memoryview) -> list[PassageEvent]:
        events: list[PassageEvent] = []
        while frames:
            try:
                kind, connection, size = _FRAME.unpack_from(frames)
            except struct.error:
                raise PassageError("a frame is cut off") from None
            data, frames = frames[_FRAME.size : _FRAME.size + size], frames[_FRAME.size + size :]
            if len(data) != size:
                raise PassageError("a frame is cut off")
            event = self._event(kind, connection, bytes(data))
            if event is not None:
                events.append(event)
        return events

    def _event(self, kind: int, connection: int, data: bytes) -> PassageEvent | None:
        """The event of a frame; None for one of a connection that this end has closed meanwhile."""
        if kind == _OPEN and self.is_home and connection == self._opened + 1 and len(data) <= TARGET_BYTES_MAX:
            if len(self.connections) >= CONNECTIONS_MAX:
                raise PassageError(f"more than {CONNECTIONS_MAX} connections")
            self._opened = connection
            self.connections.add(connection)
            return Opened(connection, data.decode("ascii", "replace"))
        if kind == _END and not connection and not data:
            self._has_ended = True
            return PassageEnded()
        if (kind, bool(data)) not in ((_DATA, True), (_CLOSE, False)) or not 0 < connection <= self._opened:
            raise PassageError(f"a frame of kind {kind} for connection {connection}")
        if connection not in self.connections:
            return None
        if kind == _DATA:
            return Received(connection, data)
        self.connections.discard(connection)
        return PassageConnectionClosed(connection)
