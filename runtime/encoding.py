"""The way out: items made into specs and pieces.

Decides what gets a frame of its own, and what no wire can carry. Nothing large is copied: the pieces are views.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash
from numpy.typing import NDArray

from isthmus.runtime.codec import DEPTH_MAX
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.frames import (
    ARRAY,
    AXES_MAX,
    BLOB,
    CHUNK_BYTES,
    CONTAINERS,
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
    survey,
)
from isthmus.runtime.refusal import RefusalError

INLINE_BYTES_TOTAL: Final = 32 << 10
SPEC_BYTES_SMALL: Final = 48 << 10
"""A spec up to this holds no text that is too long, nor bytes that should have had a frame."""

_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}
_TUPLE_MARK: Final = msgpack.ExtType(TUPLE, b"")


class Encoded:
    """An item as `spec` and `pieces`; what it refers to must not be written any more."""

    __slots__ = ("_digests", "pieces", "sizes", "spec")

    def __init__(self, spec: bytes, pieces: list[Bytes]) -> None:
        self.spec = spec
        self.pieces = pieces
        self.sizes = list(map(len, pieces))
        self._digests: list[int | None] = [None] * len(pieces)

    def digest(self, index: int) -> int:
        """xxh3-64 of a piece, computed once however many peers it goes to."""
        known = self._digests[index]
        if known is None:
            known = self._digests[index] = xxhash.xxh3_64_intdigest(self.pieces[index])
        return known


class _Blob:
    """A `bytes` leaf that gets frames of its own."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value


class Encoder:
    """Makes frames of items. LocalProtocolError for an item that no wire can carry."""

    def __init__(self) -> None:
        self._packer = msgpack.Packer(default=self._leaf, strict_types=True)
        self._large: list[Bytes] = []
        self._inline_left = 0

    def encode(self, item: Any) -> Encoded:
        """An item as a spec and pieces. Arrays are taken as they are, not copied; JAX arrays by `np.asarray`."""
        _check_tree(item)
        spec = self._packed(item, INLINE_BYTES_TOTAL)
        if len(spec) > SPEC_BYTES_SMALL:
            spec = self._packed(_with_blobs(item), INLINE_BYTES_TOTAL)
        large, self._large = self._large, []
        if large or len(spec) > SPEC_BYTES_SMALL:
            _check_size(spec, large)
        if not large:
            return Encoded(spec, [])
        return Encoded(spec, [part[at : at + CHUNK_BYTES] for part in large for at in range(0, len(part), CHUNK_BYTES)])

    def small(self, values: Sequence[Any]) -> bytes:
        """A list of values that must fit into a header: their arrays are inside."""
        for value in values:
            if type(value) not in PLAIN:
                _check_tree(value)
        spec = self._packed(values, TEXT_BYTES_MAX)
        if self._large or len(spec) > TEXT_BYTES_MAX:
            raise _unsendable(f"at most {TEXT_BYTES_MAX} bytes of fields", f"{len(spec)} or more", "Name fewer fields.")
        return spec

    def _packed(self, item: Any, inline_bytes: int) -> bytes:
        self._inline_left = inline_bytes
        self._large = []
        try:
            spec: bytes = self._packer.pack(item)
        except (TypeError, ValueError, OverflowError) as error:
            self._packer.reset()
            allowed = "dicts, lists, tuples, None, bool, int of 64 bits, float, str, bytes and arrays"
            raise _unsendable(allowed, str(error), "Convert it in the body that emits it.") from error
        return spec

    def _leaf(self, leaf: Any) -> Any:
        """What msgpack does not know itself."""
        kind = type(leaf)
        if kind is np.ndarray:
            return self._array(leaf, ARRAY)
        if kind is tuple:
            return [_TUPLE_MARK, *leaf]
        if isinstance(leaf, Mapping):
            return dict(leaf)
        if kind is _Blob:
            return self._array(np.frombuffer(leaf.value, np.uint8), BLOB)
        if hasattr(leaf, "__array__"):
            return self._array(np.asarray(leaf), SCALAR if isinstance(leaf, np.generic) else ARRAY)
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")

    def _array(self, array: NDArray[Any], form: int) -> msgpack.ExtType:
        """What stands in the spec for an array: all of it, or its shape."""
        code = _CODES.get(array.dtype)
        axes = array.ndim
        if code is None or axes > AXES_MAX:
            raise TypeError(f"an array of {array.dtype} with {axes} axes")
        head = struct.pack(f"{SHAPE.format}{axes}Q", code, form, axes, *array.shape)
        size_bytes = array.nbytes
        if size_bytes <= INLINE_BYTES_MAX and size_bytes <= self._inline_left:
            self._inline_left -= size_bytes
            return msgpack.ExtType(INLINE, head + array.tobytes())
        self._large.append(_bytes_of(array))
        return msgpack.ExtType(LARGE, head)


def _bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of an array; a copy where they do not lie in one piece."""
    try:
        return array.data.cast("B")
    except (TypeError, ValueError, BufferError):  # They do not, or buffers do not know this dtype.
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _unsendable(expected: str, found: str, do: str) -> LocalProtocolError:
    return LocalProtocolError(f"an item for another host: expected {expected}, found {found}. {do}")


def _check_tree(item: Any) -> None:
    """LocalProtocolError for a tree too deep, too large or ill keyed."""
    try:
        if isinstance(item, CONTAINERS):
            survey(item, 1, LEAVES_MAX, [])
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
    if isinstance(node, Mapping):
        return {key: _with_blobs(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(map(_with_blobs, node))
    return node
