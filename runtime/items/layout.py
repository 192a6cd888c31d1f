"""The form of items: pytrees of dicts, lists, tuples, scalars and arrays, and their frames on a wire.

It decides what an item may hold and how large it may be, which fields of it the runtime may read, and for which reasons
input of a peer is refused (`REASONS`). `encoding` encodes, `decoding` decodes. It does not decide when frames are sent,
in what order, or under what credit.

Theory of operation. The *spec* is the item's tree in msgpack, with three extensions: a small array whole, the shape and
dtype of a large one, and a mark that makes a list a tuple. Each large array follows as pieces of `CHUNK_BYTES` (the
last may be shorter), in the order of the tree, each with an xxh3 digest.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError

DEPTH_MAX: Final = 32
"""Deeper than any parameter tree seen in practice; bounds recursion."""

_PLAIN: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes})


def freeze(item: Any, depth: int = 0) -> None:
    """Make every NumPy array of an item read-only: payloads are immutable once they have left their body.

    ValueError if it is nested deeper than DEPTH_MAX.
    """
    kind = type(item)
    if kind is np.ndarray:
        item.setflags(write=False)
        return
    if kind in _PLAIN:
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


def fields(item: Any, names: Iterable[str]) -> dict[str, Any]:
    """The fields `names` of an item that is a dict and has them, tuples as lists; {} for any other item.

    LocalProtocolError for a value that tape or wire would not restore.
    """
    if type(item) is not dict and not isinstance(item, Mapping):
        return {}
    values = {}
    for name in names:
        if name not in item:
            continue
        try:
            values[name] = _listed(item[name])
        except TypeError:
            raise LocalProtocolError(
                f"an item's field {name!r}, which cores read: expected integers, texts, lists of them or None, "
                f"found {item[name]!r}. Convert NumPy's integers with int()."
            ) from None
    return values


def _listed(value: Any) -> Any:
    """A value as tape and wire restore it; TypeError if they cannot."""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if isinstance(value, list | tuple):
        return list(map(_listed, value))
    if value is None or type(value) is str:
        return value
    raise TypeError


REASONS: Final = {
    "truncated": "a first frame too short for its prefix",
    "oversized": "a frame, or a message, larger than any of ours",
    "magic": "bytes that are no message of ours",
    "version": "another protocol version",
    "run": "a host of another run",
    "fingerprint": "a host with another graph, configuration or sources",
    "stranger": "a message for another member, or from one that has left",
    "keyless": "a connection without keys, where there are keys",
    "unadmitted": "a connection with a key that is not admitted",
    "mistaken": "a connection of somebody who expected another machine, or has no key in truth",
    "cut": "a connection that ended, or said nothing for 5 s, before keys were shown",
    "expelled": "a message with a key that is not admitted any more",
    "machine": "a member that lives on another machine than the one whose key was shown, or on none that is known yet",
    "connection": "a connection number that is not newer, or not this one",
    "crossed": "both sides dialled; the other connection stays",
    "silence": "nothing heard for too long",
    "crowd": "more peers, edges or half-open connections than are allowed",
    "digest": "damaged bytes",
    "encoding": "no msgpack, or not of the agreed types",
    "message": "fields of the wrong number, type or range",
    "depth": "too many levels or leaves",
    "keys": "dict keys other than texts and integers",
    "dtype": "an unknown dtype, or too many axes",
    "shape": "a shape that does not fit the bytes",
    "size": "a size that is not the one announced, or too large",
    "memory": "announced arrays for which there is no memory",
    "segment": "memory that was not lent, or a descriptor that is none of ours",
    "state": "a message that has no place in this state of the connection",
    "sequence": "items out of order, twice, or missing",
    "credit": "more bytes, items or messages than were granted or sent",
}
"""Reason -> what it means."""


class RefusalError(RemoteProtocolError):
    """Input from a peer is not accepted; `reason` is a key of REASONS."""

    def __init__(self, reason: str, story: str) -> None:
        super().__init__(f"{reason}: {story}")
        assert reason in REASONS, reason
        self.reason = reason


Bytes: TypeAlias = memoryview
"""A frame, sent or received: one contiguous run of bytes, whose memory has another owner."""

CHUNK_BYTES: Final = 4 << 20
"""The largest raw frame. Above 32 MiB libzmq takes fresh pages for each frame and is 3 times slower; below 1 MiB the
cost per frame shows."""
SPEC_BYTES_MAX: Final = 1 << 20
"""Size of an item without its large arrays: LEAVES_MAX numbers and their places fit."""
LEAVES_MAX: Final = 1 << 16
LARGE_MAX: Final = 1 << 12
"""Arrays of one item with frames of their own: more than the tensors of any model that is sent whole."""
ITEM_BYTES_MAX: Final = 4 << 30
TEXT_BYTES_MAX: Final = 1 << 16
INLINE_BYTES_MAX: Final = 16 << 10
"""Larger arrays get frames of their own: copying 16 KiB twice costs about as much as one more frame, 2 us."""
AXES_MAX: Final = 32

_NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_EXTENDED: Final = (
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4),
)
DTYPES: Final = (*map(np.dtype, _NAMES), *map(np.dtype, _EXTENDED))
"""The dtypes of arrays; the index in this table is the code on the wire, so it only ever grows at the end."""

INLINE, LARGE, TUPLE = 1, 2, 3
"""The extensions."""
ARRAY, SCALAR, BLOB = 0, 1, 2
"""The forms of an extension's content."""
SHAPE: Final = struct.Struct("<BBB5x")
"""Code of the dtype, form, number of axes; padded so that the data after it is aligned to 8 bytes."""

PLAIN: Final[frozenset[type]] = frozenset(
    {type(None), bool, int, float, str, bytes, np.ndarray, *(dtype.type for dtype in DTYPES)}
)
"""Types of leaves that need no further inspection."""
CONTAINERS: Final = (dict, list, tuple, Mapping)
_KEYS: Final[frozenset[type]] = frozenset({str, int})

Odd: TypeAlias = tuple[Any, Any, Any]
"""(container, key, value) of a value in a tree that is neither a plain leaf, nor a list, nor a dict."""


def survey(node: Any, depth: int, left: int, odd: list[Odd]) -> int:
    """The number of leaves left after a container at `depth`; RefusalError for one too deep, too large or with odd
    keys.

    `odd` gets what is neither a plain leaf nor a list or dict, in the order of the tree. Items have few and short lists
    beside their arrays: checking each leaf here costs less than calling C code for each list, and lists of plain leaves
    cost no call.
    """
    left -= len(node)
    if left < 0 or depth > DEPTH_MAX:
        raise RefusalError("depth", f"more than {LEAVES_MAX} leaves or {DEPTH_MAX} levels")
    kind = type(node)
    is_mapping = kind is dict or (kind is not list and kind is not tuple and isinstance(node, Mapping))
    for key, value in node.items() if is_mapping else enumerate(node):
        if is_mapping and type(key) not in _KEYS:
            # Not repr: that of a key from a wire, a tuple in a tuple, may need more of the stack than reading it did.
            raise RefusalError("keys", f"keys that are neither str nor int: {reprlib.repr(list(node)[:4]):.80}")
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is list and depth < DEPTH_MAX:
            for leaf in value:
                if type(leaf) not in PLAIN:
                    break
            else:
                left -= len(value)
                continue
        if kind is not list and kind is not dict:
            odd.append((node, key, value))
            if not isinstance(value, CONTAINERS):
                continue
        left = survey(value, depth + 1, left, odd)
    if left < 0:
        raise RefusalError("depth", f"more than {LEAVES_MAX} leaves")
    return left
