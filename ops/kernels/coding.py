"""Vectors in fewer bits: the codes of an outer gradient, and of the change that an outer step makes to a fragment.

Decides what is lost. Does not decide what is coded, nor what becomes of the loss.

Theory of operation. `exchange.formats` says what the codes of each format are. A block that is not finite has a scale
that is not finite, so scales alone tell whether values are finite; a block whose values are all below 1e-35 is coded as
zeros. Decoding (`sweeps`) is one rounded product, and adding it to a value one rounded sum; `advance` does just that as
it codes, so that adding the codes gives its result bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from isthmus.ops.exchange.formats import CODE_BLOCK, CODE_LEAST, CODED, FORMATS, LANES
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import plain_codes, sweeps
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.stripes import HAS_COMPILER, Int64, kernel, kernel_input, share, stripes
from isthmus.ops.kernels.sweeps import FLOAT32, INT8, VALUES, Bytes

SCALE_MAX: Final = float(np.finfo(np.float32).max) / 128
"""The largest scale that decodes to finite values for all codes."""
_NONE: Final = np.empty(0, np.float32)
_NONE.setflags(write=False)

_ONES: Final = np.ones(2, np.float32)
_ONE: Final = Fragment(0, (Unit("a", 0, 2, (2,)),))
_MAGNITUDE_BITS: Final = np.int32(0x7FFFFFFF)
_EXPONENT_BITS: Final = np.int32(0x7F800000)
_LEAST: Final = np.float32(CODE_LEAST)
_ENTRIES: Final = sorted(FORMATS.values())
_LEVELS: Final = np.array([each.levels for each in _ENTRIES], np.float32)
_BY_MEAN: Final = np.array([each.by_mean for each in _ENTRIES])
_ROUNDER: Final = np.float32(12582912.0)
"""1.5 * 2^23: adding and subtracting it rounds a value below 2^22 to an integer, ties to even."""


class Coded(NamedTuple):
    """A coded float32[n].

    `codes` are elements of the format's dtype, [ceil(n_u / values of one) summed over units]; `scales` float32[blocks],
    none for bf16.
    """

    codes: NDArray[Any]
    scales: Float32
    form: str


Values: TypeAlias = Float32 | Coded


class UnitOffsets(NamedTuple):
    """The offsets of each unit: in values and in scales, int64[units + 1], and in codes, int64[formats, units + 1]."""

    offsets: Int64
    codes: Int64
    scales: Int64


@lru_cache(maxsize=256)
def places(offsets: tuple[int, ...]) -> UnitOffsets:
    """The places of a payload whose unit u holds values [offsets[u], offsets[u + 1])."""
    at = np.array(offsets, np.int64)
    sizes = np.diff(at)
    starts = np.zeros(1, np.int64)
    codes = np.array([np.concatenate([starts, np.cumsum(-(-sizes // values))]) for values in VALUES])
    scales = np.concatenate([starts, np.cumsum(-(-sizes // CODE_BLOCK))])
    return UnitOffsets(at, codes, scales)


def as_sent(item: Mapping[str, Any], name: str) -> Values:
    """The vector in the field `name` of an item, beside which its format and scales are, if it has any."""
    if (form := item.get("format", "float32")) == "float32":
        values: Float32 = item[name]
        return values
    return Coded(item[name], item.get("scales", _NONE), form)


def item_fields(name: str, values: Values) -> dict[str, Any]:
    """The fields of an item for `as_sent`, the first with this name."""
    if not isinstance(values, Coded):
        return {name: values}
    fields = {name: values.codes, "format": values.form}
    return {**fields, "scales": values.scales} if values.scales.size else fields


def is_whole(values: Values, fragment: Fragment) -> bool:
    """Whether there are as many codes and scales as the fragment needs."""
    if not isinstance(values, Coded):
        return values.dtype == np.float32 and values.shape == (fragment.size,)
    entry, where = FORMATS[values.form], places(fragment.offsets)
    scales = int(where.scales[-1]) if entry.levels else 0
    shapes = (values.codes.shape, values.scales.shape) == ((int(where.codes[entry.number, -1]),), (scales,))
    return shapes and values.codes.dtype == entry.dtype


def kernel_inputs(values: Values) -> tuple[Bytes, Float32, int]:
    """(bytes, scales, format), for kernels."""
    if not isinstance(values, Coded):
        return kernel_input(values).view(np.uint8), _NONE, FLOAT32
    codes = np.require(values.codes, None, ["C", "A"]).view(np.uint8)
    codes.flags.writeable = False
    return codes, kernel_input(values.scales), FORMATS[values.form].number


def is_finite(values: Values) -> bool:
    """Whether all values are finite; where there are scales, by these, which must not be negative either."""
    if not isinstance(values, Coded):
        if not _LARGEST.is_compiled:  # The first model is looked at before a first step, which waits for no kernel.
            return not values.size or bool(np.isfinite(values.max()) and np.isfinite(values.min()))
        return largest(values) < np.inf
    if values.form == "bf16":
        halves = np.require(values.codes, None, ["C", "A"]).view(np.uint16)
        return bool((_halves_are_finite if HAS_COMPILER else plain_codes.halves_are_finite)(halves))
    return bool(((values.scales >= 0) & (values.scales <= SCALE_MAX)).all())


def largest(values: Float32) -> float:
    """The largest magnitude in float32[n], 0 without any; inf or nan where a value is not finite."""
    if not HAS_COMPILER:
        return plain_codes.largest(values)
    bits, cuts = kernel_input(values).view(np.int32), stripes((0, values.size))
    maxima: list[np.int32] = [np.int32(0)]

    def look(first: int, last: int) -> None:
        maxima.append(largest_of(bits[cuts.begins[first] : cuts.ends[last - 1]]))

    if values.size:
        share(look, cuts)
    return float(np.array(max(maxima), np.int32).view(np.float32))


def scaled(values: Values, share: float) -> Values:
    """A vector times `share`."""
    if not isinstance(values, Coded):
        return values * np.float32(share)
    if values.form == "bf16":
        return values._replace(codes=(values.codes.astype(np.float32) * np.float32(share)).astype(ml_dtypes.bfloat16))
    return values._replace(scales=values.scales * np.float32(share))


def encode(values: Float32, fragment: Fragment, form: str) -> Values:
    """The codes of float32[n], n = fragment.size; for float32 the values themselves."""
    if form == "float32":
        return values
    if form == "bf16":
        halves = np.empty(fragment.size, np.uint16)
        (_encode_halves if HAS_COMPILER else plain_codes.encode_halves)(kernel_input(values).view(np.int32), halves)
        return Coded(halves.view(ml_dtypes.bfloat16), _NONE, form)
    coded = _room(fragment, form)
    if not HAS_COMPILER:
        plain_codes.encode(values, None, fragment, form, coded.codes, coded.scales, None)
        return coded
    _encode(kernel_input(values), _NONE, *_outputs(coded, fragment), empty(0))
    return coded


def advance(target: Float32, published: Float32, fragment: Fragment, form: str) -> tuple[Coded, Float32]:
    """The codes q of target - published, and published + q, which `add` also computes from them; float32[n] each."""
    if form == "bf16":
        halves = encode(target - published, fragment, form)
        assert isinstance(halves, Coded)
        return halves, add(published, halves, fragment)
    coded, moved = _room(fragment, form), empty(fragment.size)
    if not HAS_COMPILER:
        plain_codes.encode(target, published, fragment, form, coded.codes, coded.scales, moved)
        return coded, moved
    _encode(kernel_input(target), kernel_input(published), *_outputs(coded, fragment), moved)
    return coded, moved


def add(published: Float32, coded: Coded, fragment: Fragment) -> Float32:
    """published + the decoded values, float32[n] in a new buffer."""
    moved = empty(fragment.size)
    if not HAS_COMPILER:
        plain_codes.add(published, coded.codes, coded.scales, coded.form, fragment, moved)
        return moved
    sweeps.add_to(kernel_input(published), *kernel_inputs(coded), *places(fragment.offsets), moved)
    return moved


def sampled(values: Values, fragment: Fragment, stride: int) -> Float32:
    """Every value number 0, stride, 2 stride and so on, float32."""
    if not isinstance(values, Coded):
        return values[::stride]
    picked = np.empty(-(-fragment.size // stride), np.float32)
    sweeps.pick(*kernel_inputs(values), *places(fragment.offsets), stride, picked)
    return picked


def warm_pushes() -> None:
    """Compile the kernels that code a push, or load them from the cache; otherwise the first call does it."""
    for form in CODED:
        encode(_ONES, _ONE, form)


def warm_answers() -> None:
    """Compile the kernels that check and sample a coded answer, or load them from the cache."""
    for form in CODED:
        coded, _ = advance(_ONES, _ONES, _ONE, form)
        # Arrays as the wire gives them: read-only.
        codes, scales = (np.frombuffer(part.tobytes(), part.dtype) for part in coded[:2])
        coded = Coded(codes, scales, form)
        is_finite(coded)
        sampled(coded, _ONE, 1)


def warm_updates() -> None:
    """Compile the kernels that code and decode an update, or load them from the cache."""
    for form in CODED:
        add(_ONES, advance(_ONES, _ONES, _ONE, form)[0], _ONE)


def _room(fragment: Fragment, form: str) -> Coded:
    """Codes and scales to be written."""
    where, entry = places(fragment.offsets), FORMATS[form]
    codes = np.empty(int(where.codes[entry.number, -1]), entry.dtype)
    return Coded(codes, np.empty(int(where.scales[-1]), np.float32), form)


def _outputs(coded: Coded, fragment: Fragment) -> tuple[int, Int64, Int64, Int64, Bytes, Float32]:
    """The arguments of `_encode` about its codes."""
    number = FORMATS[coded.form].number
    return number, *places(fragment.offsets), coded.codes.view(np.uint8), coded.scales


@kernel
def largest_of(bits: NDArray[np.int32]) -> np.int32:
    """The largest magnitude of float32 values, as their bits.

    An integer maximum vectorises, a float one does not, nor does one of unsigned integers, which numba widens.
    """
    largest = np.int32(0)
    for i in range(len(bits)):
        magnitude = np.int32(bits[i] & _MAGNITUDE_BITS)
        largest = magnitude if magnitude > largest else largest
    return largest


_LARGEST: Final = largest_of
"""The kernel itself, for whose name numba's own stands once another one calls it."""


@kernel
def _halves_are_finite(halves: NDArray[np.uint16]) -> bool:
    largest = np.uint16(0)
    for half in halves:
        largest = max(largest, np.uint16(half & np.uint16(0x7FFF)))
    return bool(largest < np.uint16(0x7F80))


@kernel
def _encode_halves(bits: NDArray[np.int32], halves: NDArray[np.uint16]) -> None:
    for i in range(len(bits)):
        word = np.uint32(bits[i])
        rounded = np.uint32(word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1)))
        is_nan = np.int32(bits[i] & _MAGNITUDE_BITS) > _EXPONENT_BITS
        halves[i] = np.uint16((np.uint32(word | np.uint32(0x400000)) if is_nan else rounded) >> np.uint32(16))


@kernel
def _encode(
    target: Float32,
    published: Float32,
    form: int,
    offsets: Int64,
    code_offsets: Int64,
    scale_offsets: Int64,
    codes: Bytes,
    scales: Float32,
    moved: Float32,
) -> None:
    """Code target - published, and write published plus the decoded codes to `moved`.

    Where `published` has no values, code `target`.
    """
    room, bits = np.empty(CODE_BLOCK, np.float32), np.empty(1, np.int32)
    largest, is_alone, lanes = bits.view(np.float32), len(published) == 0, np.empty(LANES, np.float32)
    # Views of the whole: one of each block would cost a third of the block's time.
    target_bits, room_bits, signed = target.view(np.int32), room.view(np.int32), codes.view(np.int8)
    levels, by_mean, values = _LEVELS[form], _BY_MEAN[form], VALUES[form]
    code_bits, block_codes = 8 // values, CODE_BLOCK // values
    for unit in range(len(offsets) - 1):
        for number in range(scale_offsets[unit + 1] - scale_offsets[unit]):
            begin = offsets[unit] + number * CODE_BLOCK
            end = min(begin + CODE_BLOCK, offsets[unit + 1])
            block = target[begin:end]
            if not is_alone:
                block = _differences(block, published[begin:end], room[: end - begin])
            if by_mean:
                magnitude = _mean_magnitude(block, lanes)
            else:
                bits[0] = largest_of(target_bits[begin:end] if is_alone else room_bits[: end - begin])
                magnitude = largest[0]
            scale = np.float32(0.0) if magnitude < _LEAST else magnitude / levels
            is_sound = scale > np.float32(0.0) and scale < np.float32(np.inf)
            inverse = np.float32(1.0) / scale if is_sound else np.float32(0.0)
            scales[scale_offsets[unit] + number] = scale
            if form == INT8:
                _write_bytes(block, inverse, signed[begin:end])
            else:
                at = code_offsets[form, unit] + number * block_codes
                count = block_codes if len(block) == CODE_BLOCK else (len(block) + values - 1) // values
                _pack(block, inverse, codes[at : at + count], code_bits, by_mean)
            if is_alone:
                continue
            before, after = published[begin:end], moved[begin:end]
            if by_mean:
                half = np.float32(1 << (code_bits - 1))
                for i in range(len(block)):
                    level = min(max(np.floor(block[i] * inverse), -half), half - np.float32(1.0)) + np.float32(0.5)
                    after[i] = before[i] + level * scale
            else:
                for i in range(len(block)):
                    after[i] = before[i] + _rounded(block[i] * inverse) * scale


@kernel
def _mean_magnitude(block: Float32, lanes: Float32) -> Any:
    """The mean of |x|; value i is added to lane i mod 32, which vectorises without reordering a sum."""
    lanes[:] = np.float32(0.0)
    whole = len(block) - len(block) % LANES
    for begin in range(0, whole, LANES):
        row = block[begin : begin + LANES]
        for lane in range(LANES):
            lanes[lane] += abs(row[lane])
    for lane in range(len(block) - whole):
        lanes[lane] += abs(block[whole + lane])
    total = np.float32(0.0)
    for lane in range(LANES):
        total += lanes[lane]
    return total / np.float32(len(block))


@kernel
def _differences(target: Float32, published: Float32, room: Float32) -> Float32:
    for i in range(len(room)):
        room[i] = target[i] - published[i]
    return room


@kernel
def _rounded(value: Any) -> Any:
    # Not rint: of a small negative value that is -0, whose sum has another sign than that of the decoded 0.
    return (value + _ROUNDER) - _ROUNDER


@kernel
def _write_bytes(block: Float32, inverse: Any, codes: NDArray[np.int8]) -> None:
    if inverse == np.float32(0.0):
        codes[:] = np.int8(0)
        return
    for i in range(len(block)):
        codes[i] = np.int8(np.int32(np.rint(block[i] * inverse)))


@kernel
def _pack(block: Float32, inverse: Any, codes: Bytes, bits: int, by_mean: bool) -> None:
    """Write the codes of a block, of so many `bits`; a place without a value has the code next to 0.

    To that code the rest is added, modulo 256. A product with a power of two is no shift, as in `sweeps`.
    """
    half, filled = 1 << (bits - 1), 0
    lowest, highest = np.float32(-half), np.float32(half - 1)
    for place in range(0, 8, bits):
        filled |= half << place
    codes[:] = np.uint8(filled)
    if inverse == np.float32(0.0):
        return
    begin, size = 0, len(codes)
    for place in range(0, 8, bits):
        part, unit = block[begin : begin + size], np.int32(1 << place)
        begin += size
        if by_mean:
            for i in range(len(part)):
                level = min(max(np.floor(part[i] * inverse), lowest), highest)
                codes[i] = np.uint8(codes[i] + np.int32(level) * unit)
        else:
            for i in range(len(part)):
                codes[i] = np.uint8(codes[i] + np.int32(np.rint(part[i] * inverse)) * unit)
