"""Descriptors of segments between two hosts of one machine, and what each has given back.

Decides with whom segments are shared and which descriptors are accepted. `segments` decides what goes into them.

Theory of operation. A host has a *desk*, a Unix socket with an abstract name that ends with its process. For each
session on a direct link the side that dialled makes one connection there and shows the token of its HELLO; both sides
check that the other is of their own account. From then on either side lends:

- LEND, with one descriptor: a segment that the next items may lie in;
- GIVE_BACK: the views of one item are gone; SPOIL: so they are here, but a fork of this process may have some;
- RETIRE: no further item will lie in a segment.

Nothing listens to these sockets. Packets are read where they are needed: a LEND was sent before the message that names
its segment, so it can be read by then. What does not fit into a socket waits for the next time, except a LEND: that
item goes by TCP. A peer that closes the connection, or is killed, lends and gets nothing from then on; the session ends
by its own sockets.

A *lease* is an array over a whole segment, made for one item. Its views keep it alive, as NumPy keeps the object that
a buffer came from; when it is collected, in whatever thread, its number goes to a list, and from there to the peer in a
turn of the loop.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.items.layout import ITEM_BYTES_MAX, Bytes, RefusalError
from isthmus.runtime.system import forks
from isthmus.runtime.system.mappings import F_GET_SEALS, leave_pages, map_shared
from isthmus.runtime.system.refusals import is_own
from isthmus.runtime.wire.protocol_messages import TOKEN_BYTES
from isthmus.runtime.wire.segments import (
    ITEM_BYTES_MIN,
    SEALS_MIN,
    SEGMENTS_MAX,
    SIZE_STEP_BYTES,
    LodgedItem,
    SegmentPool,
    SharedSegment,
)

PACKET: Final = struct.Struct("<BQQ")
"""Kind, number of the segment, its size; one packet each."""
LEND, GIVE_BACK, SPOIL, RETIRE = range(1, 5)
SEGMENT_BYTES_MAX: Final = ITEM_BYTES_MAX + (ITEM_BYTES_MAX >> 4)
"""An item, and the alignment of its arrays."""
NAME_PREFIX: Final = "isthmus-"
PACKETS_MAX: Final = 4 * SEGMENTS_MAX
"""Packets that are read at once."""
WAITING_MAX: Final = 256
"""Connections to a desk that have not shown the token of a session that is up."""
DESCRIPTORS_MAX: Final = 4
"""Descriptors of one packet that are read, to be closed if there is more than one; the kernel closes what is beyond."""
IDLE_PAGES_MAX: Final = 1 << 20
"""Bytes that other links have lent, and nobody reads any more, whose pages this process keeps."""
_DESCRIPTOR_BYTES: Final = struct.calcsize("i")
_ROOM: Final = socket.CMSG_SPACE(DESCRIPTORS_MAX * _DESCRIPTOR_BYTES)
_CREDENTIALS: Final = struct.Struct("3i")


class BorrowedPages:
    """The pages of segments that peers have lent to one host, and that were read: they are the peers' memory, and count
    as the host's, too, as long as it has them.

    So it leaves those that nobody reads any more: a syncer would else have an answer of each of its learners. Of the
    link that was read last it keeps them, because finding them again takes time.
    """

    def __init__(self) -> None:
        self._idle: OrderedDict[tuple[int, int], Any] = OrderedDict()
        """Mappings by link and number, the longest unread first."""
        self._last = 0

    def read(self, link: object, number: int) -> None:
        """A segment is being read."""
        self._last = id(link)
        self._idle.pop((id(link), number), None)
        self._bound()

    def ended(self, link: object, number: int, mapping: Any) -> None:
        """It is not any more, in one use: of two, what the other reads is found again."""
        self._idle[id(link), number] = mapping
        self._idle.move_to_end((id(link), number))
        self._bound()

    def forget(self, link: object, number: int) -> None:
        """A segment is retired."""
        self._idle.pop((id(link), number), None)

    def _bound(self) -> None:
        others = [key for key in self._idle if key[0] != self._last]
        size_bytes = sum(len(self._idle[key]) for key in others)
        for key in others:
            if size_bytes <= IDLE_PAGES_MAX:
                return
            mapping = self._idle.pop(key)
            size_bytes -= len(mapping)
            leave_pages(mapping)


class SegmentLink:
    """One connection, and the segments that crossed it. Its two sides are alike."""

    def __init__(
        self, connection: socket.socket, pool: SegmentPool, counts: Counter[str], pages: BorrowedPages | None = None
    ) -> None:
        """Its host's `pages` are those of all its links."""
        connection.setblocking(False)
        self._connection, self._pool, self._counts = connection, pool, counts
        self._pages = pages or BorrowedPages()
        self._borrowed: dict[int, Any] = {}
        self._ended: deque[tuple[int, int]] = deque()
        """Leases that were collected: the segment, and the count of forks when it began."""
        self._outbox: deque[bytes] = deque()
        self._fault: RefusalError | None = None
        self._is_open = True
        self._spare: socket.socket | None = None
        """Gives its place to a descriptor that is received: there is one even where no further file can be opened."""
        self._keep_spare()

    # -- lending -------------------------------------------------------------------------------------------------------

    def lodge(self, encoded: Encoded) -> LodgedItem | None:
        if sum(encoded.sizes) < self._pool.item_bytes_min:
            return None
        self._read_quietly()
        copied_before = self._pool.bytes_copied
        lodged = self._pool.lodge(encoded, self) if self._is_open else None
        self._counts["bytes_copied"] += self._pool.bytes_copied - copied_before
        if lodged is not None and not all(self in each.knowing or self._hand_over(each) for each in lodged.segments):
            for each in lodged.segments:
                self._pool.give_back(each.number, self)
            lodged = None
        name = "unlent" if lodged is None else "lent"
        self._counts[f"items_{name}"] += 1
        self._counts[f"bytes_{name}"] += encoded.size_bytes
        return lodged

    def retire(self, segment: SharedSegment) -> None:
        """Tell the peer that a segment is of no more use."""
        self._outbox.append(PACKET.pack(RETIRE, segment.number, 0))
        self._write()

    def _hand_over(self, segment: SharedSegment) -> bool:
        self._write()
        if self._outbox:  # Not before what waits.
            return False
        packet = PACKET.pack(LEND, segment.number, segment.size_bytes)
        try:
            socket.send_fds(self._connection, [packet], [segment.descriptor], socket.MSG_NOSIGNAL)
        except OSError:  # It is full, too many descriptors are under way, or the peer is gone.
            return False
        segment.knowing[self] = None
        return True

    # -- borrowing -----------------------------------------------------------------------------------------------------

    def lease_of(self, segment: int) -> Bytes:
        if segment not in self._borrowed:
            self.settle()
        mapping = self._borrowed.get(segment)
        if mapping is None:
            raise RefusalError("segment", f"segment {segment} was not lent here")
        self._pages.read(self, segment)
        lease = np.frombuffer(mapping, np.uint8)
        lease.setflags(write=False)  # All that is given away is a view of this.
        weakref.finalize(lease, self._ended.append, (segment, _forked.count)).atexit = False
        return lease.data

    def settle(self) -> None:
        """Read what has come, and send what waits."""
        while self._ended:
            number, forks_before = self._ended.popleft()
            kind = GIVE_BACK if forks_before == _forked.count else SPOIL
            self._outbox.append(PACKET.pack(kind, number, 0))
            if (mapping := self._borrowed.get(number)) is not None:
                self._pages.ended(self, number, mapping)
        self._write()
        self._read_quietly()
        if self._fault is not None:
            raise self._fault

    @property
    def has_ended_leases(self) -> bool:
        """Whether there is something to give back."""
        return bool(self._ended)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._connection.close()
            self._free_spare()
            for number in self._borrowed:
                self._pages.forget(self, number)
            self._borrowed.clear()
            self._outbox.clear()
            self._pool.leave(self)

    # -- the socket ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while self._outbox and self._is_open:
            try:
                self._connection.send(self._outbox[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                if is_own(error):  # It is sent with the next one.
                    return
                self._outbox.clear()  # The peer is gone.
                return
            self._outbox.popleft()

    def _read_quietly(self) -> None:
        """Read packets; the first fault is kept for `settle`, and nothing is read after it."""
        try:
            for _ in range(PACKETS_MAX):
                if not self._is_open or self._fault is not None or not self._read():
                    return
        except RefusalError as fault:
            self._fault = fault

    def _read(self) -> bool:
        """Read one packet; False if there is none."""
        descriptors: list[int] = []
        self._free_spare()
        try:
            try:
                packet, ancillary, flags, _ = self._connection.recvmsg(PACKET.size + 1, _ROOM, socket.MSG_CMSG_CLOEXEC)
            except OSError:  # There is none, or the peer was killed.
                return False
            descriptors = _descriptors(ancillary)
            if not packet and not descriptors:  # The peer has closed its end.
                return False
            self._on_packet(packet, descriptors, is_cut=bool(flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)))
        finally:
            for each in descriptors:
                os.close(each)
            self._keep_spare()
        return True

    def _keep_spare(self) -> None:
        with suppress(OSError):
            self._spare = self._connection.dup()

    def _free_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def _on_packet(self, packet: bytes, descriptors: list[int], *, is_cut: bool) -> None:
        if is_cut or len(packet) != PACKET.size:
            raise RefusalError("segment", f"a packet of {len(packet)} bytes and {len(descriptors)} descriptors")
        kind, number, size_bytes = PACKET.unpack(packet)
        if len(descriptors) != (kind == LEND):
            raise RefusalError("segment", f"{len(descriptors)} descriptors with a packet of kind {kind}")
        if kind == LEND:
            self._borrow(number, size_bytes, descriptors[0])
        elif kind == RETIRE:
            self._pages.forget(self, number)
            if self._borrowed.pop(number, None) is None:
                raise RefusalError("segment", f"segment {number}, which was not lent, is retired")
        elif kind not in (GIVE_BACK, SPOIL) or not self._pool.give_back(number, self, is_spoilt=kind == SPOIL):
            raise RefusalError("segment", f"segment {number} is given back (kind {kind}), which the peer does not have")

    def _borrow(self, number: int, size_bytes: int, descriptor: int) -> None:
        """Map a segment, if that can never fault."""
        if number in self._borrowed or len(self._borrowed) >= SEGMENTS_MAX:
            raise RefusalError("segment", f"segment {number} beside {len(self._borrowed)} others")
        try:
            seals = fcntl.fcntl(descriptor, F_GET_SEALS)
        except OSError as error:  # No memfd.
            raise RefusalError("segment", f"segment {number} cannot be sealed") from error
        state = os.fstat(descriptor)  # After the seals: before them it may still change.
        # Not st_blksize, which is large where the kernel may use large pages by itself (`shmem_enabled`).
        page_bytes = os.fstatvfs(descriptor).f_bsize
        if seals & SEALS_MIN != SEALS_MIN or page_bytes != mmap.PAGESIZE:
            raise RefusalError("segment", f"segment {number} has seals {seals:#x} and pages of {page_bytes}")
        if state.st_size != size_bytes or not 0 < size_bytes <= SEGMENT_BYTES_MAX or size_bytes % SIZE_STEP_BYTES:
            raise RefusalError("segment", f"segment {number} of {state.st_size} bytes, {size_bytes} were announced")
        try:
            self._borrowed[number] = map_shared(descriptor, size_bytes, is_writable=False)
        except OSError as error:
            raise RefusalError("memory", f"segment {number} of {size_bytes} bytes cannot be mapped") from error


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % _DESCRIPTOR_BYTES
            found += struct.unpack(f"{whole // _DESCRIPTOR_BYTES}i", data[:whole])
    return found


class SegmentDesk:
    """Where one host meets others of its machine; made for one channel, and closed by it.

    `counts` gets the items that were `lent`, those of the same peers that were not (`unlent`), the bytes that were
    `copied` into shared memory for them, and peers of this machine that could not be reached (`desk_unreached`).
    """

    def __init__(self, bytes_max: int | None = None, item_bytes_min: int = ITEM_BYTES_MIN) -> None:
        self.counts: Counter[str] = Counter()
        self._pool, self._pages = SegmentPool(bytes_max, item_bytes_min), BorrowedPages()
        self._name = f"{NAME_PREFIX}{os.urandom(TOKEN_BYTES).hex()}"
        self._waiting: OrderedDict[socket.socket, bytes] = OrderedDict()
        """Accepted connections, with the tokens that they have shown; b"" before."""
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        forks.note(f"ipc://@{self._name}")
        try:
            self._listener.bind(f"\0{self._name}")
            self._listener.listen(WAITING_MAX)
        except OSError:
            self.close()
        else:
            self._listener.setblocking(False)

    def notify(self, on_copied: Callable[[], None]) -> None:
        """Have `on_copied` called, in another thread, when more of an item can be sent."""
        self._pool.on_copied = on_copied

    @property
    def address(self) -> str:
        """What a HELLO tells of it: the machine, and the name there; "" if there is no desk."""
        return f"{_machine()}/{self._name}" if self._listener is not None else ""

    def call(self, address: str, token: bytes) -> SegmentLink | None:
        """Go to a peer's desk; None where that is not on this machine, not reached from here, or of another account."""
        machine, _, name = address.partition("/")
        if machine != _machine() or self._listener is None or not name.startswith(NAME_PREFIX):
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(f"\0{name}")
            if _is_own(connection):
                forks.note(f"ipc://@{name}")
                connection.send(token, socket.MSG_NOSIGNAL)
                return SegmentLink(connection, self._pool, self.counts, self._pages)
        except (OSError, ValueError):
            pass
        self.counts["desk_unreached"] += 1
        connection.close()
        return None

    def answer(self, address: str, token: bytes) -> SegmentLink | None:
        """The connection of a peer that has shown `token` at this desk; None if it has not come."""
        if self._listener is None or address.partition("/")[0] != _machine():
            return None
        self._look(token)
        for connection, shown in self._waiting.items():
            if shown == token:
                del self._waiting[connection]
                return SegmentLink(connection, self._pool, self.counts, self._pages)
        self.counts["desk_unreached"] += 1
        return None

    def tidy(self) -> None:
        """Give up what has been of no use for long, and connections that ended before their session was up."""
        self._pool.drop_idle()
        self._look()

    def close(self) -> None:
        """Close the desk, and give up all segments; links are closed with their sessions."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._waiting):
            self._dismiss(connection)
        self._pool.close()

    def _look(self, awaited: bytes = b"") -> None:
        """Accept what has connected, read tokens, and dismiss what has ended, but for who shows the `awaited` one."""
        self._accept()
        for connection, shown in list(self._waiting.items()):
            now_shown = shown or _token_of(connection)
            if now_shown is None or (now_shown != awaited and not _is_there(connection)):
                self._dismiss(connection)
            else:
                self._waiting[connection] = now_shown

    def _accept(self) -> None:
        """Accept what has connected, if it is of this account."""
        if self._listener is None:
            return
        for _ in range(WAITING_MAX):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # There is none, or no descriptor for it.
                return
            if not _is_own(connection):
                connection.close()
                continue
            connection.setblocking(False)
            self._waiting[connection] = b""
            if len(self._waiting) > WAITING_MAX:
                self._dismiss(next(iter(self._waiting)))

    def _dismiss(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        connection.close()


def _token_of(connection: socket.socket) -> bytes | None:
    """The token that a connection has shown, b"" if none has come; None if it is none, or the connection has ended."""
    try:
        token = connection.recv(TOKEN_BYTES + 1)
    except BlockingIOError:
        return b""
    except OSError:
        return None
    return token if len(token) == TOKEN_BYTES else None


def _is_there(connection: socket.socket) -> bool:
    """Whether the other end has not closed its connection. What it has lent before may still be unread."""
    poll = select.poll()
    poll.register(connection, 0)
    return not poll.poll(0)


def _is_own(connection: socket.socket) -> bool:
    """Whether the other end is of this account; its user may be unknown in this namespace."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _machine() -> str:
    """A name of this machine since its start, which tells nothing else of it; "" where that is unknown."""
    with suppress(OSError):
        return xxhash.xxh3_64_hexdigest(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    return ""


class _Forked:
    """Grows where this process forks: a fork has the views of the moment, and gives nothing back."""

    def __init__(self) -> None:
        self.count = 0
        # Twice: what begins while other hooks run, before the fork itself, is in the fork, too.
        os.register_at_fork(before=self._forks, after_in_parent=self._forks)

    def _forks(self) -> None:
        self.count += 1


_forked: Final = _Forked()
