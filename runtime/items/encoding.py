"""Encoding: items made into specs and pieces, once, where they are emitted.

Decides what gets a frame of its own, what cannot be sent, and the digest that identifies an item. Nothing large is
copied: the pieces are views. What has been encoded is frozen.

Every item that leaves its host is walked here, beside an inner step and on cold caches, where the first call of any
library takes 15 to 60 us. So there is one walk, whose parts serve the wire and the tape alike.
"""

from __future__ import annotations

import struct
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


class Encoded(msgspec.Struct, frozen=True, weakref=True):
    """An item as `spec` and `pieces`, of `sizes` bytes, each with its xxh3-64 in `digests`.

    `digest` is that of the item: of its spec and of the digests of its pieces. The memory of the pieces must not be
    written any more.
    """

    spec: bytes
    pieces: list[Bytes]
    sizes: list[int]
    digests: list[int]
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
    walk = _Walk()
    try:
        tree = _native(item) if odd else item
        spec = walk.packed(tree)
        if len(spec) > SPEC_BYTES_SMALL:
            walk = _Walk()
            spec = walk.packed(_with_blobs(tree))
    except (TypeError, ValueError, OverflowError) as error:
        allowed = "dicts, lists, tuples, None, bool, int of 64 bits, float, str, bytes and arrays"
        raise _unsendable(allowed, str(error), "Convert it in the body that emits it.") from error
    large = walk.large
    if large or len(spec) > SPEC_BYTES_SMALL:
        _check_size(spec, large)
    if not large:
        return Encoded(spec, [], [], [], xxhash.xxh3_64_intdigest(spec))
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
    """One walk over a tree: the leaves that get frames of their own, and the remaining budget of inline bytes."""

    __slots__ = ("_inline_left", "large")

    def __init__(self) -> None:
        self.large: list[Bytes] = []
        self._inline_left = INLINE_BYTES_TOTAL

    def packed(self, tree: Any) -> bytes:
        return msgspec.msgpack.Encoder(enc_hook=self._leaf).encode(tree)

    def _leaf(self, leaf: Any) -> Ext:
        """The extension for a leaf that msgpack does not know."""
        kind = type(leaf)
        if kind is np.ndarray:
            leaf.setflags(write=False)
            return self._array(leaf, ARRAY)
        if kind is _Blob:
            return self._array(np.frombuffer(leaf.value, np.uint8), BLOB)
        return self._array(np.asarray(leaf), SCALAR if isinstance(leaf, np.generic) else ARRAY)

    def _array(self, array: NDArray[Any], form: int) -> Ext:
        """The spec's entry for an array: all of it, or its shape."""
        code = _CODES.get(array.dtype)
        axes = array.ndim
        if code is None or axes > AXES_MAX:
            raise TypeError(f"an array of {array.dtype} with {axes} axes")
        head = struct.pack(f"{SHAPE.format}{axes}Q", code, form, axes, *array.shape)
        size_bytes = array.nbytes
        if size_bytes <= INLINE_BYTES_MAX and size_bytes <= self._inline_left:
            self._inline_left -= size_bytes
            return Ext(INLINE, head + array.tobytes())
        self.large.append(_bytes_of(array))
        return Ext(LARGE, head)


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
