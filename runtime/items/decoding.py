"""Decoding: items made of specs and pieces.

It decides which specs are accepted, in whose memory a received array lies, and which arrays share it.

Theory of operation. An array of at most one chunk lies in one frame, and its receiver reads it there without a copy; a
larger one is assembled by copying while its pieces come, each while it is still in cache. The arrays of a large item
are copied, too: its frames would keep more memory from libzmq than malloc leaves mapped, and each item would arrive on
pages that the kernel must clear first. An array that has just come from the same peer, and is still held, is not copied
again: an item that crosses on two edges to one host is there once (`Lately`).

All input counts as hostile until checked. The C code that reads a spec allocates for what is there, not for what is
announced: a list of a million that does not follow costs nothing. How deep it reads is bounded by the interpreter (997
levels with CPython 3.11, 1,498 with 3.12, 9,999 with 3.13; measured: 0.3, 0.5 and 2.8 MiB of stack, and 184 bytes a
level), far above what an item may have. Depth, leaves, key types, dtypes and shapes are checked next, sizes before
memory is allocated for them. There is no pickle, and no code is named. Every fault is a `RefusalError` with a named
reason.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from isthmus.runtime.items.layout import (
    ARRAY,
    AXES_MAX,
    BLOB,
    CHUNK_BYTES,
    DTYPES,
    INLINE,
    ITEM_BYTES_MAX,
    LARGE,
    LARGE_MAX,
    LEAVES_MAX,
    PLAIN,
    SCALAR,
    SHAPE,
    TUPLE,
    Bytes,
    Odd,
    RefusalError,
    survey,
)

ALIGNMENT_BYTES: Final = 64
"""The width of a cache line and of the widest vector; JAX takes such arrays without a copy."""
SHELF_BYTES_MAX: Final = 144 << 20
"""Bytes that may lie unused: two fragments of 64 MiB, and what aligns them. With 512 MiB each host of gpt-124m held as
much as its parameters unused."""
WASTE_MAX: Final = 4
"""A block is lent for an array, and a segment used for an item, if it is larger by at most a fourth of that."""
IDLE_SECONDS: Final = 1.0
"""For one to two times as long an unused block waits for the next array, then it goes to the kernel."""
_MAPPED_BYTES_MIN: Final = 1 << 22
"""Larger blocks are mapped: malloc would take them from its heap, and keep them there."""

_lock = threading.RLock()
"""Reentrant: a collection inside `_take` may end another lease."""
_shelf: list[tuple[NDArray[np.uint8], bool]] = []
"""Unused blocks, and whether they were there at the last look: nothing here has a clock."""
_looking: list[threading.Timer] = []
"""What drops those that nothing takes, if there is any."""


def empty(size_bytes: int) -> NDArray[np.uint8]:
    """uint8[size_bytes] on a 64-byte boundary, not initialized, in no other array's memory. May raise MemoryError.

    The kernel clears the pages of new memory when they are first touched; here that makes a copy of 64 MiB 2 to 4 times
    slower with large pages, and 15 times slower without. So an array stands on a *lease*, an object that is no array:
    NumPy cuts a chain of views short at the first such object, and every view therefore keeps it alive. When the lease
    is collected, in whatever thread, its block goes to a shelf of a few, where the next array finds it; never before,
    and never by an explicit call.
    """
    needed = size_bytes + ALIGNMENT_BYTES
    block = _take(needed)
    if block is None:
        block = _new(needed)
    lease = (ctypes.c_uint8 * len(block)).from_buffer(block.data)
    weakref.finalize(lease, _put, block).atexit = False
    return np.frombuffer(memoryview(lease), np.uint8, size_bytes, -block.ctypes.data % ALIGNMENT_BYTES)


def _new(size_bytes: int) -> NDArray[np.uint8]:
    if size_bytes < _MAPPED_BYTES_MIN:
        return np.empty(size_bytes, np.uint8)
    try:
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{size_bytes} bytes") from error
    with suppress(OSError):  # A kernel without huge pages. NumPy asks for them, too.
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)


def _take(needed: int) -> NDArray[np.uint8] | None:
    with _lock:
        for index, (block, _) in enumerate(_shelf):
            if needed <= len(block) <= needed + needed // WASTE_MAX:
                return _shelf.pop(index)[0]
    return None


def _put(block: NDArray[np.uint8]) -> None:
    with _lock:
        _shelf.append((block, False))
        while sum(len(each) for each, _ in _shelf) > SHELF_BYTES_MAX:
            del _shelf[0]
        if _shelf and not _looking:
            _look_later()


def _look_later() -> None:
    timer = threading.Timer(IDLE_SECONDS, _look)
    timer.daemon = True
    _looking.append(timer)
    timer.start()


def _look() -> None:
    """Drop what was there at the last look; look again while there is more."""
    with _lock:
        _shelf[:] = [(block, True) for block, was_there in _shelf if not was_there]
        _looking.clear()
        if _shelf:
            _look_later()


VIEWED_BYTES_MAX: Final = 8 << 20
"""No frame of a larger item is kept. Measured: receiving 16 to 64 MiB in frames that are kept takes 0.5-0.6 CPU seconds
a GB (now and then 0.3), copying them 0.35, whatever the size; up to 8 MiB keeping them takes 0.26."""
LENT_BYTES_MIN: Final = 1 << 20
"""Smaller frames are kept in any case; their memory is not given back to the kernel."""

Read = TypeVar("Read")

_HEAD_BYTES: Final = SHAPE.size
_AXES: Final = tuple(struct.Struct(f"<{axes}Q") for axes in range(AXES_MAX + 1))
"""By their number: the axes of an array."""


class _Large(msgspec.Struct, frozen=True, gc=False):
    """A leaf whose bytes come in frames of their own."""

    dtype: np.dtype[Any]
    form: int
    shape: tuple[int, ...]
    size_bytes: int


class _Mark:
    """The first element of a list that is a tuple."""


_MARK: Final = _Mark()


def reader(form: type[Read]) -> Callable[[Bytes], Read]:
    """A decoder of one msgpack value of the declared type `form`, with tuple marks and large leaves unresolved.

    It raises RefusalError: 'encoding' for what is not msgpack as agreed, 'message' for what does not match the
    declaration. `Assembly`, or the caller, checks lists and dicts that are declared as `Any`.
    """
    read = msgspec.msgpack.Decoder(form, ext_hook=_extension).decode

    def checked(data: Bytes) -> Read:
        try:
            return read(data)
        except msgspec.ValidationError as error:
            raise RefusalError("message", str(error)) from error
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
            raise RefusalError("encoding", f"not msgpack as agreed ({type(error).__name__}: {error})") from error

    return checked


def _extension(kind: int, lent: memoryview) -> Any:
    data = bytes(lent)  # A copy, so that the frame need not be kept.
    if kind == TUPLE and not data:
        return _MARK
    if kind not in (INLINE, LARGE) or len(data) < _HEAD_BYTES:
        raise RefusalError("encoding", f"extension {kind} with {len(data)} bytes")
    code, form, axes = SHAPE.unpack_from(data)
    follow_bytes = len(data) - _HEAD_BYTES - 8 * axes
    if code >= len(DTYPES) or form > BLOB or axes > AXES_MAX or follow_bytes < 0:
        raise RefusalError("dtype", f"dtype {code}, form {form}, {axes} axes in {len(data)} bytes")
    dtype = DTYPES[code]
    shape: tuple[int, ...] = _AXES[axes].unpack_from(data, _HEAD_BYTES)
    size_bytes = longest = dtype.itemsize
    for length in shape:
        size_bytes *= length
        longest = length if length > longest else longest
    if longest > ITEM_BYTES_MAX or size_bytes > ITEM_BYTES_MAX or (form == SCALAR and axes):
        raise RefusalError("shape", f"form {form}, shape {shape} of {dtype}")
    if form == BLOB and (dtype != np.uint8 or axes != 1):
        raise RefusalError("shape", f"bytes as shape {shape} of {dtype}")
    if kind == LARGE:
        if not size_bytes or follow_bytes:
            raise RefusalError("shape", f"a large array of shape {shape} in {len(data)} bytes")
        return _Large(dtype, form, shape, size_bytes)
    if follow_bytes != size_bytes:
        raise RefusalError("shape", f"shape {shape} of {dtype} in {len(data)} bytes")
    if form == ARRAY and axes == 1 and size_bytes:  # The usual one; `bytes` are aligned, and not written.
        return np.frombuffer(data, dtype, offset=_HEAD_BYTES + 8)
    return _leaf(memoryview(data)[_HEAD_BYTES + 8 * axes :], dtype, form, shape)


def _leaf(flat: Bytes, dtype: np.dtype[Any], form: int, shape: tuple[int, ...]) -> Any:
    """A leaf over existing bytes; read-only, and aligned (small frames may begin anywhere)."""
    if form == BLOB:
        return flat.tobytes()
    array = np.frombuffer(flat, dtype) if flat.nbytes else np.empty(shape, dtype)
    if len(shape) != 1:
        array = array.reshape(shape)
    if not array.flags.aligned:
        array = array.copy()
    array.setflags(write=False)
    return array[()] if form == SCALAR else array


LATELY_MAX: Final = 16
"""Arrays of one peer that are remembered: an item with all tensors of a fragment, on a few edges."""


class _Arrived(NamedTuple):
    """The memory of an array, uint8[n], as long as it is held, and the digests of its pieces."""

    memory: weakref.ref[NDArray[np.uint8]]
    digests: list[int]


class Lately:
    """The large arrays that came last from one peer, and are still held.

    They are told apart by their digests, which tell damaged frames, too. A peer that makes two arrays of equal digests
    changes nobody's but its own.
    """

    def __init__(self) -> None:
        self._arrived: deque[_Arrived] = deque(maxlen=LATELY_MAX)

    def add(self, memory: NDArray[np.uint8], digests: list[int]) -> None:
        """Remember an array that is complete."""
        self._arrived.append(_Arrived(weakref.ref(memory), digests))

    def find(self, size_bytes: int, digest: int) -> tuple[NDArray[np.uint8], list[int]] | None:
        """An array of this size whose first piece has this digest, with the digests of all, if one is held."""
        for each in reversed(self._arrived):
            if each.digests[0] == digest and (memory := each.memory()) is not None and len(memory) == size_bytes:
                return memory, each.digests
        return None


class Assembly:
    """An item whose frames are still arriving, in memory of its own, or in that of an equal array that came `lately`.

    `wanted` is the size of the next frame, 0 once all are there and `item` is complete; `size_bytes` is that of all
    frames. RefusalError for a tree that is not well formed.
    """

    __slots__ = (
        "_begins", "_buffer", "_digests", "_filled", "_holders", "_is_marked", "_lately", "_leases", "_next",
        "_segment", "_twin", "item", "size_bytes", "wanted",
    )  # fmt: skip

    def __init__(self, tree: Any, lately: Lately | None = None) -> None:
        self.item, self._lately = tree, lately
        self._leases: dict[int, Bytes] = {}
        """By the number of the segment."""
        self._segment = 0
        """That of the array which is being filled."""
        self.size_bytes = self.wanted = 0
        odd: list[Odd] = []
        if type(tree) is dict or type(tree) is list:
            survey(tree, 1, LEAVES_MAX, odd)
        elif type(tree) not in PLAIN:
            odd.append((None, None, tree))
        if odd:
            self._await(odd)

    def _await(self, odd: list[Odd]) -> None:
        """Find the places of leaves that arrive in frames, and the lists that are tuples."""
        self._holders: list[tuple[Any, Any, _Large]] = []
        self._is_marked = False
        for container, key, leaf in odd:
            if type(leaf) is _Large:
                self._holders.append((container, key, leaf))
                self.size_bytes += leaf.size_bytes
            elif leaf is _MARK and type(container) is list and key == 0:
                self._is_marked = True
            else:
                raise RefusalError("encoding", f"a leaf of type {type(leaf).__name__}")
        if len(self._holders) > LARGE_MAX or self.size_bytes > ITEM_BYTES_MAX:
            raise RefusalError("size", f"{len(self._holders)} large arrays of {self.size_bytes} bytes")
        self._buffer: NDArray[np.uint8] | None = None
        self._digests: list[int] = []
        self._twin: list[int] | None = None
        """The digests of the array in whose memory this one lies, as far as it has come."""
        self._filled = self._next = self._begins = 0
        self._go_on()

    def add(self, frame: Bytes, digest: int) -> None:
        """Add the next frame. RefusalError, with nothing changed, if it is not the one that is wanted."""
        size = len(frame)
        self._check(frame, digest)
        large = self._holders[self._next][2]
        if self._filled and self._buffer is None:
            raise RefusalError("segment", "an array whose pieces lie partly in a segment")
        flat = frame
        is_kept = self.size_bytes <= VIEWED_BYTES_MAX or large.size_bytes < LENT_BYTES_MIN
        if large.size_bytes > CHUNK_BYTES or not is_kept:
            flat = self._gathered(frame, digest, large.size_bytes).data
        self._filled += size
        self._end(flat, large)

    def _gathered(self, frame: Bytes, digest: int, size_bytes: int) -> NDArray[np.uint8]:
        """The memory of an array, with its next frame in it."""
        end = self._filled + len(frame)
        if self._buffer is None:
            found = None if self._lately is None else self._lately.find(size_bytes, digest)
            self._buffer, self._twin = (_memory(size_bytes), None) if found is None else found
        elif self._twin is not None and self._twin[len(self._digests)] != digest:
            former, self._twin = self._buffer, None
            self._buffer = _memory(size_bytes)
            self._buffer[: self._filled] = former[: self._filled]
        self._digests.append(digest)
        if self._twin is None:
            self._buffer[self._filled : end] = frame
            if end == size_bytes and self._lately is not None:
                self._lately.add(self._buffer, self._digests)
        return self._buffer

    def add_lent(self, segment: int, offset: int, size: int, digest: int, lease_of: Callable[[int], Bytes]) -> None:
        """Add the next frame, which lies in a segment of another process.

        `lease_of(segment)` is its memory, for this item: the segment is given back when no view of it is left.
        RefusalError if it is not the one that is wanted, or its place is not in the one segment of its array.
        """
        if not self._filled:
            self._segment = segment
        if segment != self._segment:
            place = f"{size} bytes of segment {segment}"
            raise RefusalError("segment", f"{place}, the array lies in segment {self._segment}")
        memory = self._leases.get(segment)
        if memory is None:
            if len(self._leases) == LARGE_MAX:
                raise RefusalError("segment", f"an item in more than {LARGE_MAX} segments")
            memory = self._leases[segment] = lease_of(segment)
        if offset + size > len(memory):
            raise RefusalError("segment", f"{size} bytes at {offset} of segment {segment} of {len(memory)} bytes")
        self._check(memory[offset : offset + size], digest)
        if not self._filled:
            self._begins = offset
        elif self._buffer is not None or offset != self._begins + self._filled:
            raise RefusalError("segment", "an array whose pieces do not lie one after the other")
        large = self._holders[self._next][2]
        self._filled += size
        self._end(memory[self._begins : self._begins + self._filled], large)

    def _check(self, frame: Bytes, digest: int) -> None:
        """RefusalError for a frame of another size than is wanted, or another digest."""
        size = len(frame)
        if size != self.wanted:
            raise RefusalError("size", f"a frame of {size} bytes, {self.wanted} are due")
        if xxhash.xxh3_64_intdigest(frame) != digest:
            raise RefusalError("digest", f"a frame of {size} bytes is damaged")

    def _end(self, flat: Bytes, large: _Large) -> None:
        """Put a leaf that is complete into its place, and set `wanted`."""
        if self._filled == large.size_bytes:
            container, key, _ = self._holders[self._next]
            leaf = _leaf(flat, large.dtype, large.form, large.shape)
            if container is None:
                self.item = leaf
            else:
                container[key] = leaf
            self._next, self._filled, self._buffer, self._digests = self._next + 1, 0, None, []
        self._go_on()

    def _go_on(self) -> None:
        """Set `wanted` to the next frame, or complete the item."""
        if self._next < len(self._holders):
            self.wanted = min(CHUNK_BYTES, self._holders[self._next][2].size_bytes - self._filled)
        else:
            self.wanted = 0
            if self._is_marked:
                self.item = _with_tuples(self.item)


def _memory(size_bytes: int) -> NDArray[np.uint8]:
    try:
        return empty(size_bytes)
    except MemoryError as error:
        raise RefusalError("memory", f"an array of {size_bytes} bytes does not fit") from error


def _with_tuples(node: Any) -> Any:
    """The tree with marked lists turned back into tuples."""
    if type(node) is dict:
        return {key: _with_tuples(value) for key, value in node.items()}
    if type(node) is list:
        if node and node[0] is _MARK:
            return tuple(map(_with_tuples, node[1:]))
        return list(map(_with_tuples, node))
    return node
