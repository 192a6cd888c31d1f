"""Kernels that read gradients, whole or coded: decoded block by block in the first-level cache, where they are used.

Decides how codes become values. Kernels that call each other share a file, because numba's cache checks no other.

Theory of operation. A coded vector (`exchange.formats`) is a run of codes, and a scale for each block of 256 values of
one unit. A value is its code times the scale, one rounded float32 product; the sum with another value is rounded
separately. Nothing is fused, so that a value has the same bits on every host. Kernels know formats by number, and read
what each needs from arrays by number.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.exchange.formats import CODE_BLOCK, FORMATS
from isthmus.ops.kernels.buffers import Float32
from isthmus.ops.kernels.stripes import Int64, kernel
from isthmus.ops.kernels.summation import ADD, COPY, FOUR, PAIR, ROOMS_COUNT

Bytes: TypeAlias = NDArray[np.uint8]
Float64: TypeAlias = NDArray[np.float64]

FLOAT32: Final = FORMATS["float32"].number
BF16: Final = FORMATS["bf16"].number
INT8: Final = FORMATS["int8"].number
# Constants of compiled kernels: numba's cache does not see that they change, so who changes a format edits this file.
_ENTRIES: Final = sorted(FORMATS.values())
VALUES: Final = np.array([each.values for each in _ENTRIES], np.int64)
"""Values that one code element holds, by format."""
MIDDLES: Final = np.array([(1 << each.code_bits - 1) - each.by_mean / 2 for each in _ENTRIES], np.float32)
"""The code that stands for 0 in packed formats, by format."""
# Values done at a time, 8 KiB: the sums of all learners are added while the block is in the first-level cache.
_BLOCK_SIZE: Final = 2048
_LANES: Final = 256
"""Partial sums of squares: with 32 a slice for each row costs more than its sums."""


@kernel
def decoded(
    raw: Bytes, scales: Float32, form: int, code_offsets: Int64, unit: int, within: int, scale_at: int, room: Float32
) -> Float32:
    """The len(room) values of a unit from its value `within` on, the first of a block, whose scale is at `scale_at`.

    Values of float32 are a view, others are written to `room`.
    """
    size, at = len(room), code_offsets[form, unit] + within // VALUES[form]
    if form == FLOAT32:
        return raw.view(np.float32)[at : at + size]
    if form == BF16:
        halves = raw.view(np.uint16)[at : at + size]
        whole = room.view(np.uint32)
        for i in range(size):
            whole[i] = np.uint32(halves[i]) << np.uint32(16)
        return room
    values, middle = VALUES[form], MIDDLES[form]
    bits, block_codes = 8 // values, CODE_BLOCK // values
    low = np.uint8((1 << bits) - 1)
    # Nothing is called for a block: its slices would be counted, atomically, which costs a merge a fifth of its time.
    for number in range((size + CODE_BLOCK - 1) // CODE_BLOCK):
        scale, begin = scales[scale_at + number], number * CODE_BLOCK
        block = room[begin : min(begin + CODE_BLOCK, size)]
        if form == INT8:
            codes = raw.view(np.int8)[at + begin : at + begin + len(block)]
            for i in range(len(block)):
                block[i] = np.float32(codes[i]) * scale
            continue
        count = block_codes if len(block) == CODE_BLOCK else (len(block) + values - 1) // values
        first = at + number * block_codes
        packed = raw[first : first + count]
        # One loop for each part: one with several results is not vectorised, and takes four times as long.
        for place in range(values):
            part, unit = block[place * count : (place + 1) * count], 1 << (place * bits)
            mask = np.uint8(low * unit)
            middle_there, scale_there = middle * np.float32(unit), scale / np.float32(unit)
            for i in range(len(part)):
                part[i] = (np.float32(packed[i] & mask) - middle_there) * scale_there
    return room


@kernel
def sweep(
    raws: tuple[Bytes, ...],
    scales: tuple[Float32, ...],
    forms: Int64,
    coefficients: Float32,
    steps: Int64,
    wants_squares: bool,
    begins: Int64,
    ends: Int64,
    units: Int64,
    offsets: Int64,
    code_offsets: Int64,
    scale_offsets: Int64,
    direction: Float32,
    squares: Float64,
    checked: Int64,
    own_squares: Float64,
    first: int,
    last: int,
) -> None:
    """Make the steps of a sweep (`summation`) in stripes first..last-1 of `direction`, which is room 0.

    Input m is coefficients[units[s], m] * gradient m, each product rounded. Sums up the squares of the result, too,
    where they are wanted, and in own_squares[m] those of each gradient m that is to be checked.
    """
    lanes = np.empty(_LANES, np.float64)
    own_lanes = np.empty((len(checked), _LANES), np.float64)
    values, rooms = np.empty((4, _BLOCK_SIZE), np.float32), np.empty((ROOMS_COUNT, _BLOCK_SIZE), np.float32)
    for s in range(first, last):
        c, unit = coefficients[units[s]], units[s]
        lanes[:] = 0.0
        own_lanes[:] = 0.0
        for begin in range(begins[s], ends[s], _BLOCK_SIZE):
            end = min(begin + _BLOCK_SIZE, ends[s])
            size, within = end - begin, begin - offsets[unit]
            scale_at = scale_offsets[unit] + within // CODE_BLOCK
            # Slices taken before the loops: an index with an offset of unknown sign is not vectorised.
            total = direction[begin:end]
            room0, room1, room2, room3 = values[0, :size], values[1, :size], values[2, :size], values[3, :size]
            for place in range(len(checked)):  # Before the steps, which then find the block in the cache.
                m = checked[place]
                values_m = decoded(raws[m], scales[m], forms[m], code_offsets, unit, within, scale_at, room0)
                _add_squares(values_m, own_lanes[place])
            for number in range(len(steps)):
                step, m = steps[number, 0], steps[number, 1]
                out = total if steps[number, 2] == 0 else rooms[steps[number, 2], :size]
                if step == ADD:
                    _add(out, total if m == 0 else rooms[m, :size])
                elif step == COPY:
                    out[:] = rooms[m, :size]
                elif step == FOUR:
                    _four(
                        out,
                        decoded(raws[m], scales[m], forms[m], code_offsets, unit, within, scale_at, room0),
                        decoded(raws[m + 1], scales[m + 1], forms[m + 1], code_offsets, unit, within, scale_at, room1),
                        decoded(raws[m + 2], scales[m + 2], forms[m + 2], code_offsets, unit, within, scale_at, room2),
                        decoded(raws[m + 3], scales[m + 3], forms[m + 3], code_offsets, unit, within, scale_at, room3),
                        c[m : m + 4],
                    )
                elif step == PAIR:
                    _pair(
                        out,
                        decoded(raws[m], scales[m], forms[m], code_offsets, unit, within, scale_at, room0),
                        decoded(raws[m + 1], scales[m + 1], forms[m + 1], code_offsets, unit, within, scale_at, room1),
                        c[m : m + 2],
                    )
                else:
                    _one(out, decoded(raws[m], scales[m], forms[m], code_offsets, unit, within, scale_at, room0), c[m])
            if wants_squares:
                _add_squares(total, lanes)
        squares[s] = _sum_lanes(lanes)
        for place in range(len(checked)):
            own_squares[checked[place], s] = _sum_lanes(own_lanes[place])


@kernel
def squares_of(
    raw: Bytes,
    scales: Float32,
    form: int,
    begins: Int64,
    ends: Int64,
    units: Int64,
    offsets: Int64,
    code_offsets: Int64,
    scale_offsets: Int64,
    squares: Float64,
) -> None:
    """The sum of squares of each stripe."""
    lanes = np.empty(_LANES, np.float64)
    room = np.empty(_BLOCK_SIZE, np.float32)
    for s in range(len(begins)):
        lanes[:] = 0.0
        unit = units[s]
        for begin in range(begins[s], ends[s], _BLOCK_SIZE):
            size, within = min(_BLOCK_SIZE, ends[s] - begin), begin - offsets[unit]
            scale_at = scale_offsets[unit] + within // CODE_BLOCK
            values = decoded(raw, scales, form, code_offsets, unit, within, scale_at, room[:size])
            _add_squares(values, lanes)
        squares[s] = _sum_lanes(lanes)


@kernel
def add_to(
    values: Float32,
    raw: Bytes,
    scales: Float32,
    form: int,
    offsets: Int64,
    code_offsets: Int64,
    scale_offsets: Int64,
    sums: Float32,
) -> None:
    """Write values + the decoded values to `sums`."""
    room = np.empty(_BLOCK_SIZE, np.float32)
    for unit in range(len(offsets) - 1):
        for begin in range(offsets[unit], offsets[unit + 1], _BLOCK_SIZE):
            end = min(begin + _BLOCK_SIZE, offsets[unit + 1])
            within = begin - offsets[unit]
            scale_at = scale_offsets[unit] + within // CODE_BLOCK
            moved = decoded(raw, scales, form, code_offsets, unit, within, scale_at, room[: end - begin])
            before, after = values[begin:end], sums[begin:end]
            for i in range(end - begin):
                after[i] = before[i] + moved[i]


@kernel
def pick(
    raw: Bytes,
    scales: Float32,
    form: int,
    offsets: Int64,
    code_offsets: Int64,
    scale_offsets: Int64,
    stride: int,
    picked: Float32,
) -> None:
    """Every value number 0, stride, 2 stride and so on."""
    room = np.empty(CODE_BLOCK, np.float32)
    for unit in range(len(offsets) - 1):
        for number in range(scale_offsets[unit + 1] - scale_offsets[unit]):
            begin = offsets[unit] + number * CODE_BLOCK
            end = min(begin + CODE_BLOCK, offsets[unit + 1])
            first = -(-begin // stride)
            if first * stride >= end:
                continue
            within, scale_at = number * CODE_BLOCK, scale_offsets[unit] + number
            values = decoded(raw, scales, form, code_offsets, unit, within, scale_at, room[: end - begin])
            for at in range(first, -(-end // stride)):
                picked[at] = values[at * stride - begin]


@kernel
def _four(out: Float32, g0: Float32, g1: Float32, g2: Float32, g3: Float32, c: Float32) -> None:
    c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
    for i in range(len(out)):
        out[i] = (c0 * g0[i] + c1 * g1[i]) + (c2 * g2[i] + c3 * g3[i])


@kernel
def _pair(out: Float32, g0: Float32, g1: Float32, c: Float32) -> None:
    c0, c1 = c[0], c[1]
    for i in range(len(out)):
        out[i] = c0 * g0[i] + c1 * g1[i]


@kernel
def _one(out: Float32, g: Float32, c: float) -> None:
    for i in range(len(out)):
        out[i] = c * g[i]


@kernel
def _add(out: Float32, other: Float32) -> None:
    for i in range(len(out)):
        out[i] = out[i] + other[i]


@kernel
def _add_squares(values: Float32, lanes: Float64) -> None:
    """Add values[i]^2 to lane i mod _LANES: independent sums, which vectorise without reordering any of them."""
    whole = len(values) - len(values) % _LANES
    for begin in range(0, whole, _LANES):
        row = values[begin : begin + _LANES]
        for lane in range(_LANES):
            value = np.float64(row[lane])
            lanes[lane] += value * value
    for lane in range(len(values) - whole):
        value = np.float64(values[whole + lane])
        lanes[lane] += value * value


@kernel
def _sum_lanes(lanes: Float64) -> float:
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    return total
