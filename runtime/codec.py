"""Items: pytrees of dicts, lists, tuples, scalars and arrays, and what the runtime may know of them.

An array is anything with `shape`, `dtype` and `nbytes`; bodies give NumPy arrays to everything that leaves their host.

Every item that is emitted is walked here, beside an inner step and on cold caches: so msgpack's C code walks those that
leave their host (a report of a learner: 320 Python calls less), and lists of plain scalars cost the others no call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash

from isthmus.runtime.errors import LocalProtocolError

DEPTH_MAX: Final = 32
"""Deeper than any parameter tree seen in practice; bounds recursion."""

_PLAIN: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes})
_ARRAY, _OBJECT = 1, 2
_BUFFER_BYTES: Final = 4096
"""Most items have a smaller structure; the buffer grows for the others."""


class Seal(NamedTuple):
    """What an item takes on its way, nearly: the bytes of its arrays and of its structure; and its xxh3-64."""

    size_bytes: int
    digest: int


def freeze(item: Any, depth: int = 0) -> None:
    """Make every NumPy array of an item read-only: payloads are immutable once they have left their body.

    ValueError if it is nested deeper than DEPTH_MAX.
    """
    kind = type(item)
    if kind is np.ndarray:
        item.setflags(write=False)
        return
    values: Collection[Any]
    if kind is list or kind is tuple:
        values = item
    elif kind is dict or isinstance(item, Mapping):
        values = item.values()
    elif isinstance(item, list | tuple):
        values = item
    else:
        return
    if depth >= DEPTH_MAX and len(values):
        raise ValueError(f"an item is nested deeper than {DEPTH_MAX} levels")
    for value in values:
        if type(value) not in _PLAIN:
            freeze(value, depth + 1)


def seal(item: Any) -> Seal:
    """Freeze an item, and take its size and its digest: of its arrays (dtype, shape, bytes), its scalars, and how they
    are nested and named. Tuples are as lists, and any mapping is as a dict.

    What is none of these, and integers of more than 64 bits, are told apart by their `repr`. ValueError for an item
    that has no end.
    """
    arrays = _Arrays()
    packer = msgpack.Packer(default=arrays.leaf, strict_types=True, buf_size=_BUFFER_BYTES)
    structure: bytes = packer.pack(item)
    state = arrays.state
    if state is None:
        return Seal(len(structure), xxhash.xxh3_64_intdigest(structure))
    state.update(structure)
    return Seal(arrays.size_bytes + len(structure), state.intdigest())


class _Arrays:
    """Those of an item that were met so far: their bytes, and the state of the digest, if there were any."""

    __slots__ = ("size_bytes", "state")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.state: xxhash.xxh3_64 | None = None

    def leaf(self, leaf: Any) -> Any:
        """What stands in the structure for something that msgpack does not know."""
        if type(leaf) is tuple:
            return list(leaf)
        is_ours = type(leaf) is np.ndarray
        if is_ours or (hasattr(leaf, "nbytes") and hasattr(leaf, "shape")):
            if is_ours:
                leaf.setflags(write=False)
            if self.state is None:
                self.state = xxhash.xxh3_64()
            self.size_bytes += leaf.nbytes
            try:
                self.state.update(leaf)
            except (TypeError, ValueError, BufferError):  # Not in one piece, not here, or of a dtype of its own.
                self.state.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
            return [msgpack.ExtType(_ARRAY, _name(leaf.dtype)), list(leaf.shape)]
        if isinstance(leaf, Mapping):
            return dict(leaf)
        if isinstance(leaf, list | tuple):
            return list(leaf)
        return msgpack.ExtType(_OBJECT, repr(leaf).encode())


@cache
def _name(dtype: np.dtype[Any]) -> bytes:
    return str(dtype).encode()


def fields(item: Any, names: Iterable[str]) -> dict[str, Any]:
    """The fields `names` of an item that is a dict and has them; {} for any other item.

    LocalProtocolError for a value that would not come back from tape or wire as it was.
    """
    if type(item) is not dict and not isinstance(item, Mapping):
        return {}
    found = {}
    for name in names:
        if name not in item:
            continue
        value = found[name] = item[name]
        if not _is_plain(value):
            raise LocalProtocolError(
                f"an item's field {name!r}, which cores read: expected integers, texts, lists of them or None, "
                f"found {value!r}. Convert NumPy's integers with int()."
            )
    return found


def _is_plain(value: Any) -> bool:
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) is str
