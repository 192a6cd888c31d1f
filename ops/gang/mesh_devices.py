"""The devices of an island, as jax knows them, and codes of outer gradients made on them before anything is copied to
the host.

Decides which devices an island has, and refuses others: jax silently falls back to the CPU where an accelerator cannot
be used, and the run would be slow for no visible reason. Formats, blocks and scales are those of `kernels.coding`; on a
device whose float32 division is correctly rounded the codes are the same, bit for bit. On others a scale may differ in
its last bit; it travels with its codes, so they decode to the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from isthmus.ops.exchange.formats import CODE_BLOCK, CODE_LEAST, FORMATS, LANES, WireFormat
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.gang.mesh_island import LearnerDevices


def unless_usual(devices: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """These devices; None for the one that jax uses by default, which need not be named."""
    return None if devices == tuple(jax.local_devices()[:1]) else devices


class IslandError(RuntimeError):
    """An island that differs from the learner's placement."""


def devices_of(island: LearnerDevices | None) -> tuple[Any, ...]:
    """The devices of an island, all of this process's for None; IslandError if they differ from the placement."""
    if island is not None and island.refusal:
        raise IslandError(island.refusal)
    devices = tuple(jax.local_devices())
    if island is None:
        return devices
    kinds = {kind.casefold() for kind in island.kinds}
    present = sorted({str(device.device_kind) for device in devices})
    if kinds and not kinds.issuperset(map(str.casefold, present)):
        raise IslandError(
            f"Opening an island: expected devices of kind {island.kinds[0]!r}, as its machine was declared, found "
            f"{', '.join(map(repr, present))}. Correct `device` of the machine in the cluster file, or install what "
            "jax needs for it there."
        )
    if island.size > 1:
        return _of_several(island.devices or len(devices), island.size)
    if island.devices is None:
        return devices
    end = island.begin + island.devices
    if len(devices) < end:
        raise IslandError(
            f"Opening an island: expected {end} devices, found {len(devices)} of kind {present[0]!r}. Correct "
            "`devices` of the machine in the cluster file."
        )
    return devices[island.begin : end]


def _of_several(each: int, size: int) -> tuple[Any, ...]:
    """The devices of all processes of an island, by process; IslandError if any process has another number of them."""
    devices = tuple(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    counts = [sum(device.process_index == number for device in devices) for number in range(size)]
    if counts != [each] * size:
        raise IslandError(
            f"Opening an island of {size} processes: expected {each} devices of each, found {counts}. Give every "
            "machine of an island the same `devices`."
        )
    return devices


def levels_of(fragment: Fragment, push: str) -> NDArray[np.float32]:
    """What the magnitude of each block of a fragment is divided by for its scale, float32[blocks].

    The magnitude is the largest, or where the format is `by_mean` the sum: then the level, a power of two, times the
    number of values, whose quotient is that of two divisions, bit for bit. Of formats without scales, which serve their
    norms, 1.
    """
    entry = FORMATS[push]
    sizes = [
        min(CODE_BLOCK, end - at) for begin, end in pairwise(fragment.offsets) for at in range(begin, end, CODE_BLOCK)
    ]
    return np.array([(entry.levels or 1.0) * (size if entry.by_mean else 1) for size in sizes], np.float32)


def block_counts(fragment: Fragment) -> list[int]:
    """How many blocks each unit has."""
    return [-(-(end - begin) // CODE_BLOCK) for begin, end in pairwise(fragment.offsets)]


class FetchedCodes(NamedTuple):
    """What leaves a host: `codes`, `scales` and `form` as `kernels.coding.Coded` has them; `norms`, float32[units]."""

    codes: NDArray[Any]
    scales: NDArray[np.float32]
    norms: NDArray[np.float32]
    form: str


class DeviceCodes:
    """The codes of one fragment's outer gradient, `arrays` on their way to the host, as `coded` makes them."""

    def __init__(self, fragment: Fragment, push: str, arrays: Sequence[Any]) -> None:
        self._fragment, self._push, self._arrays = fragment, push, arrays

    def fetch(self) -> FetchedCodes:
        """Wait for them."""
        codes, scales, squares = map(np.asarray, self._arrays)
        each = scales.astype(np.float64) ** 2 * squares
        firsts = np.cumsum([0, *block_counts(self._fragment)[:-1]])
        norms = np.sqrt(np.add.reduceat(each, firsts)).astype(np.float32)
        return FetchedCodes(codes, scales if FORMATS[self._push].levels else scales[:0], norms, self._push)


def coded(
    fragment: Fragment, push: str, values: Sequence[Any], anchors: Sequence[Any], levels: Any, everywhere: Any = None
) -> list[jax.Array]:
    """(codes, scales, squares) of anchors - values, unit by unit.

    Arguments:
        values: the units of a fragment, as they are held.
        anchors: the same as they were published, float32; rounded here to what the leaf can hold, as adoption does.
        levels: `levels_of` the fragment, traced.
        everywhere: the sharding of what is whole on each of several devices.

    Of each unit, whole blocks are coded together, and what is left as one shorter block. A value times the inverse of
    its scale is one rounded product, and then rounded to an integer by itself: there is no sum that a compiler could
    fuse with it. The levels are an argument, one for each block, because XLA turns a division by a constant, or by one
    number for all, into a product. A mean is of a sum that is written out in the order of the kernels, addition by
    addition: the order of a reduction is free to XLA, and another one changes the last bit of most scales. A norm is
    the root of a sum over blocks, in float64: of each block the squares of its values in units of its scale, which are
    between 0 and some millions whatever the values are, summed in float32 on the device. An array that lies on several
    devices is coded by all of them; codes are whole on each device afterwards, so one copy to the host has all.
    """

    # XLA's partitioner dies of some slices and concatenations of what lies differently (jaxlib 0.10.2): none is cut.
    def whole(arrays: Any) -> Any:
        return arrays if everywhere is None else jax.lax.with_sharding_constraint(arrays, everywhere)  # type: ignore[no-untyped-call]

    own = whole(jnp.split(levels, np.cumsum(block_counts(fragment))[:-1]))
    units = zip(fragment.units, anchors, values, own, strict=True)
    unit_codes = whole([_unit(push, _gradient(unit.dtype, anchor, held), each) for unit, anchor, held, each in units])
    return [jnp.concatenate(parts) for parts in zip(*unit_codes, strict=True)]


def _gradient(dtype: str, anchor: Any, values: Any) -> Any:
    """The outer gradient of a unit, float32[n] in C order."""
    return jnp.ravel(anchor.astype(dtype).astype(jnp.float32) - values.astype(jnp.float32).reshape(anchor.shape))


def _unit(push: str, gradient: Any, levels: Any) -> tuple[Any, ...]:
    """(codes, scales, squares) of one unit."""
    whole = gradient.size // CODE_BLOCK * CODE_BLOCK
    rows = [gradient[:whole].reshape(-1, CODE_BLOCK), gradient[whole:].reshape(1, -1)]
    blocks = levels[: len(rows[0])], levels[len(rows[0]) :]
    parts = [_blocks(push, row, level) for row, level in zip(rows, blocks, strict=True) if row.size]
    return tuple(jnp.concatenate(each) for each in zip(*parts, strict=True))


def _blocks(push: str, block: Any, levels: Any) -> tuple[Any, Any, Any]:
    """The same of float32[blocks, size], flat."""
    entry, magnitudes = FORMATS[push], jnp.abs(block)
    divided = _sums(magnitudes) if entry.by_mean else jnp.max(magnitudes, axis=1)
    quotient = divided / levels
    magnitude = quotient * np.float32(entry.levels) if entry.by_mean else divided  # The level of a mean is exact.
    scales = jnp.where(magnitude < np.float32(CODE_LEAST), jnp.float32(0.0), quotient)
    is_sound = (scales > 0.0) & (scales < jnp.inf)
    inverse = jnp.where(is_sound, jnp.float32(1.0) / scales, jnp.float32(0.0))
    scaled = block * inverse[:, None]
    squares = jnp.sum(jnp.square(scaled), axis=1)
    if not entry.levels:
        return block.astype(entry.dtype).ravel(), scales, squares
    # Of a block that is not finite the scale says so; its codes are zeros.
    rounded = jnp.where(is_sound[:, None], jnp.floor(scaled) if entry.by_mean else jnp.round(scaled), jnp.float32(0.0))
    if entry.values == 1:
        return rounded.astype(entry.dtype).ravel(), scales, squares
    half = 1 << (entry.code_bits - 1)
    codes = jnp.clip(rounded + half, 0, 2 * half - 1).astype(entry.dtype)
    return _packed(codes, entry).ravel(), scales, squares


def _sums(magnitudes: Any) -> Any:
    """The sum of each row of float32[blocks, size], none of them negative: value i goes to lane i mod LANES, and the
    lanes are added in their order, as in the kernels."""
    size = magnitudes.shape[1]
    rows = jnp.pad(magnitudes, ((0, 0), (0, -size % LANES))).reshape(len(magnitudes), -1, LANES)
    lanes = reduce(jnp.add, [rows[:, at] for at in range(rows.shape[1])])
    return reduce(jnp.add, [lanes[:, at] for at in range(LANES)])


def _packed(codes: Any, entry: WireFormat) -> Any:
    """The bytes of codes uint8[blocks, size], as `formats` has them."""
    size, half = -(-codes.shape[1] // entry.values), 1 << (entry.code_bits - 1)
    whole = jnp.pad(codes, ((0, 0), (0, size * entry.values - codes.shape[1])), constant_values=half)
    parts = [whole[:, at * size : (at + 1) * size] << (at * entry.code_bits) for at in range(entry.values)]
    return reduce(jnp.bitwise_or, parts)
