"""Items as frames: a msgpack *spec* with the small things in it, and raw frames for the large arrays.

Decides how an item looks on a wire and what is accepted from one. Does not decide when frames are sent, in what order,
or under what credit.

Theory of operation. The spec is the item's tree in msgpack, with three extensions: a small array whole, the shape and
dtype of a large one, and a mark that makes a list a tuple. Each large array follows as pieces of `CHUNK_BYTES` (the
last may be shorter), in the order of the tree, each with an xxh3 digest. So an array of at most one chunk lies in one
frame, and its receiver reads it there without a copy; a larger one is copied together while its pieces come, each while
it is still in cache. The arrays of a large item are copied, too: its frames would keep more memory from libzmq than
malloc leaves mapped, and each item would come in on pages that the kernel must clear first.

What comes in is hostile until shown otherwise. Nothing is built before C code has skipped over the whole spec without
allocating: an announced list of a million that is not there costs nothing. (In a small spec lists may announce no
more entries than it has bytes, and 512 lists may lie in each other: that is 8 MiB for a moment.) Depth, leaves, key
types, dtypes and shapes are checked next, sizes before memory is taken for them. There is no pickle, and no code is
named. Every fault is a `RefusalError` with a named reason.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import ml_dtypes
import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash
from numpy.typing import NDArray

from isthmus.runtime.codec import DEPTH_MAX
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.leases import empty
from isthmus.runtime.refusal import RefusalError

Bytes: TypeAlias = memoryview
"""A frame, or what is to be one: one flat run of bytes that somebody else keeps."""

CHUNK_BYTES: Final = 4 << 20
"""The largest raw frame. Above 32 MiB libzmq takes fresh pages for each frame and is 3 times slower; below 1 MiB the
cost per frame shows."""
SPEC_BYTES_MAX: Final = 1 << 20
"""Of an item without its large arrays: LEAVES_MAX numbers and their places fit."""
LEAVES_MAX: Final = 1 << 16
LARGE_MAX: Final = 1 << 12
"""Arrays of one item that travel in frames of their own: more than the tensors of any model that is sent whole."""
ITEM_BYTES_MAX: Final = 4 << 30
TEXT_BYTES_MAX: Final = 1 << 16
INLINE_BYTES_MAX: Final = 16 << 10
"""Larger arrays get frames of their own: copying 16 KiB twice costs about as much as one more frame, 2 us."""
VIEWED_BYTES_MAX: Final = 8 << 20
"""Of a larger item no frame is kept. Measured: receiving 16 to 64 MiB in frames that are kept takes 0.5-0.6 CPU seconds
a GB (now and then 0.3), copying them 0.35, whatever the size; up to 8 MiB keeping them takes 0.26."""
LENT_BYTES_MIN: Final = 1 << 20
"""Smaller frames are kept in any case; their memory is not given back to the kernel."""
INLINE_BYTES_TOTAL: Final = 32 << 10
AXES_MAX: Final = 32
SPEC_BYTES_SMALL: Final = 48 << 10
"""A spec up to this holds no text that is too long, nor bytes that should have had a frame."""

SPEC_BYTES_PLAIN: Final = 2 << 10
"""A spec up to this is decoded at once; most items have a smaller one."""

_NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_EXTENDED: Final = (
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4),
)
DTYPES: Final = (*map(np.dtype, _NAMES), *map(np.dtype, _EXTENDED))
"""What arrays may hold; the place in this table is the code on the wire, so it only ever grows at the end."""

_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}
_SCALARS: Final = frozenset(dtype.type for dtype in DTYPES)
_PLAIN: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes, np.ndarray}) | _SCALARS
_KEYS: Final[frozenset[type]] = frozenset({str, int})
_CONTAINERS: Final = (list, dict, tuple, Mapping)

_INLINE, _LARGE, _TUPLE = 1, 2, 3
_ARRAY, _SCALAR, _BLOB = 0, 1, 2
_SHAPE: Final = struct.Struct("<BBB5x")
"""Code of the dtype, form, number of axes; padded so that what follows lies on 8 bytes."""


class Large:
    """A leaf whose bytes come in frames of their own."""

    __slots__ = ("dtype", "form", "shape", "size_bytes")

    def __init__(self, dtype: np.dtype[Any], form: int, shape: tuple[int, ...], size_bytes: int) -> None:
        self.dtype, self.form, self.shape, self.size_bytes = dtype, form, shape, size_bytes


class _Mark:
    """The first element of a list that is a tuple."""


class _Blob:
    """A `bytes` leaf that gets frames of its own."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value


_MARK: Final = _Mark()
_TUPLE_MARK: Final = msgpack.ExtType(_TUPLE, b"")


class Encoded:
    """An item as `spec` and `pieces`; what it refers to must not be written any more."""

    __slots__ = ("_digests", "pieces", "sizes", "spec")

    def __init__(self, spec: bytes, pieces: list[Bytes]) -> None:
        self.spec = spec
        self.pieces = pieces
        self.sizes = [len(piece) for piece in pieces]
        self._digests: list[int | None] = [None] * len(pieces)

    def digest(self, index: int) -> int:
        """xxh3-64 of a piece, computed once however many peers it goes to."""
        known = self._digests[index]
        if known is None:
            known = self._digests[index] = xxhash.xxh3_64_intdigest(self.pieces[index])
        return known


def pieces_count(size_bytes: int) -> int:
    """How many frames a large leaf of so many bytes has."""
    return -(-size_bytes // CHUNK_BYTES)


# -- out ---------------------------------------------------------------------------------------------------------------


class Encoder:
    """Makes frames of items. LocalProtocolError for an item that no wire can carry."""

    def __init__(self) -> None:
        self._pack = msgpack.Packer(default=self._leaf, strict_types=True)
        self._large: list[Bytes] = []
        self._inline_left = 0

    def encode(self, item: Any) -> Encoded:
        """An item as a spec and pieces. Arrays are taken as they are, not copied; JAX arrays by `np.asarray`."""
        _check_tree(item)
        spec = self._packed(item, INLINE_BYTES_TOTAL)
        if len(spec) > SPEC_BYTES_SMALL:
            spec = self._packed(_with_blobs(item), INLINE_BYTES_TOTAL)
        large, self._large = self._large, []
        size_bytes = sum(map(len, large))
        if len(spec) > SPEC_BYTES_MAX or len(large) > LARGE_MAX or size_bytes > ITEM_BYTES_MAX:
            raise _unsendable(
                f"at most {SPEC_BYTES_MAX} bytes of small things, {LARGE_MAX} large arrays, {ITEM_BYTES_MAX} bytes",
                f"{len(spec)} bytes, {len(large)} arrays, {size_bytes} bytes",
                "Emit it in several items, or its numbers as arrays.",
            )
        return Encoded(spec, [part[at : at + CHUNK_BYTES] for part in large for at in range(0, len(part), CHUNK_BYTES)])

    def small(self, value: Any) -> bytes:
        """A value that must fit into a header: its arrays are inside."""
        _check_tree(value)
        spec = self._packed(value, TEXT_BYTES_MAX)
        if self._large or len(spec) > TEXT_BYTES_MAX:
            raise _unsendable(f"at most {TEXT_BYTES_MAX} bytes of fields", f"{len(spec)} or more", "Name fewer fields.")
        return spec

    def _packed(self, item: Any, inline_bytes: int) -> bytes:
        self._inline_left = inline_bytes
        self._large = []
        try:
            spec: bytes = self._pack.pack(item)
        except (TypeError, ValueError, OverflowError) as error:
            self._pack.reset()
            allowed = "dicts, lists, tuples, None, bool, int of 64 bits, float, str, bytes and arrays"
            raise _unsendable(allowed, str(error), "Convert it in the body that emits it.") from error
        return spec

    def _leaf(self, leaf: Any) -> Any:
        """What msgpack does not know itself."""
        if type(leaf) is tuple:
            return [_TUPLE_MARK, *leaf]
        if isinstance(leaf, Mapping):
            return dict(leaf)
        if isinstance(leaf, _Blob):
            array, form = np.frombuffer(leaf.value, np.uint8), _BLOB
        elif hasattr(leaf, "__array__"):
            array, form = np.asarray(leaf), _SCALAR if isinstance(leaf, np.generic) else _ARRAY
        else:
            raise TypeError(f"a {type(leaf).__module__}.{type(leaf).__qualname__}")
        code = _CODES.get(array.dtype)
        if code is None or array.ndim > AXES_MAX:
            raise TypeError(f"an array of {array.dtype} with {array.ndim} axes")
        head = _SHAPE.pack(code, form, array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape)
        if array.nbytes <= min(INLINE_BYTES_MAX, self._inline_left):
            self._inline_left -= array.nbytes
            return msgpack.ExtType(_INLINE, head + array.tobytes())
        self._large.append(_bytes_of(array))
        return msgpack.ExtType(_LARGE, head)


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
        if isinstance(item, _CONTAINERS):
            _survey(item, 1, LEAVES_MAX, [])
    except RefusalError as beyond:
        allowed = f"at most {LEAVES_MAX} leaves, {DEPTH_MAX} levels, and keys that are str or int"
        raise _unsendable(allowed, str(beyond), "Use arrays, and such keys.") from beyond


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


# -- both ways ---------------------------------------------------------------------------------------------------------


def _survey(node: Any, depth: int, left: int, odd: list[tuple[Any, Any, Any]]) -> int:
    """How many more leaves may follow a container; RefusalError for one too deep, too large or ill keyed.

    `odd` gets (container, key, value) of all that is no plain leaf, in the order of the tree. Lists of plain leaves are
    most of what small items have; they cost no call.
    """
    kind, values = type(node), node
    is_mapping = kind is dict or (kind is not list and kind is not tuple and isinstance(node, Mapping))
    if is_mapping:
        values = node.values()
        if not _KEYS.issuperset(map(type, node)):
            raise RefusalError("keys", f"keys that are neither str nor int: {list(node)[:4]!r:.80}")
    left -= len(node)
    if left < 0 or depth > DEPTH_MAX:
        raise RefusalError("depth", f"more than {LEAVES_MAX} leaves or {DEPTH_MAX} levels")
    if _PLAIN.issuperset(map(type, values)):
        return left
    for key, value in node.items() if is_mapping else enumerate(node):
        kind = type(value)
        if kind is list and depth < DEPTH_MAX and _PLAIN.issuperset(map(type, value)):
            left -= len(value)
        elif kind is list or kind is dict or (kind not in _PLAIN and isinstance(value, _CONTAINERS)):
            left = _survey(value, depth + 1, left, odd)
        elif kind not in _PLAIN:
            odd.append((node, key, value))
    if left < 0:
        raise RefusalError("depth", f"more than {LEAVES_MAX} leaves")
    return left


# -- in ----------------------------------------------------------------------------------------------------------------


def decode(spec: memoryview | bytes) -> Any:
    """The tree of an encoded value, with `Large` leaves and marked tuples; RefusalError if it is not well formed.

    Lists and dicts are checked by `Assembly` or by whoever knows what has to be there.
    """
    size = len(spec)
    try:
        if size > SPEC_BYTES_PLAIN:
            skipping = msgpack.Unpacker(max_buffer_size=size)
            skipping.feed(spec)
            skipping.skip()
            if skipping.tell() != size:
                raise RefusalError("encoding", f"{size - skipping.tell()} bytes follow the value")
        return msgpack.unpackb(
            spec, ext_hook=_extension, strict_map_key=False, max_str_len=TEXT_BYTES_MAX, max_bin_len=SPEC_BYTES_MAX
        )
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise RefusalError("encoding", f"not msgpack as agreed ({type(error).__name__}: {error})") from error


def _extension(kind: int, data: bytes) -> Any:
    if kind == _TUPLE and not data:
        return _MARK
    if kind not in (_INLINE, _LARGE) or len(data) < _SHAPE.size:
        raise RefusalError("encoding", f"extension {kind} with {len(data)} bytes")
    code, form, axes = _SHAPE.unpack_from(data)
    begin = _SHAPE.size + 8 * axes
    if code >= len(DTYPES) or form > _BLOB or axes > AXES_MAX or len(data) < begin:
        raise RefusalError("dtype", f"dtype {code}, form {form}, {axes} axes in {len(data)} bytes")
    dtype = DTYPES[code]
    shape: tuple[int, ...] = struct.unpack_from(f"<{axes}Q", data, _SHAPE.size)
    size_bytes = math.prod(shape) * dtype.itemsize
    if max(shape, default=0) > ITEM_BYTES_MAX or size_bytes > ITEM_BYTES_MAX or (form == _SCALAR and axes):
        raise RefusalError("shape", f"form {form}, shape {shape} of {dtype}")
    if form == _BLOB and (dtype != np.uint8 or axes != 1):
        raise RefusalError("shape", f"bytes as shape {shape} of {dtype}")
    if kind == _LARGE:
        if not size_bytes or len(data) != begin:
            raise RefusalError("shape", f"a large array of shape {shape} in {len(data)} bytes")
        return Large(dtype, form, shape, size_bytes)
    if len(data) - begin != size_bytes:
        raise RefusalError("shape", f"shape {shape} of {dtype} in {len(data) - begin} bytes")
    return _leaf(memoryview(data)[begin:], dtype, form, shape)


def _leaf(flat: Bytes, dtype: np.dtype[Any], form: int, shape: tuple[int, ...]) -> Any:
    """A leaf over bytes that are there; read-only, and aligned (small frames may begin anywhere)."""
    if form == _BLOB:
        return flat.tobytes()
    array = np.frombuffer(flat, dtype) if len(flat) else np.empty(shape, dtype)
    if len(shape) != 1:
        array = array.reshape(shape)
    if not array.flags.aligned:
        array = array.copy()
    array.setflags(write=False)
    return array[()] if form == _SCALAR else array


class Assembly:
    """An item whose frames are still coming: `wanted` is the size of the next one, 0 once all are there."""

    __slots__ = ("_buffer", "_filled", "_holders", "_is_marked", "_next", "_tree", "size_bytes", "wanted")

    def __init__(self, tree: Any) -> None:
        self._tree = [tree]
        self._holders: list[tuple[Any, Any, Large]] = []
        self._is_marked = False
        odd: list[tuple[Any, Any, Any]] = []
        _survey(self._tree, 0, LEAVES_MAX + 1, odd)
        for container, key, leaf in odd:
            if type(leaf) is Large:
                self._holders.append((container, key, leaf))
            elif type(leaf) is _Mark and type(container) is list and key == 0 and container is not self._tree:
                self._is_marked = True
            else:
                raise RefusalError("encoding", f"a leaf of type {type(leaf).__name__}")
        self._buffer: NDArray[np.uint8] | None = None
        self._filled = self._next = self.size_bytes = self.wanted = 0
        if self._holders:
            self.size_bytes = sum(large.size_bytes for _, _, large in self._holders)
            self.wanted = self._size_wanted()
        if len(self._holders) > LARGE_MAX or self.size_bytes > ITEM_BYTES_MAX:
            raise RefusalError("size", f"{len(self._holders)} large arrays of {self.size_bytes} bytes")

    def add(self, frame: Bytes, digest: int) -> None:
        """The next frame. RefusalError, with nothing changed, if it is not the one that is wanted."""
        if len(frame) != self.wanted:
            raise RefusalError("size", f"a frame of {len(frame)} bytes, {self.wanted} are due")
        if xxhash.xxh3_64_intdigest(frame) != digest:
            raise RefusalError("digest", f"a frame of {len(frame)} bytes is damaged")
        container, key, large = self._holders[self._next]
        flat = frame
        is_kept = self.size_bytes <= VIEWED_BYTES_MAX or large.size_bytes < LENT_BYTES_MIN
        if large.size_bytes > CHUNK_BYTES or not is_kept:
            if self._buffer is None:
                self._buffer = _memory(large.size_bytes)
            self._buffer[self._filled : self._filled + len(frame)] = frame
            flat = self._buffer.data
        self._filled += len(frame)
        if self._filled == large.size_bytes:
            container[key] = _leaf(flat, large.dtype, large.form, large.shape)
            self._next, self._filled, self._buffer = self._next + 1, 0, None
        self.wanted = self._size_wanted()

    def item(self) -> Any:
        """The item, once nothing is wanted."""
        assert not self.wanted
        return _with_tuples(self._tree[0]) if self._is_marked else self._tree[0]

    def _size_wanted(self) -> int:
        if self._next == len(self._holders):
            return 0
        return min(CHUNK_BYTES, self._holders[self._next][2].size_bytes - self._filled)


def _memory(size_bytes: int) -> NDArray[np.uint8]:
    try:
        return empty(size_bytes)
    except MemoryError as error:
        raise RefusalError("memory", f"an array of {size_bytes} bytes does not fit") from error


def _with_tuples(node: Any) -> Any:
    """The tree with marked lists as the tuples that they were."""
    if type(node) is dict:
        return {key: _with_tuples(value) for key, value in node.items()}
    if type(node) is list:
        if node and node[0] is _MARK:
            return tuple(map(_with_tuples, node[1:]))
        return list(map(_with_tuples, node))
    return node
