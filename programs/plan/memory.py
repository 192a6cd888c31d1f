"""The least that a learner and a shard of the syncer have to hold, in bytes; activations and buffers come on top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from isthmus.ops.exchange.schemas import BITS
from isthmus.programs.plan.links import LARGEST, rounds_at_once
from isthmus.programs.plan.wanted import Wanted

STATE_BYTES: Final = 16
"""A parameter on an island: value, gradient and two moments of AdamW, float32."""
ANCHOR_BYTES: Final = 4
"""Beside it, in the memory of the learner's machine: the global fragment that it last adopted."""
SHARD_BYTES: Final = 12
"""A parameter on a shard: value, momentum, and published value, float32."""


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: of a learner's island, of the machine it runs on, and of each shard."""

    island: float
    machine: float
    shard: float


def memory_of(of: Wanted) -> Memory:
    """The memory of decoupled-diloco, with a fragment on its way up, one down, and all answers of rounds in flight."""
    largest = LARGEST * of.fragment_values
    answers = rounds_at_once(of) * of.learners * largest * BITS[of.push] / 8
    return Memory(
        STATE_BYTES * of.parameters,
        ANCHOR_BYTES * of.parameters + largest * (BITS[of.push] + BITS[of.update]) / 8,
        SHARD_BYTES * of.parameters / of.shards + answers + 2 * ANCHOR_BYTES * largest,
    )
