"""Codes in NumPy, for hosts where no compiler of kernels is installed: they join runs, and merge nothing.

Decides nothing: each result has the bits of the kernels' (`coding`, `sweeps`), whose order of operations it keeps, on
many blocks at a time. Every operation is one that IEEE 754 rounds by itself, and NumPy fuses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.exchange.formats import CODE_BLOCK, CODE_LEAST, FORMATS, LANES, WireFormat
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.kernels.buffers import Float32

BLOCKS_MAX: Final = 512
"""At a time: 512 KiB of values, so that what is made of them stays in the second-level cache."""
_ROUNDER: Final = np.float32(12582912.0)
_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
_MAGNITUDE_BITS: Final = np.int32(0x7FFFFFFF)
_EXPONENT_BITS: Final = np.int32(0x7F800000)


class _Blocks(NamedTuple):
    """Some blocks of one length: where their values, codes and scales are, and how long each is."""

    values: slice
    codes: slice
    scales: slice
    length: int


def largest(values: Float32) -> float:
    """The largest magnitude in float32[n], 0 without any; inf or nan where a value is not finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    return float((bits & _MAGNITUDE_BITS).max(initial=0).astype(np.int32).view(np.float32))


def halves_are_finite(halves: NDArray[np.uint16]) -> bool:
    """Whether all values of bf16 are, by their bits."""
    return bool(((halves & np.uint16(0x7FFF)) < np.uint16(0x7F80)).all())


def encode_halves(bits: NDArray[np.int32], halves: NDArray[np.uint16]) -> None:
    """Round float32 values, by their bits, to bf16, ties to even."""
    words = bits.view(np.uint32)
    rounded = words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
    is_nan = (bits & _MAGNITUDE_BITS) > _EXPONENT_BITS
    halves[:] = (np.where(is_nan, words | np.uint32(0x400000), rounded) >> np.uint32(16)).astype(np.uint16)


def encode(
    target: Float32,
    published: Float32 | None,
    fragment: Fragment,
    form: str,
    codes: NDArray[Any],
    scales: Float32,
    moved: Float32 | None,
) -> None:
    """Code target - published, and write published plus the decoded codes to `moved`; or target, without these."""
    entry = FORMATS[form]
    for at in _runs(fragment, entry):
        block = target[at.values].reshape(-1, at.length)
        before = None if published is None else published[at.values].reshape(-1, at.length)
        values = block if before is None else block - before
        with np.errstate(all="ignore"):  # A block that is not finite has a scale that says so.
            magnitude = _mean_magnitude(values) if entry.by_mean else _largest_magnitude(values)
            scale = np.where(magnitude < np.float32(CODE_LEAST), _ZERO, magnitude / np.float32(entry.levels))
            is_sound = (scale > _ZERO) & (scale < np.float32(np.inf))
            inverse = np.where(is_sound, _ONE / scale, _ZERO)[:, None]
            products = values * inverse
            scales[at.scales] = scale
            codes[at.codes] = _codes(products, is_sound, entry, at.length).reshape(-1)
            if before is not None and moved is not None:
                levels = _middles(products, entry) if entry.by_mean else (products + _ROUNDER) - _ROUNDER
                moved[at.values] = (before + levels * scale[:, None]).reshape(-1)


def add(values: Float32, codes: NDArray[Any], scales: Float32, form: str, fragment: Fragment, sums: Float32) -> None:
    """Write values + the decoded codes to `sums`."""
    entry = FORMATS[form]
    if form == "bf16":
        whole = codes.view(np.uint16).astype(np.uint32) << np.uint32(16)
        np.add(values, whole.view(np.float32), out=sums)
        return
    for at in _runs(fragment, entry):
        moved = _decoded(codes[at.codes], scales[at.scales][:, None], entry, at.length)
        sums[at.values] = (values[at.values].reshape(-1, at.length) + moved).reshape(-1)


def _runs(fragment: Fragment, entry: WireFormat) -> Iterator[_Blocks]:
    """All blocks of a fragment: the whole ones of each unit, some at a time, and its last, shorter one."""
    code = scale = 0
    for begin, end in zip(fragment.offsets, fragment.offsets[1:], strict=False):
        whole = (end - begin) // CODE_BLOCK
        counts = [(min(BLOCKS_MAX, whole - done), CODE_BLOCK) for done in range(0, whole, BLOCKS_MAX)]
        rest = (end - begin) % CODE_BLOCK
        at = begin
        for count, length in [*counts, *([(1, rest)] if rest else [])]:
            size, elements = count * length, count * -(-length // entry.values)
            yield _Blocks(slice(at, at + size), slice(code, code + elements), slice(scale, scale + count), length)
            at, code, scale = at + size, code + elements, scale + count


def _largest_magnitude(values: Float32) -> Float32:
    """Of each row, by its bits: that of a nan is the largest."""
    bits = np.ascontiguousarray(values).view(np.int32)
    largest_bits: NDArray[np.int32] = (bits & _MAGNITUDE_BITS).max(axis=1)
    return largest_bits.view(np.float32)


def _mean_magnitude(values: Float32) -> Float32:
    """Of each row: value i is added to lane i mod 32, and the lanes in their order."""
    magnitudes, length = np.abs(values), values.shape[1]
    lanes = np.zeros((len(values), LANES), np.float32)
    for begin in range(0, length, LANES):
        row = magnitudes[:, begin : begin + LANES]
        lanes[:, : row.shape[1]] += row
    total = np.zeros(len(values), np.float32)
    for lane in range(LANES):
        total += lanes[:, lane]
    return total / np.float32(length)


def _middles(products: Float32, entry: WireFormat) -> Float32:
    """The level of each product in formats whose codes lie on both sides of 0."""
    half = np.float32(1 << (entry.code_bits - 1))
    return np.minimum(np.maximum(np.floor(products), -half), half - _ONE) + _HALF


def _codes(products: Float32, is_sound: NDArray[np.bool_], entry: WireFormat, length: int) -> NDArray[Any]:
    """The codes of blocks, [blocks, codes of one]; a place without a value has the code next to 0."""
    levels = _middles(products, entry) - _HALF if entry.by_mean else np.rint(products)
    whole = np.where(is_sound[:, None], levels, _ZERO).astype(np.int32)
    if entry.values == 1:
        return whole.astype(np.int8)
    count, bits = -(-length // entry.values), entry.code_bits
    sums = np.full((len(whole), count), sum((1 << (bits - 1)) << place for place in range(0, 8, bits)), np.int32)
    for place in range(entry.values):
        part = whole[:, place * count : (place + 1) * count]
        sums[:, : part.shape[1]] += part << (place * bits)
    return (sums & 0xFF).astype(np.uint8)


def _decoded(codes: NDArray[Any], scales: Float32, entry: WireFormat, length: int) -> Float32:
    """What codes of blocks stand for, [blocks, length]."""
    rows = codes.reshape(len(scales), -1)
    if entry.values == 1:
        return rows.view(np.int8).astype(np.float32) * scales
    values, count = np.empty((len(scales), length), np.float32), rows.shape[1]
    bits, middle = entry.code_bits, np.float32((1 << entry.code_bits - 1) - entry.by_mean / 2)
    for place in range(entry.values):
        part, unit = values[:, place * count : (place + 1) * count], 1 << (place * bits)
        mask = np.uint8(((1 << bits) - 1) * unit)
        masked = (rows[:, : part.shape[1]] & mask).astype(np.float32)
        np.multiply(masked - middle * np.float32(unit), scales / np.float32(unit), out=part)
    return values
