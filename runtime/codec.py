"""Items: pytrees of dicts, lists, tuples, scalars and arrays, and what the runtime may know of them.

An array is anything with `shape`, `dtype` and `nbytes`; bodies give NumPy arrays to everything that leaves their host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeGuard

import numpy as np
import xxhash

from isthmus.runtime.errors import LocalProtocolError

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
    """xxh3-64 of an item: its arrays (dtype, shape, bytes), its scalars, and how they are nested and named."""
    state = xxhash.xxh3_64()
    _update(state, item, 0)
    return state.intdigest()


def _update(state: xxhash.xxh3_64, item: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"an item is nested deeper than {DEPTH_MAX} levels")
    if isinstance(item, Mapping):
        state.update(f"{{{len(item)};".encode())
        for name, value in item.items():
            state.update(f"{name!r};".encode())
            _update(state, value, depth + 1)
    elif isinstance(item, list | tuple):
        state.update(f"[{len(item)};".encode())
        for value in item:
            _update(state, value, depth + 1)
    elif is_array(item):
        array = np.ascontiguousarray(item)
        state.update(f"{array.dtype}{item.shape};".encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    else:
        state.update(f"{item!r};".encode())


def fields(item: Any, names: Iterable[str]) -> dict[str, Any]:
    """The fields `names` of an item that is a dict and has them; {} for any other item.

    LocalProtocolError for a value that would not come back from tape or wire as it was.
    """
    if not isinstance(item, Mapping):
        return {}
    found = {name: item[name] for name in names if name in item}
    for name, value in found.items():
        if not _is_plain(value):
            raise LocalProtocolError(
                f"an item's field {name!r}, which cores read: expected integers, texts, lists of them or None, "
                f"found {value!r}. Convert NumPy's integers with int()."
            )
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    return value is None or type(value) is str or (type(value) is int and -(1 << 63) <= value < 1 << 63)
