"""Encoding: items made into specs and pieces, once, where they are emitted.

Decides what gets a frame of its own, what cannot be sent, and the digest that identifies an item. Nothing large is
copied: the pieces are views. What has been encoded is frozen.

Every item that leaves its host is walked here, beside an inner step and on cold caches, where the first call of any
library takes 15 to 60 us. So there is one walk, whose parts serve the wire and the tape alike.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from msgspec.msgpack import Ext
from numpy.typing import NDArray

from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.items.layout import (
    ARRAY,
    AXES_MAX,
    BLOB,
    CHUNK_BYTES,
    CONTAINERS,
    DEPTH_MAX,
    DTYPES,
    INLINE,
    INLINE_BYTES_MAX,
    ITEM_BYTES_MAX,
    LARGE,
    LARGE_MAX,
    LEAVES_MAX,
    PLAIN,
    SCALAR,
    SHAPE,
    SPEC_BYTES_MAX,
    TEXT_BYTES_MAX,
    TUPLE,
    Bytes,
    Odd,
    RefusalError,
    survey,
)

INLINE_BYTES_TOTAL: Final = 32 << 10
SPEC_BYTES_SMALL: Final = 48 << 10
"""A spec of at most this size contains no text that is too long, nor bytes that need a frame of their own."""

_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}
_TUPLE_MARK: Final = Ext(TUPLE, b"")
_HEADS: Final = tuple(struct.Struct(f"{SHAPE.format}{axes}Q") for axes in range(AXES_MAX + 1))
"""By the number of axes: the entry of an array in a spec, without its elements."""


class Encoded(msgspec.Struct, frozen=True, weakref=True):
    """An item as `spec` and `pieces`, of `sizes` bytes, each with its xxh3-64 in `digests`.

    `digest` is that of the item: of its spec and of the digests of its pieces. The memory of the pieces must not be
    written any more.
    """

    spec: bytes
    pieces: Sequence[Bytes]
    sizes: Sequence[int]
    digests: Sequence[int]
    digest: int

    @property
    def size_bytes(self) -> int:
        """Size of the item on the wire, nearly."""
        return len(self.spec) + sum(self.sizes)


def encode(item: Any) -> Encoded:
    """Freeze an item and encode it. Arrays are used as they are, not copied; JAX arrays through `np.asarray`.

    LocalProtocolError for one that cannot be sent.
    """
    kind = type(item)
    odd: list[Odd] = []
    if kind is dict or kind is list:
        _survey(item, odd)
    elif kind not in PLAIN:
        odd.append((None, None, item))
        if isinstance(item, CONTAINERS):
            _survey(item, odd)
    walk = _of_thread.walk
    try:
        tree = _native(item) if odd else item
        spec, large = walk.packed(tree)
        if len(spec) > SPEC_BYTES_SMALL:
            spec, large = walk.packed(_with_blobs(tree))
    except (TypeError, ValueError, OverflowError) as error:
        allowed = "dicts, lists, tuples, None, bool, int of 64 bits, float, str, bytes and arrays"
        raise _unsendable(allowed, str(error), "Convert it in the body that emits it.") from error
    if large or len(spec) > SPEC_BYTES_SMALL:
        _check_size(spec, large)
    if not large:
        return Encoded(spec, (), (), (), xxhash.xxh3_64_intdigest(spec))
    pieces = [part[at : at + CHUNK_BYTES] for part in large for at in range(0, len(part), CHUNK_BYTES)]
    digests = list(map(xxhash.xxh3_64_intdigest, pieces))
    digest = xxhash.xxh3_64_intdigest(struct.pack(f"<{len(digests)}Q", *digests) + spec)
    return Encoded(spec, pieces, list(map(len, pieces)), digests, digest)


class _Blob:
    """A `bytes` leaf that gets frames of its own."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value


class _Walk:
    """Walks over trees, one after the other: the leaves that get frames of their own, and what is left of the inline
    bytes."""

    __slots__ = ("_encode", "_inline_left", "_large")

    def __init__(self) -> None:
        self._large: list[Bytes] = []
        self._inline_left = 0
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._leaf).encode

    def packed(self, tree: Any) -> tuple[bytes, list[Bytes]]:
        """The spec of a tree, and the bytes of its leaves that get frames of their own."""
        large: list[Bytes] = []
        self._large, self._inline_left = large, INLINE_BYTES_TOTAL
        try:
            return self._encode(tree), large
        finally:
            self._large = []  # It outlives the item.

    def _leaf(self, leaf: Any) -> Ext:
        """The extension for a leaf that msgpack does not know."""
        if type(leaf) is np.ndarray:
            leaf.setflags(write=False)
            return self._array(leaf, ARRAY)
        if type(leaf) is _Blob:
            return self._array(np.frombuffer(leaf.value, np.uint8), BLOB)
        return self._array(np.asarray(leaf), SCALAR if isinstance(leaf, np.generic) else ARRAY)

    def _array(self, array: NDArray[Any], form: int) -> Ext:
        """The spec's entry for an array: all of it, or its shape."""
        code, shape = _CODES.get(array.dtype), array.shape
        axes = len(shape)
        if code is None or axes > AXES_MAX:
            raise TypeError(f"an array of {array.dtype} with {axes} axes")
        head = _HEADS[axes].pack(code, form, axes, *shape)
        size_bytes = array.nbytes
        if size_bytes <= INLINE_BYTES_MAX and size_bytes <= self._inline_left:
            self._inline_left -= size_bytes
            return Ext(INLINE, head + array.tobytes())
        self._large.append(_bytes_of(array))
        return Ext(LARGE, head)


class _OfThread(threading.local):
    """An encoder costs more to make than to use for a small item, and serves one walk at a time."""

    def __init__(self) -> None:
        self.walk = _Walk()


_of_thread: Final = _OfThread()


def _native(node: Any) -> Any:
    """The tree in dicts and lists; TypeError for what is neither tree nor array. A list that was a tuple is marked."""
    kind = type(node)
    if kind in PLAIN:
        return node
    if kind is list:
        return list(map(_native, node))
    if kind is tuple:
        return [_TUPLE_MARK, *map(_native, node)]
    if isinstance(node, Mapping):
        return {key: _native(value) for key, value in node.items()}
    if hasattr(node, "__array__"):
        return node
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")


def _bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of an array; a copy where they are not contiguous."""
    try:
        return array.data.cast("B")
    except (TypeError, ValueError, BufferError):  # Not contiguous, or a dtype that buffers do not know.
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _unsendable(expected: str, found: str, remedy: str) -> LocalProtocolError:
    return LocalProtocolError(f"an item for another host: expected {expected}, found {found}. {remedy}")


def _survey(item: Any, odd: list[Odd]) -> None:
    """LocalProtocolError for a tree too deep, too large or with odd keys; `odd` gets the leaves that msgpack lacks."""
    try:
        survey(item, 1, LEAVES_MAX, odd)
    except RefusalError as beyond:
        allowed = f"at most {LEAVES_MAX} leaves, {DEPTH_MAX} levels, and keys that are str or int"
        raise _unsendable(allowed, str(beyond), "Use arrays, and such keys.") from beyond


def _check_size(spec: bytes, large: Sequence[Bytes]) -> None:
    """LocalProtocolError for an item of too many bytes or arrays."""
    size_bytes = sum(map(len, large))
    if len(spec) > SPEC_BYTES_MAX or len(large) > LARGE_MAX or size_bytes > ITEM_BYTES_MAX:
        raise _unsendable(
            f"at most {SPEC_BYTES_MAX} bytes of small things, {LARGE_MAX} large arrays, {ITEM_BYTES_MAX} bytes",
            f"{len(spec)} bytes, {len(large)} arrays, {size_bytes} bytes",
            "Emit it in several items, or its numbers as arrays.",
        )


def _with_blobs(node: Any) -> Any:
    """The same tree with long bytes marked as large; LocalProtocolError for a text that is too long."""
    if isinstance(node, bytes) and len(node) > INLINE_BYTES_MAX:
        return _Blob(node)
    if isinstance(node, str) and len(node.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        raise _unsendable(f"texts of at most {TEXT_BYTES_MAX} bytes", f"{len(node)} characters", "Shorten it.")
    if isinstance(node, dict):
        return {key: _with_blobs(value) for key, value in node.items()}
    if isinstance(node, list):
        return list(map(_with_blobs, node))
    return node
