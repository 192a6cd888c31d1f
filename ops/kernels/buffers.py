"""New float32 buffers for payloads: aligned to 64 bytes, and recycled once all references are gone.

Decides where the memory of a new payload comes from. Does not decide when a payload dies: that is when its last
reference goes. Two kinds of payloads are written into: values to which nobody but their owner has a reference (`Lent`),
and those that their maker has given away (`given`, `taken`).
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Float32: TypeAlias = NDArray[np.float32]

_ALIGNMENT_BYTES = 64
# Below this malloc reuses its own memory, and clearing pages costs less than the lease.
_LEASE_BYTES_MIN = 2**20
# Free blocks kept: what one outer step releases and the next merge takes (the fragment before, and its published values
# where updates are coded).
_SHELF_COUNT_MAX = 2
# Of smaller blocks a full shelf is at most 96 MiB.
_LARGE_BYTES = 2**25
_IDLE_SECONDS = 2.0


class _Shelf:
    """Free blocks of memory, the longest unused dropped first, and large ones when nothing has taken them for long."""

    def __init__(self) -> None:
        # Reentrant, because a collection inside `take` may run the finalizer of another lease.
        self._lock = threading.RLock()
        self._blocks: list[tuple[NDArray[np.uint8], float]] = []
        """Free blocks, and since when."""
        self._is_looking = False

    def claim(self, size_bytes: int) -> NDArray[np.uint8]:
        """A block of at least `size_bytes`: the smallest on the shelf, if at most a quarter larger, or new memory."""
        with self._lock:
            fitting = [block for block, _ in self._blocks if size_bytes <= len(block) <= size_bytes + size_bytes // 4]
            if fitting:
                best = min(fitting, key=len)
                self._blocks = [each for each in self._blocks if each[0] is not best]
                return best
        return _mapped(size_bytes) if size_bytes > _LARGE_BYTES else np.empty(size_bytes, np.uint8)

    def put(self, block: NDArray[np.uint8]) -> None:
        with self._lock:
            self._blocks = [*self._blocks[-(_SHELF_COUNT_MAX - 1) :], (block, time.monotonic())]
            if len(block) > _LARGE_BYTES and not self._is_looking:
                self._look_later()

    def _look_later(self) -> None:
        looking = threading.Timer(_IDLE_SECONDS / 2, self._look)
        looking.daemon = True
        looking.start()
        self._is_looking = True

    def _look(self) -> None:
        """Drop the large blocks that have been free for long; look again while there are others."""
        with self._lock:
            now = time.monotonic()
            self._blocks = [
                (block, since)
                for block, since in self._blocks
                if len(block) <= _LARGE_BYTES or now - since < _IDLE_SECONDS
            ]
            self._is_looking = False
            if any(len(block) > _LARGE_BYTES for block, _ in self._blocks):
                self._look_later()


def _mapped(size_bytes: int) -> NDArray[np.uint8]:
    """Memory that goes back to the kernel with its last reference.

    Not malloc's: where its heap has a free range of that size, malloc takes the block from there, and keeps it there.
    """
    block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # A kernel without huge pages. NumPy asks for them, too.
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)


_shelf = _Shelf()


def _is_lent(size: int) -> bool:
    """Whether the memory of float32[size] is lent. NumPy's own is as good for less, but not aligned."""
    return 4 * size >= _LEASE_BYTES_MIN


def empty(size: int) -> Float32:
    """A new float32[size] on a 64-byte boundary, not initialized, in no other array's memory.

    Payloads are immutable, so each merge and each outer step writes to new buffers. Fresh memory costs 0.1 to 0.5 CPU
    seconds per GB (the kernel clears every page), as much as the merge itself. So memory of 1 MiB and more is lent: the
    array stands on a lease object, which numpy, jax and zmq keep alive together with every view of the array, and when
    the lease is collected its memory goes back to a short shelf. There is no explicit release, so a buffer that is
    still referenced cannot be written again. A bare address (`array.ctypes.data`) is not a reference. 64 bytes are a
    cache line and the widest vector; jax then uses a buffer without a copy.
    """
    size_bytes = 4 * size
    if not _is_lent(size):
        block = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
        return block[(start := -block.ctypes.data % _ALIGNMENT_BYTES) : start + size_bytes].view(np.float32)
    return _on(_Memory(size_bytes + _ALIGNMENT_BYTES).lease(), size)


def copied(array: Float32) -> Float32:
    """A new buffer with these values."""
    copy = empty(array.size)
    np.copyto(copy, array)
    return copy


class _Memory:
    """A block of the shelf, until neither a lease of it nor its owner is left."""

    def __init__(self, size_bytes: int) -> None:
        self._block = _shelf.claim(size_bytes)
        weakref.finalize(self, _shelf.put, self._block).atexit = False

    def lease(self) -> Any:
        """A new object of which arrays are views: it lasts as long as any of them."""
        lease: Any = (ctypes.c_uint8 * len(self._block)).from_buffer(self._block.data)
        lease.memory, lease.is_given = self, False
        return lease


def _on(lease: Any, size: int) -> Float32:
    """The float32[size] on a lease.

    numpy shortens chains of views only down to the first base that is no array: every view keeps the lease.
    """
    array: Float32 = np.frombuffer(memoryview(lease), np.float32, size, -ctypes.addressof(lease) % _ALIGNMENT_BYTES)
    return array


def _lease_of(array: Any) -> Any:
    """The lease on which an array stands that `empty` or `Lent` has made; None for any other, and for a part of one."""
    whole = array
    while isinstance(array, np.ndarray):
        array = array.base
    lease: Any = array.obj if isinstance(array, memoryview) else None
    if not isinstance(getattr(lease, "memory", None), _Memory):
        return None
    at = ctypes.addressof(lease)
    return lease if whole.ctypes.data == at + -at % _ALIGNMENT_BYTES else None


# -- memory that is written again --------------------------------------------------------------------------------------


def given(array: Float32) -> Float32:
    """The array, which its maker gives away: whoever takes it first may write into it, and nobody else reads it."""
    if (lease := _lease_of(array)) is not None:
        lease.is_given = True
    return array


def taken(array: Float32) -> Float32:
    """These values in memory to write into: their own if they were given away, once; else they are copied."""
    lease = _lease_of(array)
    if lease is None or not lease.is_given:
        return copied(array)
    lease.is_given = False
    return _on(lease, array.size)


@final
class Lent:
    """Values, `array`, which their owner lends out, and changes in their own memory where nobody has them any more."""

    def __init__(self, size: int) -> None:
        """float32[size], not initialized."""
        self._size = size
        self._memory = _Memory(4 * size + _ALIGNMENT_BYTES) if _is_lent(size) else None
        self.array = empty(size) if self._memory is None else _on(self._memory.lease(), size)

    def changing(self) -> Lent:
        """The same values to change, in this memory; in new memory as long as anybody else has a reference to them.

        So who is sent them, or reads them in another thread, never sees others.
        """
        lease = None
        if self._memory is not None:
            alive = weakref.ref(_lease_of(self.array))
            del self.array
            # Nobody can begin to read what nobody reads: a loose reference dies with the lease.
            lease = alive()
            self.array = _on(self._memory.lease() if lease is None else lease, self._size)
            if lease is None:
                return self
        other = Lent(self._size)
        np.copyto(other.array, self.array)
        return other


@final
class Loose:
    """A reference to an array which does not keep its owner from writing there: there is nothing then any more."""

    def __init__(self, array: Float32) -> None:
        lease = _lease_of(array)
        self._size, self._array = array.size, array if lease is None else None
        self._lease = None if lease is None else weakref.ref(lease)

    def get(self) -> Float32 | None:
        """The array, from now on as any reference; None if it is gone."""
        lease = None if self._lease is None else self._lease()
        if lease is None:
            return self._array
        array = _on(lease, self._size)
        array.flags.writeable = False
        return array
