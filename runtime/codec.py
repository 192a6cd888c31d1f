"""Items: pytrees of dicts, lists, tuples, scalars and arrays, and what the runtime may know of them.

An array is anything with `shape`, `dtype` and `nbytes`; bodies give NumPy arrays to everything that leaves their host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeGuard

import numpy as np
import xxhash

DEPTH_MAX: Final = 32
"""Deeper than any parameter tree seen in practice; bounds recursion."""


class Array(Protocol):
    """What the runtime needs of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""


def is_array(leaf: Any) -> TypeGuard[Array]:
    """Whether a leaf is an array (of NumPy, JAX or anything alike)."""
    return hasattr(leaf, "nbytes") and hasattr(leaf, "shape")


def leaves(item: Any, depth: int = 0) -> Iterator[Any]:
    """The leaves of an item, dicts in insertion order; ValueError if it is nested deeper than DEPTH_MAX."""
    if depth > DEPTH_MAX:
        raise ValueError(f"an item is nested deeper than {DEPTH_MAX} levels")
    if isinstance(item, Mapping):
        for value in item.values():
            yield from leaves(value, depth + 1)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from leaves(value, depth + 1)
    else:
        yield item


def size_bytes(item: Any) -> int:
    """Bytes of all arrays of an item; scalars and texts count eight."""
    return sum(leaf.nbytes if is_array(leaf) else 8 for leaf in leaves(item))


def freeze(item: Any) -> None:
    """Make every NumPy array of an item read-only: payloads are immutable once they have left their body."""
    for leaf in leaves(item):
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False


def digest(item: Any) -> int:
    """xxh3-64 of an item's arrays (shape, dtype, bytes) and scalars, in order of its leaves."""
    state = xxhash.xxh3_64()
    for leaf in leaves(item):
        if is_array(leaf):
            array = np.ascontiguousarray(leaf)
            state.update(f"{array.dtype}{array.shape}".encode())
            state.update(array.reshape(-1).view(np.uint8).data)
        else:
            state.update(repr(leaf).encode())
    return state.intdigest()
