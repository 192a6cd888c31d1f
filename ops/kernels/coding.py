"""Vectors in fewer bits: the codes of an outer gradient, and of the change that an outer step makes to a fragment.

Decides what is lost. Does not decide what is coded, nor what becomes of the loss.

Theory of operation. Each unit is cut, from its own start, into blocks of 256 values, each with one scale:

    int8    scale = max |x| / 127, code = x / scale rounded, ties to even
    int4    scale = max |x| / 7,   code = x / scale rounded, ties to even; -8 is no code
    bf16    x rounded to the nearest bfloat16, ties to even; no scales

A block that is not finite has a scale that is not finite, so scales alone tell whether values are finite; a block whose
values are all below 1e-35 is coded as zeros. Decoding (`sweeps`) is one rounded product, and adding it to a value one
rounded sum; `advance` does just that as it codes, so that adding the codes gives its result bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.schemas import CODE_BLOCK, CODE_LEAST
from isthmus.ops.kernels import sweeps
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.stripes import Int64, kernel, kernel_input, share, stripes
from isthmus.ops.kernels.sweeps import BF16, FLOAT32, INT4, INT8, Bytes

CodeFormat: TypeAlias = Literal["bf16", "int8", "int4"]
_FORMS: Final = {"bf16": BF16, "int8": INT8, "int4": INT4}
_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    BF16: np.dtype(ml_dtypes.bfloat16),
    INT8: np.dtype(np.int8),
    INT4: np.dtype(np.uint8),
}
SCALE_MAX: Final = float(np.finfo(np.float32).max) / 128
"""The largest scale that decodes to finite values for all codes."""
_NONE: Final = np.empty(0, np.float32)
_NONE.setflags(write=False)

_ONES: Final = np.ones(2, np.float32)
_ONE: Final = Fragment(0, (Unit("a", 0, 2, (2,)),))
_MAGNITUDE_BITS: Final = np.int32(0x7FFFFFFF)
_EXPONENT_BITS: Final = np.int32(0x7F800000)
_LEAST: Final = np.float32(CODE_LEAST)
_ROUNDER: Final = np.float32(12582912.0)
"""1.5 * 2^23: adding and subtracting it rounds a value below 2^22 to an integer, ties to even."""


class Coded(NamedTuple):
    """A coded float32[n].

    `codes` are bfloat16[n], int8[n] or, for int4, uint8[ceil(n_u / 2) summed over units]; `scales` float32[blocks],
    none for bf16.
    """

    codes: NDArray[Any]
    scales: Float32


Values: TypeAlias = Float32 | Coded


class UnitOffsets(NamedTuple):
    """The offsets of each unit: in values, in bytes of int4 and in scales, int64[units + 1]."""

    offsets: Int64
    codes: Int64
    scales: Int64


@lru_cache(maxsize=256)
def places(offsets: tuple[int, ...]) -> UnitOffsets:
    """The places of a payload whose unit u holds values [offsets[u], offsets[u + 1])."""
    at = np.array(offsets, np.int64)
    sizes = np.diff(at)
    starts = np.zeros(1, np.int64)
    codes = np.concatenate([starts, np.cumsum(-(-sizes // 2))])
    scales = np.concatenate([starts, np.cumsum(-(-sizes // CODE_BLOCK))])
    return UnitOffsets(at, codes, scales)


def as_sent(codes: NDArray[Any], scales: Float32 | None) -> Values:
    """The vector that arrived as `codes`, which are the values if they are float32, and `scales`, if any."""
    if codes.dtype == np.float32:
        return codes
    return Coded(codes, _NONE if scales is None else scales)


def item_fields(name: str, values: Values) -> dict[str, Any]:
    """The fields of an item for `as_sent`, the first with this name."""
    if not isinstance(values, Coded):
        return {name: values}
    return {name: values.codes, "scales": values.scales} if values.scales.size else {name: values.codes}


def is_whole(values: Values, fragment: Fragment) -> bool:
    """Whether there are as many codes and scales as the fragment needs."""
    if not isinstance(values, Coded):
        return values.shape == (fragment.size,)
    form, where = form_of(values), places(fragment.offsets)
    codes = int(where.codes[-1]) if form == INT4 else fragment.size
    return values.codes.shape == (codes,) and values.scales.shape == (0 if form == BF16 else int(where.scales[-1]),)


def form_of(values: Values) -> int:
    """The number of a format, as in the kernels."""
    if not isinstance(values, Coded):
        return FLOAT32
    return next(form for form, dtype in _DTYPES.items() if dtype == values.codes.dtype)


def kernel_inputs(values: Values) -> tuple[Bytes, Float32, int]:
    """(bytes, scales, format), for kernels."""
    if not isinstance(values, Coded):
        return kernel_input(values).view(np.uint8), _NONE, FLOAT32
    codes = np.require(values.codes, None, ["C", "A"]).view(np.uint8)
    codes.flags.writeable = False
    return codes, kernel_input(values.scales), form_of(values)


def is_finite(values: Values) -> bool:
    """Whether all values are finite; for int8 and int4 by the scales, which must not be negative either."""
    if not isinstance(values, Coded):
        return largest(values) < np.inf
    if form_of(values) == BF16:
        return bool(_halves_are_finite(np.require(values.codes, None, ["C", "A"]).view(np.uint16)))
    return bool(((values.scales >= 0) & (values.scales <= SCALE_MAX)).all())


def largest(values: Float32) -> float:
    """The largest magnitude in float32[n], 0 without any; inf or nan where a value is not finite."""
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
    if form_of(values) == BF16:
        return Coded((values.codes.astype(np.float32) * np.float32(share)).astype(ml_dtypes.bfloat16), values.scales)
    return Coded(values.codes, values.scales * np.float32(share))


def encode(values: Float32, fragment: Fragment, code_format: CodeFormat) -> Coded:
    """The codes of float32[n], n = fragment.size."""
    form, where = _FORMS[code_format], places(fragment.offsets)
    if form == BF16:
        halves = np.empty(fragment.size, np.uint16)
        _encode_halves(kernel_input(values).view(np.int32), halves)
        return Coded(halves.view(ml_dtypes.bfloat16), _NONE)
    coded = _room(fragment, form)
    _encode(kernel_input(values), _NONE, form, *where, coded.codes.view(np.uint8), coded.scales, empty(0))
    return coded


def advance(target: Float32, published: Float32, fragment: Fragment, code_format: CodeFormat) -> tuple[Coded, Float32]:
    """The codes q of target - published, and published + q, which `add` also computes from them; float32[n] each."""
    form, where = _FORMS[code_format], places(fragment.offsets)
    if form == BF16:
        coded = encode(target - published, fragment, code_format)
        return coded, add(published, coded, fragment)
    coded, moved = _room(fragment, form), empty(fragment.size)
    raw = coded.codes.view(np.uint8)
    _encode(kernel_input(target), kernel_input(published), form, *where, raw, coded.scales, moved)
    return coded, moved


def add(published: Float32, coded: Coded, fragment: Fragment) -> Float32:
    """published + the decoded values, float32[n] in a new buffer."""
    moved = empty(fragment.size)
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
    for code_format in get_args(CodeFormat):
        encode(_ONES, _ONE, code_format)


def warm_answers() -> None:
    """Compile the kernels that check and sample a coded answer, or load them from the cache."""
    for code_format in get_args(CodeFormat):
        coded = Coded(*(np.frombuffer(part.tobytes(), part.dtype) for part in encode(_ONES, _ONE, code_format)))
        is_finite(coded)  # Arrays as the wire gives them: read-only.
        sampled(coded, _ONE, 1)


def warm_updates() -> None:
    """Compile the kernels that code and decode an update, or load them from the cache."""
    for code_format in get_args(CodeFormat):
        add(_ONES, advance(_ONES, _ONES, _ONE, code_format)[0], _ONE)


def _room(fragment: Fragment, form: int) -> Coded:
    where = places(fragment.offsets)
    codes = np.empty(int(where.codes[-1]) if form == INT4 else fragment.size, _DTYPES[form])
    return Coded(codes, np.empty(int(where.scales[-1]), np.float32))


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
    largest, is_alone = bits.view(np.float32), len(published) == 0
    # Views of the whole: one of each block would cost a third of the block's time.
    target_bits, room_bits, signed = target.view(np.int32), room.view(np.int32), codes.view(np.int8)
    levels = np.float32(127.0) if form == INT8 else np.float32(7.0)
    for unit in range(len(offsets) - 1):
        for number in range(scale_offsets[unit + 1] - scale_offsets[unit]):
            begin = offsets[unit] + number * CODE_BLOCK
            end = min(begin + CODE_BLOCK, offsets[unit + 1])
            block = target[begin:end]
            if is_alone:
                bits[0] = largest_of(target_bits[begin:end])
            else:
                block = _differences(block, published[begin:end], room[: end - begin])
                bits[0] = largest_of(room_bits[: end - begin])
            scale = np.float32(0.0) if largest[0] < _LEAST else largest[0] / levels
            is_sound = scale > np.float32(0.0) and scale < np.float32(np.inf)
            inverse = np.float32(1.0) / scale if is_sound else np.float32(0.0)
            scales[scale_offsets[unit] + number] = scale
            if form == INT8:
                _write_bytes(block, inverse, signed[begin:end])
            else:
                at = code_offsets[unit] + number * (CODE_BLOCK // 2)
                _write_pairs(block, inverse, codes[at : at + (end - begin + 1) // 2])
            if not is_alone:
                before, after = published[begin:end], moved[begin:end]
                for i in range(len(block)):
                    after[i] = before[i] + _rounded(block[i] * inverse) * scale


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
def _write_pairs(block: Float32, inverse: Any, codes: Bytes) -> None:
    if inverse == np.float32(0.0):
        codes[:] = np.uint8(136)
        return
    half = len(codes)
    lower, upper = block[:half], block[half:]
    for i in range(len(upper)):
        low, high = np.int32(np.rint(lower[i] * inverse)), np.int32(np.rint(upper[i] * inverse))
        codes[i] = np.uint8((low + np.int32(8)) | ((high + np.int32(8)) << np.int32(4)))
    if len(upper) < half:
        codes[half - 1] = np.uint8(np.int32(np.rint(lower[half - 1] * inverse)) + np.int32(136))
