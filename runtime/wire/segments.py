"""Segments: memory of one host in which others of its machine read large items.

Decides in which segment an item goes, when one may be written again, and how much is kept. `segment_links` hand
descriptors over.

Theory of operation. A segment is a memfd, sealed so that it keeps its size and nobody else can write into it. It gets
the large arrays of one item that are in no other segment, for any number of peers and of later items: an array whose
pieces have the digests of one that lies there is that one, so the values of a version, which travel in an update, a
state and a copy, are there once. The *holders* of a segment are the transfers of items with an array in it that were
not given back, by peer. With no holder it is free: another item may be written into it, or it is *retired*, which every
peer that has it is told. A peer whose connection ended while it was a holder may read for ever, so the segment is
*spoilt*: it is never written again, and retired when its other holders have given it back. The memory lasts as long as
anybody maps it.

The pieces of an item are copied into its segment in their order, by a thread of the pool, and sent as they get there:
the loop goes on meanwhile, and the copy for the first peer serves the others. A small item, for which a hop to another
thread takes longer, is copied by the loop. Small leaves stay in frames, so that one that is kept for long keeps no
segment.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from isthmus.runtime.items.decoding import ALIGNMENT_BYTES, SHELF_BYTES_MAX, WASTE_MAX
from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.items.layout import CHUNK_BYTES
from isthmus.runtime.system.control_groups import memory_most
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
"""All segments of a host have at most an eighth of the memory of its machine, or container."""


class Holder(Protocol):
    """A peer to which segments are lent."""

    def retire(self, segment: SharedSegment) -> None:
        """Tell the peer, which has the segment, that it is of no more use."""


class ArrayCopying:
    """The copying of arrays into a segment, in any thread; `copied` pieces are there."""

    def __init__(self, pieces: Sequence[Any], offsets: list[int], memory: NDArray[np.uint8]) -> None:
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
            source = np.frombuffer(piece, np.uint8)
            np.copyto(self._memory[at : at + len(source)], source)  # It lets other threads go on.
            self.copied += 1
            on_copied()


class SharedSegment:
    """Memory with arrays of one item. `holders` counts transfers that were not given back; `knowing` have its
    descriptor."""

    def __init__(self, number: int, size_bytes: int) -> None:
        """OSError where there is no memory, no descriptor, or no such call."""
        self.number, self.size_bytes = number, size_bytes
        self.holders: Counter[Holder] = Counter()
        self.knowing: dict[Holder, None] = {}
        self.is_spoilt = False
        self.free_since = 0.0
        """When its last holder gave it back, on the monotonic clock."""
        self.arrays: list[ArrayDigests] = []
        """What lies in it."""
        self._copying: ArrayCopying | None = None
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

    def assign(self, pieces: Sequence[Any], offsets: list[int]) -> ArrayCopying:
        """Give it to other arrays; the copying is to be run."""
        assert self.is_free
        self._copying = ArrayCopying(pieces, offsets, self._memory)
        return self._copying

    def close(self) -> None:
        """Give up the descriptor, and the memory, where nobody else has it."""
        os.close(self.descriptor)
        self._memory = np.empty(0, np.uint8)
        self._copying = None


ArrayDigests = tuple[int, ...]
"""The size of an array, and the digests of its pieces."""


class ArrayPlace(NamedTuple):
    """Where an array lies; its first piece is the number `first` of those that are copied there."""

    segment: SharedSegment
    offset: int
    copying: ArrayCopying
    first: int


class LodgedItem:
    """The places of the large arrays of one item in one transfer. `segments` are all that it holds."""

    def __init__(self, places: Sequence[tuple[ArrayPlace, int] | None]) -> None:
        """For each piece the place of its array, and its number there; None for one that has a frame."""
        self._places = places
        self.segments = list(dict.fromkeys(each[0].segment for each in places if each is not None))

    def has_piece(self, piece: int) -> bool:
        """Whether a piece can be sent: it is there, or has a frame."""
        place = self._places[piece]
        return place is None or place[0].first + place[1] < place[0].copying.copied

    def place_of(self, piece: int) -> tuple[int, int] | None:
        """The segment in which a piece lies, by number, and the offset there; None for one that has a frame."""
        place = self._places[piece]
        return None if place is None else (place[0].segment.number, place[0].offset + place[1] * CHUNK_BYTES)


class SegmentPool:
    """The segments of one host, of at most `bytes_max` in all, for items of at least `item_bytes_min`.

    Of these, pieces of at least half of that go there. `on_copied` is called, in another thread, when there is more to
    send.
    """

    def __init__(self, bytes_max: int | None = None, item_bytes_min: int = ITEM_BYTES_MIN) -> None:
        self._bytes_max = memory_most() // MEMORY_SHARE if bytes_max is None else bytes_max
        self.item_bytes_min = item_bytes_min
        self.on_copied: Callable[[], None] = lambda: None
        self._segments: dict[int, SharedSegment] = {}
        self._places: dict[ArrayDigests, ArrayPlace] = {}
        """Of the arrays in segments that are not spoilt."""
        self.bytes_copied = 0
        """Of arrays, into segments, so far."""
        self._numbers = count(1)
        self._thread: ThreadPoolExecutor | None = None

    def lodge(self, encoded: Encoded, holder: Holder) -> LodgedItem | None:
        """The places of an item in a transfer to a peer, which holds its segments from now on. None: no room.

        Arrays that lie in a segment are used there; the others are copied into one together.
        """
        arrays = large_arrays(encoded, self.item_bytes_min // 2)
        if not arrays:
            return None
        found = {each.digests: self._places[each.digests] for each in arrays if each.digests in self._places}
        missing = {each.digests: each for each in arrays if each.digests not in found}
        held = dict.fromkeys(place.segment for place in found.values())
        for segment in held:  # Before a segment is taken for the others: these are not free.
            segment.holders[holder] += 1
        copied = self._place(encoded, list(missing.values())) if missing else {}
        if copied is None:
            for segment in held:
                self.give_back(segment.number, holder)
            return None
        found |= copied
        places: list[tuple[ArrayPlace, int] | None] = [None] * len(encoded.sizes)
        for each in arrays:
            for piece in range(each.pieces):
                places[each.first + piece] = found[each.digests], piece
        lodged = LodgedItem(places)
        for segment in lodged.segments:
            if segment not in held:
                segment.holders[holder] += 1
        return lodged

    def _place(self, encoded: Encoded, arrays: Sequence[LargeArray]) -> dict[ArrayDigests, ArrayPlace] | None:
        """Have arrays of an item copied into a segment; None if there is none."""
        offsets, size_bytes = layout([each.size_bytes for each in arrays])
        segment = self._take(size_bytes)
        if segment is None:
            return None
        self._forget(segment)
        pieces: list[Any] = []
        at: list[int] = []
        firsts = []
        for each, offset in zip(arrays, offsets, strict=True):
            firsts.append(len(pieces))
            pieces += encoded.pieces[each.first : each.first + each.pieces]
            at += [offset + piece * CHUNK_BYTES for piece in range(each.pieces)]
        copying = segment.assign(pieces, at)
        places = {
            each.digests: ArrayPlace(segment, offset, copying, first)
            for each, offset, first in zip(arrays, offsets, firsts, strict=True)
        }
        segment.arrays = list(places)
        self._places |= places
        self.bytes_copied += sum(each.size_bytes for each in arrays)
        self._copy(copying, size_bytes)
        return places

    def _forget(self, segment: SharedSegment) -> None:
        """What lies in a segment is used no more for further items."""
        for each in segment.arrays:
            if each in self._places and self._places[each].segment is segment:
                del self._places[each]
        segment.arrays = []

    def give_back(self, number: int, holder: Holder, *, is_spoilt: bool = False) -> bool:
        """A peer has given back one transfer; False if it holds none. `is_spoilt`: it is still read somewhere."""
        segment = self._segments.get(number)
        if segment is None or not segment.holders[holder]:
            return False
        segment.holders[holder] -= 1
        if is_spoilt:
            self._spoil(segment)
        self._look(segment, holder)
        return True

    def leave(self, holder: Holder) -> None:
        """A peer is gone, and may read for ever what it holds."""
        for segment in list(self._segments.values()):
            segment.knowing.pop(holder, None)
            if holder in segment.holders:
                if segment.holders[holder] > 0:
                    self._spoil(segment)
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
        self._places.clear()
        self._bytes_max = 0
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(each.size_bytes for each in self._segments.values())

    def _spoil(self, segment: SharedSegment) -> None:
        segment.is_spoilt = True
        self._forget(segment)

    def _copy(self, copying: ArrayCopying, size_bytes: int) -> None:
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
        self._forget(segment)
        for holder in segment.knowing:
            holder.retire(segment)
        segment.close()


class LargeArray(NamedTuple):
    """An array of an item that goes into a segment: the number of its first piece, and how many it has."""

    first: int
    pieces: int
    size_bytes: int
    digests: ArrayDigests


def large_arrays(encoded: Encoded, array_bytes_min: int) -> list[LargeArray]:
    """The arrays of an item of at least so many bytes."""
    arrays: list[LargeArray] = []
    begin = 0
    for end in range(1, len(encoded.sizes) + 1):
        # All pieces but the last one of an array are whole chunks; the next array may begin after a whole one, too.
        if end < len(encoded.sizes) and encoded.sizes[end - 1] == CHUNK_BYTES and _are_of_one_array(encoded, end):
            continue
        size_bytes = sum(encoded.sizes[begin:end])
        if size_bytes >= array_bytes_min:
            arrays.append(LargeArray(begin, end - begin, size_bytes, (size_bytes, *encoded.digests[begin:end])))
        begin = end
    return arrays


def _are_of_one_array(encoded: Encoded, piece: int) -> bool:
    """Whether a piece is of the same array as the one before it: they are views of one buffer."""
    before, this = encoded.pieces[piece - 1], encoded.pieces[piece]
    return isinstance(before, memoryview) and isinstance(this, memoryview) and before.obj is this.obj


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """(offset of each array, bytes in all) of arrays in a segment."""
    offsets: list[int] = []
    at = 0
    for size in sizes:
        offsets.append(at)
        at += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, at
