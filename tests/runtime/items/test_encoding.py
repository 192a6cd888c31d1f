"""The way out: sizes and digests of encoded items, and what no wire can carry."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import xxhash
from hypothesis import given

from isthmus.runtime.items.encoding import encode
from isthmus.runtime.items.layout import CHUNK_BYTES


class Foreign:
    """An array that is not NumPy's."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.array


def test_the_size_is_that_of_the_spec_and_of_the_pieces() -> None:
    assert encode({}).size_bytes == 1
    assert encode([1, "text", None, 2.5]).size_bytes == 1 + 1 + 5 + 1 + 9
    for array in (np.zeros(10_000, np.float32), Foreign(np.zeros((100, 100), np.float32))):
        assert 40_000 < encode(array).size_bytes < 40_064
        assert 80_000 < encode({"a": [array], "b": (array,)}).size_bytes < 80_128
    assert 4 < encode(np.float32(1)).size_bytes < 32


def test_the_pieces_come_with_what_the_wire_and_the_tape_know_them_by() -> None:
    array = np.arange(CHUNK_BYTES // 4 + 1, dtype=np.uint32)
    made = encode({"x": array, "y": 1})
    assert made.sizes == [CHUNK_BYTES, 4]
    assert made.digests == [xxhash.xxh3_64_intdigest(bytes(piece)) for piece in made.pieces]
    assert made.digest == xxhash.xxh3_64_intdigest(struct.pack("<2Q", *made.digests) + made.spec)
    assert made.size_bytes == len(made.spec) + CHUNK_BYTES + 4


DIFFERENT = [
    {},
    [],
    None,
    0,
    False,
    0.0,
    -0.0,
    "",
    "0",
    [0],
    [[]],
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 2},
    {"b": 1, "a": 2},
    {"a": {"b": 1}},
    [12, 3],
    [1, 23],
    [1, 2, 3],
    [[1, 2], 3],
    [1, [2, 3]],
    ["a;", "b"],
    ["a", ";b"],
    np.zeros(2, np.float32),
    np.zeros((1, 2), np.float32),
    np.zeros(1, np.float64),
    np.zeros(2, np.int32),
    np.array(0, np.float32),
    np.zeros(1, np.float32),
    np.zeros((0, 3), np.float32),
    np.zeros((3, 0), np.float32),
    np.arange(6).reshape(2, 3),
    np.arange(6).reshape(3, 2).T,
    np.zeros(2, ml_dtypes.bfloat16),
    np.zeros(2, np.float16),
    b"",
    b"0",
    (1 << 64) - 1,
    -(1 << 63),
    (1, 2),
    [1, 2],
    np.float32(0),
    np.zeros(5000),
    np.zeros(5001),
    [np.zeros(5000), np.ones(5000)],
    [np.ones(5000), np.zeros(5000)],
    np.zeros((1, 5000)),
    bytes(20_000),
    b"x" * 50_000,
    bytes(50_000),
]


def test_items_that_differ_have_different_digests() -> None:
    digests = {encode(item).digest for item in DIFFERENT}
    assert len(digests) == len(DIFFERENT)
    assert all(0 <= digest < 1 << 64 for digest in digests)


def test_items_that_are_alike_have_the_same_digest() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows = array[::2]
    assert encode(rows).digest == encode(np.ascontiguousarray(rows)).digest == encode(rows.copy("F")).digest
    assert encode(rows).digest == encode(Foreign(rows)).digest
    assert encode(MappingProxyType({"a": 1})).digest == encode({"a": 1}).digest


def test_the_digest_is_what_it_was() -> None:
    item = {"round": 3, "data": np.arange(5, dtype=np.float32), "list": [1, "x", None, 2.5]}
    assert encode(item).digest == 12816728800466779947
    assert encode([item, np.arange(5000)]).digest == 13606919157707714065


@given(st.binary(min_size=1, max_size=40), st.booleans(), st.data())
def test_a_bit_that_changes_changes_the_digest(data: bytes, is_large: bool, draw: st.DataObject) -> None:
    array = np.frombuffer(data * (1000 if is_large else 1), np.uint8)
    changed = array.copy()
    changed[draw.draw(st.integers(0, len(changed) - 1))] ^= draw.draw(st.integers(1, 255))
    assert encode({"a": array}).digest != encode({"a": changed}).digest
