"""The tape of one core while it is written: records of its events and commands, in segments of frames.

A segment begins with the core's state, and holds the records that follow it. When these are `segment_bytes` long, and
some times as long as the state, or when something before it was lost (`renew`), the next begins. It decides nothing
about files: `drain` returns what was encoded since the last call, also in another thread than that which appends.

A frame is the length of its body (4 bytes, big-endian, 1 to BODY_SIZE_MAX), the CRC-32 of length and body (4 bytes,
big-endian), and the body. The length is part of the checksum, and is never 0, so that a run of zeros, which a power
failure may leave in place of the last writes, is no frame. A checksum finds damage; it is no protection against
forgery, so bodies are decoded as strictly as any foreign bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from isthmus.runtime.clock import Instant

TAPE_BYTES: Final = 64 << 20
"""Default bound for the tapes of one host: six hours of a learner that makes ten steps a second."""
TAPE_BYTES_MIN: Final = 1 << 20
HEAD_SIZE: Final = 8
BODY_SIZE_MAX: Final = 1 << 24
"""Bytes: records have handles and small fields, never payloads; the state of a core is some kilobytes."""


class Frames(NamedTuple):
    """The frames found: their bodies, where each ends, and the bytes after the last of them.

    `rest` is empty, or states why those are no frame; `is_unfinished` if a process end or power failure leaves such
    bytes.
    """

    bodies: list[bytes]
    ends: list[int]
    rest: str
    is_unfinished: bool

    @property
    def end(self) -> int:
        """The offset at which the last whole frame ends."""
        return self.ends[-1] if self.ends else 0


LAST_MAX: Final = 1024
"""Records that a tape has for an error to tell: of a node that fires often those of its neighbours lie between."""
_SIZES: Final = 1024
"""Bodies of fewer bytes are so frequent that the checksums of their lengths are kept."""
_HEAD: Final = Struct(">II").pack


def _of_length(length: int) -> int:
    return crc32(length.to_bytes(4, "big"))


_OF_LENGTHS: Final = tuple(map(_of_length, range(_SIZES)))


def framed(bodies: Sequence[bytes]) -> bytes:
    """The frames of these bodies, one after the other."""
    # Without a call in Python for each body: this is half of what a record costs.
    lengths = [*map(len, bodies)]
    are_short = max(lengths, default=0) < _SIZES
    of_lengths = map(_OF_LENGTHS.__getitem__ if are_short else _of_length, lengths)
    parts = [b""] * (2 * len(lengths))
    parts[::2] = map(_HEAD, lengths, map(crc32, bodies, of_lengths))
    parts[1::2] = bodies
    return b"".join(parts)


def frames(data: bytes) -> Frames:
    """The frames at the beginning of some bytes; never raises, and allocates no more than these bytes."""
    bodies, ends, at, size = list[bytes](), list[int](), 0, len(data)
    while at < size:
        head, begin = data[at : at + 4], at + HEAD_SIZE
        length = int.from_bytes(head, "big")
        if begin > size or (0 < length <= BODY_SIZE_MAX and begin + length > size):
            return Frames(bodies, ends, f"{size - at} bytes of an unfinished record at byte {at}", True)
        body = data[begin : begin + length]
        if not 0 < length <= BODY_SIZE_MAX:
            rest, is_zero = f"a length of {length} at byte {at}, of 1 to {BODY_SIZE_MAX}", not any(data[at:])
            return Frames(bodies, ends, rest, is_zero)
        if crc32(body, crc32(head)) != int.from_bytes(data[at + 4 : begin], "big"):
            is_cut = not any(data[-8:]) and begin + length == size
            return Frames(bodies, ends, f"a record of {length} bytes at byte {at} with another checksum", is_cut)
        bodies.append(body)
        at = begin + length
        ends.append(at)
    return Frames(bodies, ends, "", False)


MARK: Final = "isthmus tape"
VERSION: Final = 2
SEGMENT_BYTES: Final = 1 << 20
"""The default: some thousands of records, which take a tenth of a second to replay."""
STATES: Final = 4
"""The least length of a segment, in states: to write one takes some times what as many bytes of records do."""


class Opening(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The beginning of a segment: its number, from 1, the count of records `before` it, and the state of the core.

    `is_after_loss`: some of those records were lost.
    """

    mark: str
    version: int
    segment: int
    before: int
    is_after_loss: bool
    state: bytes


class Piece(NamedTuple):
    """Whole frames of one segment, which may be one that begins because something before it was lost."""

    segment: int
    data: bytes
    is_after_loss: bool = False


class Tape:
    """Collects records. Call `begin` first."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._segment_bytes = segment_bytes
        self._state: Callable[[], bytes] = bytes
        self._records: deque[bytes | Opening] = deque()
        self._drained: deque[bytes | Opening] = deque(maxlen=LAST_MAX)
        """Those drained last, for an error to tell. Kept when drained, not when appended: an event pays nothing."""
        self._count = self._size = self._head_size = self._segment = self._taking = 0
        self._has_lost = False

    def begin(self, state: Callable[[], bytes]) -> None:
        """Open the first segment. `state` returns the present state of the core whose tape it is."""
        self._state = state
        self._open(is_after_loss=False)

    def append(self, at: Instant, event: Any, commands: Sequence[Any]) -> None:
        """Add one record."""
        self._count += 1
        if self._has_lost:  # This record would follow a gap; the state of the new segment includes it.
            self._has_lost = False
            self._open(is_after_loss=True)
            return
        record = self._encode((at, event, commands))
        self._records.append(record)
        self._size += len(record) + HEAD_SIZE
        if self._size >= self._segment_bytes and self._size >= self._head_size:
            self._open(is_after_loss=False)

    def renew(self) -> None:
        """Begin a segment with the next record, because some of the pieces taken were lost; from any thread."""
        self._has_lost = True

    def last(self) -> list[bytes]:
        """The records appended last, LAST_MAX at most, in order; also while another thread drains."""
        drained = [*self._drained]  # First, as drained records are in both for a moment, and in one always.
        both = {id(each): each for each in [*drained, *self._records]}
        return [each for each in both.values() if not isinstance(each, Opening)][-LAST_MAX:]

    def drain(self) -> list[Piece]:
        """Pieces encoded since the last call, in order."""
        pieces: list[Piece] = []
        bodies: list[bytes] = []
        is_after_loss = False
        waiting = [*self._records]
        self._drained.extend(waiting)  # Before they leave `_records`: `last` misses none.
        for record in waiting:
            self._records.popleft()
            if isinstance(record, Opening):
                if bodies:
                    pieces.append(Piece(self._taking, framed(bodies), is_after_loss))
                    bodies = []
                self._taking, is_after_loss = record.segment, record.is_after_loss
                record = self._encode(record)
            bodies.append(record)
        if bodies:
            pieces.append(Piece(self._taking, framed(bodies), is_after_loss))
        return pieces

    def _open(self, *, is_after_loss: bool) -> None:
        self._segment += 1
        self._size = 0
        opening = Opening(MARK, VERSION, self._segment, self._count, is_after_loss, self._state())
        # A core of a thousand hosts has a state of a megabyte: tapes would consist of states, and take the core's time.
        self._head_size = STATES * len(opening.state)
        self._records.append(opening)


def joined(pieces: Sequence[Piece]) -> bytes:
    """Pieces concatenated, as their files would be."""
    return b"".join(piece.data for piece in pieces)
