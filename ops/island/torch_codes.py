"""Codes of outer gradients, made on the device of a module in PyTorch before anything is copied to the host.

Formats, blocks and scales are those of `kernels.coding`, bit for bit where the device's float32 division is correctly
rounded (`gang.mesh_devices` says it of jax). All units are coded together, in blocks of which the last of each unit is
filled up with zeros: these change no scale. How the codes of a shorter block are packed depends on its length, so such
blocks leave a code a byte, and are packed on the host, at most one of each unit.

Memory. The anchor arrives, and the gradient is beside it in blocks until it is coded, CHUNK_BLOCKS at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.ops.exchange.formats import CODE_BLOCK, CODE_LEAST, FORMATS, LANES, WireFormat
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.torch_device import TorchDevice

CHUNK_BLOCKS: Final = 1 << 16
"""Blocks that are coded at a time: 64 MiB of values, and some times as much of what is made of them."""


class _UnitBlocks(NamedTuple):
    """Where the values of a unit are: its blocks, and the length of the last, shorter one, 0 if there is none."""

    begin: int
    end: int
    rest: int

    @property
    def whole(self) -> int:
        """The end of its whole blocks."""
        return self.end - bool(self.rest)


@lru_cache(maxsize=256)
def _places(offsets: tuple[int, ...]) -> tuple[_UnitBlocks, ...]:
    """The places of the units of a fragment, of which unit u has the values [offsets[u], offsets[u + 1])."""
    places, begin = list[_UnitBlocks](), 0
    for first, last in pairwise(offsets):
        end = begin - (first - last) // CODE_BLOCK
        places.append(_UnitBlocks(begin, end, (last - first) % CODE_BLOCK))
        begin = end
    return tuple(places)


@final
class LeavingCodes:
    """The codes of one fragment's outer gradient, on their way to the host (`contract.Codes`)."""

    def __init__(
        self,
        fragment: Fragment,
        push: str,
        values: Sequence[torch.Tensor],
        anchor: torch.Tensor,
        device: TorchDevice,
    ) -> None:
        """`values` are the units where they lie; `anchor`, float32[n], is there, too."""
        self._push, self._places = push, _places(tuple(fragment.offsets))
        blocks = _gradient(fragment, self._places, values, anchor)
        sizes = device.arrive(torch.from_numpy(_sizes(self._places))) if FORMATS[push].by_mean else None
        parts = list(zip(*_coded(push, blocks, sizes), strict=True))
        codes, scales, squares = (torch.cat(each) if len(each) > 1 else each[0] for each in parts)
        rests = [place.end - 1 for place in self._places if place.rest]
        self._short: Any = None
        entry = FORMATS[push]
        if rests:
            picked = device.arrive(torch.from_numpy(np.array(rests)))
            self._short = device.leave(codes[picked], "answer")
        self._codes = device.leave(_packed(codes, entry) if entry.values > 1 else codes, "answer")
        self._scales, self._squares = device.leave(scales, "answer"), device.leave(squares, "answer")

    def fetch(self) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32], str]:
        """Wait for them: (codes, scales, norms per unit, format)."""
        entry = FORMATS[self._push]
        codes = np.concatenate(list(self._parts(entry)))
        scales, squares = np.asarray(self._scales), np.asarray(self._squares)
        lengths = scales.astype(np.float64) ** 2 * squares
        norms = np.sqrt(np.add.reduceat(lengths, [place.begin for place in self._places])).astype(np.float32)
        return codes, np.array(scales) if entry.levels else np.empty(0, np.float32), norms, self._push

    def _parts(self, entry: WireFormat) -> Iterator[NDArray[Any]]:
        """The codes of all units, in their order."""
        whole = np.asarray(self._codes)
        short = iter(() if self._short is None else np.asarray(self._short))
        for place in self._places:
            yield whole[place.begin : place.whole].reshape(-1)
            if place.rest:
                values = next(short)[: place.rest]
                yield values if entry.values == 1 else _packed_by_host(values, entry)


def _gradient(
    fragment: Fragment, places: Sequence[_UnitBlocks], values: Sequence[torch.Tensor], anchor: torch.Tensor
) -> torch.Tensor:
    """The outer gradient, anchor - values, in blocks float32[blocks, CODE_BLOCK]."""
    blocks = torch.empty((places[-1].end, CODE_BLOCK), dtype=torch.float32, device=anchor.device)
    flat = blocks.view(-1)
    units = zip(fragment.units, places, values, pairwise(fragment.offsets), strict=True)
    for unit, place, held, (first, last) in units:
        then, now = anchor[first:last], held.reshape(-1)
        if unit.dtype != "float32":  # What adoption rounded away was not trained.
            then, now = then.to(held.dtype).to(torch.float32), now.to(torch.float32)
        at = place.begin * CODE_BLOCK
        torch.sub(then, now, out=flat[at : at + last - first])
        if place.rest:
            flat[at + last - first : place.end * CODE_BLOCK].zero_()
    return blocks


def _sizes(places: Sequence[_UnitBlocks]) -> NDArray[np.float32]:
    """The number of values of each block, float32[blocks]."""
    sizes = np.full(places[-1].end, CODE_BLOCK, np.float32)
    for place in places:
        if place.rest:
            sizes[place.whole] = place.rest
    return sizes


def _coded(push: str, blocks: torch.Tensor, sizes: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, ...]]:
    """(codes, scales, squares) of some blocks at a time, by a mean where there are their `sizes`; packed formats have a
    code a byte."""
    entry = FORMATS[push]
    for number, block in enumerate(blocks.split(CHUNK_BLOCKS)):
        magnitudes, first = block.abs(), number * CHUNK_BLOCKS
        size = None if sizes is None else sizes[first : first + len(block)]
        magnitude = magnitudes.amax(1) if size is None else _sums(magnitudes) / size
        del magnitudes
        # Of tensors, because by a number some devices divide by a product with its inverse.
        quotient = magnitude / torch.full_like(magnitude, entry.levels or 1.0)
        scales = torch.where(magnitude < CODE_LEAST, torch.zeros_like(quotient), quotient)
        is_sound = (scales > 0.0) & (scales < torch.inf)
        inverse = torch.where(is_sound, torch.ones_like(scales) / scales, torch.zeros_like(scales))
        scaled = block * inverse[:, None]
        squares = scaled.square().sum(1)
        if not entry.levels:
            yield block.to(torch.bfloat16), scales, squares
            continue
        rounded = scaled.floor_() if entry.by_mean else scaled.round_()
        # Of a block that is not finite the scale says so; its codes are zeros.
        rounded = torch.where(is_sound[:, None], rounded, torch.zeros_like(rounded))
        if entry.values == 1:
            yield rounded.to(torch.int8), scales, squares
            continue
        half = 1 << (entry.code_bits - 1)
        yield (rounded + half).clamp_(0, 2 * half - 1).to(torch.uint8), scales, squares


def _sums(magnitudes: torch.Tensor) -> torch.Tensor:
    """The sum of each block, none of whose values is negative: value i goes to lane i mod LANES, and the lanes are
    added in their order, as in the kernels."""
    lanes = torch.zeros((len(magnitudes), LANES), dtype=torch.float32, device=magnitudes.device)
    for part in magnitudes.split(LANES, 1):
        lanes += part
    total = torch.zeros(len(magnitudes), dtype=torch.float32, device=magnitudes.device)
    for lane in lanes.unbind(1):
        total += lane
    return total


def _packed(codes: torch.Tensor, entry: WireFormat) -> torch.Tensor:
    """The bytes of codes uint8[blocks, CODE_BLOCK] of whole blocks, as `formats` has them."""
    parts = codes.split(CODE_BLOCK // entry.values, 1)
    packed = parts[0].clone()
    for place, part in enumerate(parts[1:], 1):
        packed |= part << (place * entry.code_bits)
    return packed


def _packed_by_host(codes: NDArray[np.uint8], entry: WireFormat) -> NDArray[np.uint8]:
    """The same of one shorter block."""
    size, half = -(-len(codes) // entry.values), 1 << (entry.code_bits - 1)
    whole = np.full(size * entry.values, half, np.uint8)
    whole[: len(codes)] = codes
    packed = np.zeros(size, np.uint8)
    for place in range(entry.values):
        packed |= whole[place * size : (place + 1) * size] << np.uint8(place * entry.code_bits)
    return packed
