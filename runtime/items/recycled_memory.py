"""Memory for arrays that are assembled from several frames: lent, and reused once nothing refers to it.

Decides where that memory comes from. Does not decide how long an item lives: a block comes back when its last view is
collected, never before, and never by an explicit call.

Theory of operation. The kernel clears the pages of new memory when they are first touched; here that makes a copy of 64
MiB 2 to 4 times slower with large pages, and 15 times slower without. So an array stands on a *lease*, an object that
is no array: NumPy cuts a chain of views short at the first such object, and every view therefore keeps it alive. When
the lease is collected, in whatever thread, its block goes to a shelf of a few, where the next array finds it.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Final

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES: Final = 64
"""The width of a cache line and of the widest vector; JAX takes such arrays without a copy."""
SHELF_BYTES_MAX: Final = 144 << 20
"""Bytes that may lie unused: two fragments of 64 MiB, and what aligns them. With 512 MiB each host of gpt-124m held as
much as its parameters unused."""
WASTE_MAX: Final = 4
"""A block is lent for an array that leaves at most a fourth of it unused."""

_lock = threading.RLock()
"""Reentrant: a collection inside `_take` may end another lease."""
_shelf: list[NDArray[np.uint8]] = []


def empty(size_bytes: int) -> NDArray[np.uint8]:
    """uint8[size_bytes] on a 64-byte boundary, not initialized, in no other array's memory. May raise MemoryError."""
    needed = size_bytes + ALIGNMENT_BYTES
    block = _take(needed)
    if block is None:
        block = np.empty(needed, np.uint8)
    lease = (ctypes.c_uint8 * len(block)).from_buffer(block.data)
    weakref.finalize(lease, _put, block).atexit = False
    return np.frombuffer(memoryview(lease), np.uint8, size_bytes, -block.ctypes.data % ALIGNMENT_BYTES)


def _take(needed: int) -> NDArray[np.uint8] | None:
    with _lock:
        for index, block in enumerate(_shelf):
            if needed <= len(block) <= needed + needed // WASTE_MAX:
                return _shelf.pop(index)
    return None


def _put(block: NDArray[np.uint8]) -> None:
    with _lock:
        _shelf.append(block)
        while sum(map(len, _shelf)) > SHELF_BYTES_MAX:
            del _shelf[0]
