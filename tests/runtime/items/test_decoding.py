"""Items to frames and back, and what is refused."""

from __future__ import annotations

import contextlib
import gc
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.items import decoding
from isthmus.runtime.items import layout as frames
from isthmus.runtime.items.decoding import LATELY_MAX, Assembly, Lately, reader
from isthmus.runtime.items.encoding import Encoded, encode
from isthmus.runtime.items.layout import CHUNK_BYTES, RefusalError
from isthmus.runtime.wire.protocol_messages import pack_envelope
from tests.patience import PATIENCE


def flat(piece: Any) -> Any:
    """A frame as it comes from a socket: other memory, read-only."""
    return memoryview(bytes(piece))


def assembled(encoded: Encoded, lately: Lately | None = None) -> Any:
    assembly = Assembly(decode(encoded.spec), lately)
    for index, piece in enumerate(encoded.pieces):
        assert assembly.wanted == len(piece) == encoded.sizes[index]
        assembly.add(flat(piece), encoded.digests[index])
    return assembly.item


decode = reader(Any)


class Pair(NamedTuple):
    """A tuple of a kind of its own."""

    a: int
    b: int


def there_and_back(item: Any) -> Any:
    return assembled(encode(item))


def alike(a: Any, b: Any) -> bool:
    """Equal in type, shape, dtype and bits."""
    if isinstance(a, np.ndarray | np.generic):
        x, y = np.asarray(a), np.asarray(b)
        return type(a) is type(b) and x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return repr(a) == repr(b)


dtypes = st.sampled_from([dtype for dtype in frames.DTYPES if dtype.kind != "V"])
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(np.uint8, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)).map(
        lambda bits: bits.astype(dtype)
    )
)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=64)
)
items = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8) | st.integers(-5, 5), inner, max_size=4)
    ),
    max_leaves=24,
)


@given(items)
def test_an_item_arrives_as_it_was(item: Any) -> None:
    assert alike(there_and_back(item), item)


@pytest.mark.parametrize("dtype", frames.DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 40_000])
def test_every_dtype_small_and_large(dtype: np.dtype[Any], count: int) -> None:
    array = np.arange(count).astype(np.uint8).astype(dtype)
    back = there_and_back({"x": array})["x"]
    assert alike(back, array)
    assert back.flags.aligned
    assert not back.flags.writeable


def test_scalars_of_numpy_stay_scalars() -> None:
    item = [np.float32(1.5), np.int64(-3), np.bool_(True), ml_dtypes.bfloat16(2), np.array(4.0)]
    assert alike(there_and_back(item), item)


def test_an_array_of_one_chunk_is_read_where_it_lies() -> None:
    sent = np.arange(CHUNK_BYTES // 4, dtype=np.float32)
    encoded = encode({"x": sent})
    assert np.shares_memory(encoded.pieces[0], sent)
    frame = flat(encoded.pieces[0])
    assembly = Assembly(decode(encoded.spec))
    assembly.add(frame, encoded.digests[0])
    assert np.shares_memory(assembly.item["x"], frame)


@pytest.mark.parametrize("size_bytes", [CHUNK_BYTES + 4, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES - 8])
def test_a_larger_array_is_put_together(size_bytes: int) -> None:
    sent = np.arange(size_bytes // 4, dtype=np.uint32)
    encoded = encode([sent, "after"])
    assert [len(piece) for piece in encoded.pieces[:-1]] == [CHUNK_BYTES] * (len(encoded.pieces) - 1)
    back = assembled(encoded)
    assert alike(back, [sent, "after"])
    assert back[0].ctypes.data % 64 == 0


def test_of_a_large_item_no_frame_is_kept() -> None:
    array = np.arange(CHUNK_BYTES // 4, dtype=np.int32)
    encoded = encode([array, array, array, array[: 1 << 17]])
    assembly = Assembly(decode(encoded.spec))
    came = [flat(piece) for piece in encoded.pieces]
    for index, frame in enumerate(came):
        assembly.add(frame, encoded.digests[index])
    got = assembly.item
    assert alike(got, [array, array, array, array[: 1 << 17]])
    assert [np.shares_memory(a, frame) for a, frame in zip(got, came, strict=True)] == [False, False, False, True]


@pytest.mark.slow
def test_memory_is_lent_again_only_when_every_view_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(decoding, "_shelf", [])
    first = decoding.empty(8 << 20)
    address = first.ctypes.data
    view = first[5:].view(np.uint8)[1:]
    del first
    second = decoding.empty(8 << 20)
    assert second.ctypes.data != address
    del view
    assert decoding.empty(8 << 20).ctypes.data == address


@pytest.mark.slow
def test_a_block_that_nothing_takes_goes_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(decoding, "_shelf", shelf := [])
    monkeypatch.setattr(decoding, "_looking", looking := [])
    monkeypatch.setattr(decoding, "IDLE_SECONDS", 0.05)
    decoding.empty(8 << 20)
    until = time.monotonic() + PATIENCE
    while shelf or looking:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_array_that_came_on_another_edge_is_there_once() -> None:
    values = np.arange(3 * CHUNK_BYTES // 4 + 5, dtype=np.float32)
    lately = Lately()
    first = assembled(encode({"values": values, "edge": 1}), lately)
    second = assembled(encode({"edge": 2, "values": values.reshape(1, -1)}), lately)
    assert np.shares_memory(first["values"], second["values"])
    assert second["values"].shape == (1, len(values))
    assert alike(assembled(encode(values), lately), values)
    kept = second["values"]
    del first, second
    assert np.shares_memory(assembled(encode(values), lately), kept)


@pytest.mark.parametrize("at", [0, CHUNK_BYTES // 4 + 1, -1])
def test_one_that_differs_in_any_piece_has_memory_of_its_own(at: int) -> None:
    values = np.arange(3 * CHUNK_BYTES // 4 + 5, dtype=np.float32)
    other = values.copy()
    other[at] = -1.0
    lately = Lately()
    first, second = assembled(encode(values), lately), assembled(encode(other), lately)
    assert not np.shares_memory(first, second)
    assert alike(first, values)
    assert alike(second, other)
    assert np.shares_memory(assembled(encode(other), lately), second)


def test_what_is_not_held_any_more_or_came_long_ago_is_not_shared() -> None:
    arrays = [np.full(CHUNK_BYTES // 4 + 4, number, np.float32) for number in range(LATELY_MAX + 1)]
    lately = Lately()
    first = assembled(encode(arrays[0]), lately)
    for array in arrays[1:]:
        assert alike(assembled(encode(array), lately), array)
    assert not np.shares_memory(assembled(encode(arrays[0]), lately), first)
    assert alike(assembled(encode(arrays[1]), lately), arrays[1])


def test_arrays_of_any_layout_are_sent() -> None:
    array = np.arange(60_000, dtype=np.float64).reshape(200, 300)
    for sent in (array.T, array[::2, ::3], np.asfortranarray(array), array[:, :0], np.broadcast_to(array[0], (9, 300))):
        assert alike(there_and_back(sent), np.ascontiguousarray(sent).reshape(sent.shape))


def test_what_is_small_goes_into_the_spec_and_what_is_large_does_not() -> None:
    small, large = np.zeros(frames.INLINE_BYTES_MAX, np.uint8), np.zeros(frames.INLINE_BYTES_MAX + 1, np.uint8)
    encoded = encode([small, large, small, small, small])
    assert encoded.sizes == [len(large), len(small), len(small)]
    assert alike(assembled(encoded), [small, large, small, small, small])


def test_long_bytes_get_frames_of_their_own() -> None:
    item = {"a": b"x" * (CHUNK_BYTES + 3), "b": [(b"y" * 70_000, b"z")]}
    encoded = encode(item)
    assert encoded.sizes == [CHUNK_BYTES, 3, 70_000]
    assert assembled(encoded) == item


def test_a_mapping_arrives_as_a_dict_and_an_array_by_protocol_as_an_array() -> None:
    class Duck:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(3)

    from types import MappingProxyType

    assert alike(there_and_back(MappingProxyType({"a": [Duck()]})), {"a": [np.arange(3)]})


def deep(levels: int) -> Any:
    item: Any = 0
    for _ in range(levels):
        item = [item]
    return item


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ({1.5: 2}, "keys"),
        ({("a", 1): 2}, "keys"),
        (2**64, "int"),
        (object(), "object"),
        ([np.array(["text"])], "<U4"),
        (np.array([1], ">f4"), ">f4"),
        (np.zeros(3, [("a", "i4")]), "i4"),
        (np.datetime64("2026-01-01"), "datetime64"),
        ("x" * 70_000, "characters"),
        (deep(60), "levels"),
        ([0] * 70_000, "leaves"),
        ([np.zeros(20_000, np.uint8)] * 5000, "5000 arrays"),
        ({1, 2}, "set"),
        ([bytearray(b"x")], "bytearray"),
        ({"a": Pair(1, 2)}, "Pair"),
        (((Pair(1, 2),),), "Pair"),
        ("\ud800", "surrogates"),
    ],
)
def test_what_no_wire_can_carry_is_our_own_fault(item: Any, found: str) -> None:
    with pytest.raises(LocalProtocolError, match=found):
        encode(item)


@pytest.mark.parametrize("inner", [[], [1], {}, {"a": 1}, (), [np.arange(2)], [np.zeros(20_000)]])
def test_thirty_two_levels_are_the_most_on_both_sides(inner: Any) -> None:
    item = inner
    for _ in range(31):
        item = [item]
    assert alike(assembled(encode(item)), item)
    with pytest.raises(LocalProtocolError, match="32 levels"):
        encode([item])
    with pytest.raises(LocalProtocolError, match="32 levels"):
        encode({"a": item})


def test_fields_must_be_small() -> None:
    parcel = Parcel(1, None, None, {"x": [1] * 100_000}, 0, 0)
    with pytest.raises(LocalProtocolError, match=r"found 100.* bytes of fields that cores read. Name fewer fields"):
        pack_envelope(parcel, 0, False)


def shape(code: int, form: int, dims: list[int], axes: int | None = None) -> bytes:
    return struct.pack("<BBB5x", code, form, len(dims) if axes is None else axes) + struct.pack(f"<{len(dims)}Q", *dims)


def extension(kind: int, data: bytes) -> bytes:
    return bytes(msgpack.packb([msgpack.ExtType(kind, data)]))


FLOAT32 = frames.DTYPES.index(np.dtype("float32"))
UINT8 = frames.DTYPES.index(np.dtype("uint8"))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (b"", "encoding"),
        (b"\xc1", "encoding"),
        (b"\x93\x01\x02", "encoding"),
        (b"\x01\x02", "encoding"),
        (b"\xdd\xff\xff\xff\xff" * 1000, "encoding"),
        (b"\x91" * (frames.SPEC_BYTES_MAX - 1) + b"\xc0", "encoding"),  # Deeper than any interpreter reads.
        (b"\xdb\xff\xff\xff\xff", "encoding"),
        (b"\xa2\xff\xfe", "encoding"),
        (b"\x81\x91\x01\x02", "keys"),
        (b"\x81\x81\x01\x02\x03", "encoding"),
        (bytes(msgpack.packb([msgpack.Timestamp(1, 2)])), "encoding"),
        (b"\x91" * 60 + b"\xc0", "depth"),
        (b"\x91" * 33, "encoding"),
        (b"\x91" * 32 + b"\x90", "depth"),
        (b"\x91" * 32 + b"\x80", "depth"),
        (b"\x91" * 32 + b"\x91\x01", "depth"),
        (b"\xdc\xff\xff" + b"\x91\xc0" * 0xFFFF, "depth"),
        (b"\x92\xdc\x80\x00" + b"\xc0" * 0x8000 + b"\xdc\x80\x00" + b"\xc0" * 0x8000, "depth"),
        (bytes(msgpack.packb({1.5: 2})), "keys"),
        (bytes(msgpack.packb({None: 2})), "keys"),
        (extension(9, b"12345678"), "encoding"),
        (extension(1, b"1"), "encoding"),
        (extension(3, b"1"), "encoding"),
        (bytes(msgpack.packb([1, msgpack.ExtType(3, b"")])), "encoding"),
        (bytes(msgpack.packb(msgpack.ExtType(3, b""))), "encoding"),
        (bytes(msgpack.packb({0: msgpack.ExtType(3, b"")})), "encoding"),
        (extension(1, shape(200, 0, [1]) + b"1234"), "dtype"),
        (extension(1, shape(FLOAT32, 7, [1]) + b"1234"), "dtype"),
        (extension(1, shape(FLOAT32, 0, [1], axes=4)), "dtype"),
        (extension(1, shape(FLOAT32, 0, [2] * 40)), "dtype"),
        (extension(1, shape(FLOAT32, 0, [2]) + b"1234"), "shape"),
        (extension(1, shape(FLOAT32, 0, [2**63, 2**63]) + b"1234"), "shape"),
        (extension(1, shape(FLOAT32, 0, [0] + [2**32] * 20)), "encoding"),
        (extension(1, shape(FLOAT32, 0, [0, 2**60])), "shape"),
        (extension(1, shape(FLOAT32, 1, [1]) + b"1234"), "shape"),
        (extension(1, shape(FLOAT32, 2, [1]) + b"1234"), "shape"),
        (extension(2, shape(FLOAT32, 0, [1]) + b"1234"), "shape"),
        (extension(2, shape(FLOAT32, 0, [0])), "shape"),
        (extension(2, shape(UINT8, 0, [2**40])), "shape"),
        (b"\x92" + 2 * extension(2, shape(UINT8, 0, [3 << 30]))[1:], "size"),
        (b"\xdc\x20\x00" + 0x2000 * extension(2, shape(UINT8, 0, [30_000]))[1:], "size"),
    ],
)
def test_a_spec_that_is_not_well_formed_is_refused(spec: bytes, reason: str) -> None:
    with pytest.raises(RefusalError) as caught:
        Assembly(decode(spec))
    assert caught.value.reason == reason


def deep_lists(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


def deep_key(levels: int) -> bytes:
    return b"\x81" + b"\x91" * levels + b"\xc0\xc0"


@pytest.mark.parametrize(("nested", "reason"), [(deep_lists, "depth"), (deep_key, "keys")])
def test_nesting_is_refused_also_where_the_interpreter_reads_just_that_deep(
    nested: Callable[[int], bytes], reason: str
) -> None:
    def refused(levels: int) -> str:
        with pytest.raises(RefusalError) as caught:
            Assembly(decode(nested(levels)))
        return caught.value.reason

    read, too_deep = 100, frames.SPEC_BYTES_MAX // 2
    while too_deep - read > 1:
        middle = (read + too_deep) // 2
        read, too_deep = (read, middle) if refused(middle) == "encoding" else (middle, too_deep)
    for levels in range(read - 20, read + 1):  # In this frame, which CPython 3.11 counts: as `too_deep` was found.
        assert refused(levels) == reason


@pytest.mark.parametrize(
    "announced", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\x00", b"\xdc\xff\xff", b"\xde\xff\xff\x00"]
)
def test_what_is_announced_and_does_not_follow_takes_no_memory(announced: bytes) -> None:
    spec = announced * (frames.SPEC_BYTES_MAX // len(announced))
    tracemalloc.start()
    try:
        with pytest.raises(RefusalError):
            decode(spec)
        # A list begins with 16 places, 184 bytes with its head, and CPython 3.13 reads 9,999 of them in each other
        # (3.12 1,498, 3.11 997): 1.84 MB measured. What a single one of them announces is 0.5 MB or 34 GB.
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_is_not_the_one_wanted_is_refused_and_changes_nothing() -> None:
    encoded = encode([np.arange(10_000, dtype=np.int64)])
    assembly = Assembly(decode(encoded.spec))
    frame = flat(encoded.pieces[0])
    for wrong, digest, reason in ((frame[1:], 0, "size"), (frame, encoded.digests[0] ^ 1, "digest")):
        with pytest.raises(RefusalError) as caught:
            assembly.add(wrong, digest)
        assert caught.value.reason == reason
    assembly.add(frame, encoded.digests[0])
    with pytest.raises(RefusalError, match="0 are due"):
        assembly.add(frame, encoded.digests[0])
    assert alike(assembly.item, [np.arange(10_000)])


def decode_or_refuse(spec: bytes) -> None:
    """Any other exception fails the test."""
    with contextlib.suppress(RefusalError):
        Assembly(decode(spec))


@given(items, st.data())
def test_a_mutated_spec_is_refused_or_decoded_and_nothing_else(item: Any, data: Any) -> None:
    spec = bytearray(encode(item).spec)
    for _ in range(data.draw(st.integers(1, 4))):
        spec[data.draw(st.integers(0, len(spec) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(spec))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decoded_and_nothing_else(spec: bytes) -> None:
    decode_or_refuse(spec)
