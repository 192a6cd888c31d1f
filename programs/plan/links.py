"""The traffic on the links of a run, program by program: bits a second in each direction, full duplex.

    decoupled, streaming   mean = N push / (H s) up, N update / (H s) down, one fragment every H / P steps
    diloco                 the same bits, all at once every H steps, while all wait
    data-parallel          2 (M - 1) / M N gradients in every step, a ring; within a share of it, or all wait

with N parameters, M learners, P fragments, H steps between two merges of a fragment, tau of overlap and s seconds a
step. A peak is that of the largest fragment, which the layout keeps within 4/3 of the mean one where tensors allow
(`ops/exchange/fragments.py`). The smallest link without a wait brings the largest fragment to the syncer and back, and
leaves time for its merge, within tau steps, and is no smaller than the means; latency is left out. Below it, or where
shards merge more slowly than fragments come, no learner waits in decoupled-diloco, but H is lengthened until everything
fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from isthmus.ops.exchange.schemas import BITS
from isthmus.programs.plan.wanted import Wanted

LARGEST: Final = 4 / 3
"""Largest fragment, as a multiple of the mean one, at most."""


@final
@dataclass(frozen=True, slots=True)
class Links:
    """The load of links under one program.

    Mean and peak bits a second of a learner's link up and down, and of the link of each syncer shard in the busier
    direction (None without a syncer); the smallest link of a learner on which no step waits, None if steps wait on
    every one; at the given link, the mean wait of a step, and the interval.
    """

    program: str
    up_bits: float
    down_bits: float
    peak_bits: float | None
    shard_bits: float | None
    smallest_bits: float | None
    wait_seconds: float | None
    interval: float | None


def links_of(wanted: Wanted, merge_seconds: float) -> list[Links]:
    """The links of every shipped program; `merge_seconds` is the time of the largest fragment's merge."""
    return [
        _data_parallel(wanted, "data-parallel"),
        _data_parallel(wanted, "elastic-data-parallel"),
        _diloco(wanted, merge_seconds),
        _streaming(wanted, merge_seconds, "streaming-diloco"),
        _streaming(wanted, merge_seconds, "decoupled-diloco"),
    ]


def _data_parallel(of: Wanted, program: str) -> Links:
    bits = 2 * (of.learners - 1) / of.learners * of.parameters * BITS[of.gradients]
    mean, room = bits / of.step_seconds, of.gradient_share * of.step_seconds
    wait = None if of.link_bits is None else max(0.0, bits / of.link_bits - room)
    return Links(program, mean, mean, bits / room, None, bits / room, wait, None)


def _diloco(of: Wanted, merge_seconds: float) -> Links:
    up, down = _means(of)
    wait = None
    if of.link_bits is not None:
        ways = of.parameters * (BITS[of.push] + BITS[of.update]) / of.link_bits
        wait = ways / of.interval + _busy(of, merge_seconds) * of.step_seconds
    return Links("diloco", up, down, None, _shard(of), None, wait, float(of.interval))


def _streaming(of: Wanted, merge_seconds: float, program: str) -> Links:
    up, down = _means(of)
    largest = LARGEST * of.fragment_values
    there_and_back = largest * (BITS[of.push] + BITS[of.update])
    room = of.overlap * of.step_seconds - merge_seconds
    busy = _busy(of, merge_seconds)
    smallest = max(there_and_back / room, up, down) if room > 0 and busy <= 1 else None
    if program == "decoupled-diloco":
        slower = busy if of.link_bits is None else max(busy, max(up, down) / of.link_bits)
        wait, interval = 0.0, of.interval * max(1.0, slower)
        return Links(program, up, down, LARGEST * max(up, down), _shard(of), smallest, wait, interval)
    late = None
    if of.link_bits is not None:
        late = max(0.0, there_and_back / of.link_bits - room) * of.fragments / of.interval
        late = max(late, (max(busy, max(up, down) / of.link_bits) - 1) * of.step_seconds)
    return Links(program, up, down, LARGEST * max(up, down), _shard(of), smallest, late, float(of.interval))


def _busy(of: Wanted, merge_seconds: float) -> float:
    """The share of the time in which each shard merges: above 1, fragments arrive faster than it can merge them."""
    return of.fragments * merge_seconds / LARGEST / (of.interval * of.step_seconds * of.shards)


def _shard(of: Wanted) -> float:
    return max(_means(of)) * of.learners / of.shards


def _means(of: Wanted) -> tuple[float, float]:
    a_second = of.parameters / (of.interval * of.step_seconds)
    return a_second * BITS[of.push], a_second * BITS[of.update]


def overlap_left(of: Wanted, merge_seconds: float) -> float:
    """Seconds of the overlap that the merge of the largest fragment leaves, and its ways on the link that was given."""
    ways = 0.0
    if of.link_bits is not None:
        ways = LARGEST * of.fragment_values * (BITS[of.push] + BITS[of.update]) / of.link_bits
    return of.overlap * of.step_seconds - merge_seconds - ways


def rounds_at_once(of: Wanted) -> int:
    """The maximum number of rounds that each shard has in flight."""
    return math.ceil(of.overlap * of.fragments / (of.interval * of.shards))
