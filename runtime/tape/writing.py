"""The tape of one core while it is written: records of its events and commands, in segments.

A segment begins with the core's state, and holds the records that follow it. When one is `segment_bytes` long, or when
something before it was lost (`renew`), the next begins. Decides nothing about files: `take` returns what was encoded
since the last call, also in another thread than that which appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.tape.frames import HEAD_SIZE, framed

MARK: Final = "isthmus tape"
VERSION: Final = 1
SEGMENT_BYTES: Final = 1 << 20
"""The default: some thousands of records, which take a tenth of a second to replay."""


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
        self._count = self._size = self._segment = self._taking = 0
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
        if self._size >= self._segment_bytes:
            self._open(is_after_loss=False)

    def renew(self) -> None:
        """Begin a segment with the next record, because some of the pieces taken were lost; from any thread."""
        self._has_lost = True

    def take(self) -> list[Piece]:
        """Pieces encoded since the last call, in order."""
        pieces: list[Piece] = []
        parts: list[bytes] = []
        is_after_loss = False
        for _ in range(len(self._records)):
            record = self._records.popleft()
            if isinstance(record, Opening):
                if parts:
                    pieces.append(Piece(self._taking, b"".join(parts), is_after_loss))
                    parts = []
                self._taking, is_after_loss = record.segment, record.is_after_loss
                record = self._encode(record)
            parts.append(framed(record))
        if parts:
            pieces.append(Piece(self._taking, b"".join(parts), is_after_loss))
        return pieces

    def _open(self, *, is_after_loss: bool) -> None:
        self._segment += 1
        self._size = 0
        opening = Opening(MARK, VERSION, self._segment, self._count, is_after_loss, self._state())
        self._records.append(opening)


def joined(pieces: Sequence[Piece]) -> bytes:
    """Pieces concatenated, as their files would be."""
    return b"".join(piece.data for piece in pieces)
