"""Segments: memory of one host in which others of its machine read large items.

Decides in which segment an item goes, when one may be written again, and how much is kept. `segment_links` hand
descriptors over.

Theory of operation. A segment is a memfd, sealed so that it keeps its size and nobody else can write into it. It holds
one item, for any number of peers; its *holders* are the transfers of that item that were not given back, by peer. With
no holder it is free: another item may be written into it, or it is *retired*, which every peer that has it is told. A
peer whose connection ended while it was a holder may read for ever, so the segment is *spoilt*: it is never written
again, and retired when its other holders have given it back. The memory lasts as long as anybody maps it.

The pieces of an item are copied into its segment in their order, by a thread of the pool, and sent as they get there:
the loop goes on meanwhile, and the copy for the first peer serves the others. A small item, for which a hop to another
thread takes longer, is copied by the loop. Small leaves stay in frames, so that one that is kept for long keeps no
segment.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from isthmus.runtime.items.decoding import ALIGNMENT_BYTES, SHELF_BYTES_MAX, WASTE_MAX
from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.items.layout import CHUNK_BYTES
from isthmus.runtime.system.mappings import (
    F_ADD_SEALS,
    F_SEAL_FUTURE_WRITE,
    F_SEAL_GROW,
    F_SEAL_SEAL,
    F_SEAL_SHRINK,
    map_shared,
    sealable_file,
)

SEALS_MIN: Final = F_SEAL_SHRINK | F_SEAL_GROW
ITEM_BYTES_MIN: Final = 128 << 10
"""Of the large arrays of an item, in all. To lend a segment and to give it back costs about as much as TCP's copies of
so many bytes."""
SIZE_STEP_BYTES: Final = 64 << 10
FREE_BYTES_MAX: Final = SHELF_BYTES_MAX
"""Bytes of segments that may lie unused, as of memory for received arrays (`items.decoding`)."""
IDLE_SECONDS: Final = 2.0
"""For as long a free segment waits for the next item, as that memory does."""
SEGMENTS_MAX: Final = 256
"""Segments of one host: of each, it and every peer have a mapping, and it has a descriptor."""
APART_BYTES_MIN: Final = 1 << 20
"""Of an item that is copied by the thread: .1 to .2 ms of a loop's turn, about what a hop takes on busy cores."""
MEMORY_SHARE: Final = 8
"""All segments of a host have at most an eighth of the memory of its machine."""


class Holder(Protocol):
    """A peer to which segments are lent."""

    def retire(self, segment: SharedSegment) -> None:
        """Tell the peer, which has the segment, that it is of no more use."""


class ItemCopying:
    """The copying of one item into a segment, in any thread; `copied` pieces are there."""

    def __init__(self, pieces: Sequence[Any], offsets: list[int | None], memory: NDArray[np.uint8]) -> None:
        self._pieces, self._offsets, self._memory = pieces, offsets, memory
        self.copied = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is written any more."""
        return self.copied == len(self._offsets)

    def run(self, on_copied: Callable[[], None]) -> None:
        """Copy; `on_copied` is called after each piece."""
        pieces, self._pieces = self._pieces, ()
        for piece, at in zip(pieces, self._offsets, strict=True):
            if at is not None:
                source = np.frombuffer(piece, np.uint8)
                np.copyto(self._memory[at : at + len(source)], source)  # It lets other threads go on.
            self.copied += 1
            on_copied()


class SharedSegment:
    """Memory with one item. `holders` counts transfers that were not given back; `knowing` have its descriptor."""

    def __init__(self, number: int, size_bytes: int) -> None:
        """OSError where there is no memory, no descriptor, or no such call."""
        self.number, self.size_bytes = number, size_bytes
        self.holders: Counter[Holder] = Counter()
        self.knowing: dict[Holder, None] = {}
        self.is_spoilt = False
        self.free_since = 0.0
        """When its last holder gave it back, on the monotonic clock."""
        self._encoded: weakref.ref[Encoded] | None = None
        self._offsets: list[int | None] = []
        self._copying: ItemCopying | None = None
        self.descriptor = sealable_file(f"isthmus-{number}")
        try:
            os.ftruncate(self.descriptor, size_bytes)
            self._memory = np.frombuffer(map_shared(self.descriptor, size_bytes, is_writable=True), np.uint8)
            fcntl.fcntl(self.descriptor, F_ADD_SEALS, SEALS_MIN | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE)
        except OSError:
            os.close(self.descriptor)
            raise

    @property
    def is_free(self) -> bool:
        """Whether nobody may read it, nor writes into it."""
        return not self.holders and not self.is_spoilt and (self._copying is None or self._copying.is_done)

    def has(self, encoded: Encoded) -> bool:
        """Whether it was given to this item."""
        return self._encoded is not None and self._encoded() is encoded

    def assign(self, encoded: Encoded, offsets: list[int | None]) -> ItemCopying:
        """Give it to another item; the copying is to be run."""
        assert self.is_free
        self._encoded, self._offsets = weakref.ref(encoded), offsets
        self._copying = ItemCopying(encoded.pieces, offsets, self._memory)
        return self._copying

    def has_piece(self, piece: int) -> bool:
        """Whether a piece of its item can be sent: it is there, or has a frame."""
        return self._copying is not None and piece < self._copying.copied

    def offset_of(self, piece: int) -> int | None:
        """Where a piece of its item lies; None for one that has a frame."""
        return self._offsets[piece]

    def close(self) -> None:
        """Give up the descriptor, and the memory, where nobody else has it."""
        os.close(self.descriptor)
        self._memory = np.empty(0, np.uint8)
        self._copying = None


class SegmentPool:
    """The segments of one host, of at most `bytes_max` in all, for items of at least `item_bytes_min`.

    Of these, pieces of at least half of that go there. `on_copied` is called, in another thread, when there is more to
    send.
    """

    def __init__(self, bytes_max: int | None = None, item_bytes_min: int = ITEM_BYTES_MIN) -> None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._bytes_max = memory // MEMORY_SHARE if bytes_max is None else bytes_max
        self.item_bytes_min = item_bytes_min
        self.on_copied: Callable[[], None] = lambda: None
        self._segments: dict[int, SharedSegment] = {}
        self._numbers = count(1)
        self._thread: ThreadPoolExecutor | None = None

    def lodge(self, encoded: Encoded, holder: Holder) -> SharedSegment | None:
        """A segment for a transfer of an item to a peer, which holds it from now on; None if there is none.

        It is that of an earlier transfer of the same item, if that is there.
        """
        segment = next((each for each in self._segments.values() if each.has(encoded) and not each.is_spoilt), None)
        if segment is None:
            offsets, size_bytes = layout(encoded.sizes, self.item_bytes_min // 2)
            segment = self._take(size_bytes) if size_bytes else None
            if segment is None:
                return None
            self._copy(segment.assign(encoded, offsets), size_bytes)
        segment.holders[holder] += 1
        return segment

    def give_back(self, number: int, holder: Holder, *, is_spoilt: bool = False) -> bool:
        """A peer has given back one transfer; False if it holds none. `is_spoilt`: it is still read somewhere."""
        segment = self._segments.get(number)
        if segment is None or not segment.holders[holder]:
            return False
        segment.holders[holder] -= 1
        segment.is_spoilt |= is_spoilt
        self._look(segment, holder)
        return True

    def leave(self, holder: Holder) -> None:
        """A peer is gone, and may read for ever what it holds."""
        for segment in list(self._segments.values()):
            segment.knowing.pop(holder, None)
            if holder in segment.holders:
                segment.is_spoilt |= segment.holders[holder] > 0
                segment.holders[holder] = 0
                self._look(segment, holder)

    def drop_idle(self) -> None:
        """Retire what no item has been in for long."""
        before = time.monotonic() - IDLE_SECONDS
        for segment in [each for each in self._segments.values() if each.is_free and each.free_since <= before]:
            self._retire(segment)

    def close(self) -> None:
        """Give up all segments."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._bytes_max = 0
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(each.size_bytes for each in self._segments.values())

    def _copy(self, copying: ItemCopying, size_bytes: int) -> None:
        """Have an item copied: one after the other, so that each is there soon."""
        if size_bytes < APART_BYTES_MIN:
            copying.run(lambda: None)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "segments")
        self._thread.submit(copying.run, self.on_copied)

    def _look(self, segment: SharedSegment, holder: Holder) -> None:
        """Forget a holder that has given everything back; retire what nobody needs."""
        if not segment.holders[holder]:
            del segment.holders[holder]
        if segment.holders:
            return
        if segment.is_spoilt:
            self._retire(segment)
            return
        segment.free_since = time.monotonic()
        free = [each for each in self._segments.values() if each.is_free]
        free_bytes = sum(each.size_bytes for each in free)
        for each in free:
            if free_bytes > FREE_BYTES_MAX:
                free_bytes -= each.size_bytes
                self._retire(each)

    def _take(self, size_bytes: int) -> SharedSegment | None:
        """A free segment of about this size, or a new one."""
        free = [each for each in self._segments.values() if each.is_free]
        fitting = [each for each in free if size_bytes <= each.size_bytes <= size_bytes + size_bytes // WASTE_MAX]
        if fitting:
            return min(fitting, key=lambda each: each.size_bytes)
        needed = -(-size_bytes // SIZE_STEP_BYTES) * SIZE_STEP_BYTES
        used_bytes = self.size_bytes - sum(each.size_bytes for each in free)
        if used_bytes + needed > self._bytes_max or len(self._segments) - len(free) >= SEGMENTS_MAX:
            return None
        for each in free:
            if self.size_bytes + needed <= self._bytes_max and len(self._segments) < SEGMENTS_MAX:
                break
            self._retire(each)
        try:
            segment = SharedSegment(next(self._numbers), needed)
        except OSError:
            return None
        self._segments[segment.number] = segment
        return segment

    def _retire(self, segment: SharedSegment) -> None:
        del self._segments[segment.number]
        for holder in segment.knowing:
            holder.retire(segment)
        segment.close()


def layout(sizes: Sequence[int], piece_bytes_min: int) -> tuple[list[int | None], int]:
    """(offset of each piece, bytes in all) of an item in a segment; None for a smaller piece, which has a frame.

    Pieces of one array lie one after the other; where the piece before is a whole chunk, this one may belong to it.
    """
    offsets: list[int | None] = []
    at = before = 0
    for size in sizes:
        if size >= piece_bytes_min or before == CHUNK_BYTES:
            offsets.append(at)
            at += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        else:
            offsets.append(None)
        before = size
    return offsets, at
