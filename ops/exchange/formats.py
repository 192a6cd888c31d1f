"""The formats of vectors as they travel: one entry each, and whatever else depends on a format reads it there.

Decides which formats there are, their sizes, and how much of a length their codes keep. How codes are made and read is
the kernels' (`kernels.coding`, `kernels.sweeps`; on devices `gang.mesh_devices`), which go by the fields of an entry.

Theory of operation. A scaled format cuts each unit, from its own start, into blocks of 256 values with one float32
scale each: the largest magnitude of the block or its mean one, divided by `levels`. Codes of 8 bits are signed
integers. Packed ones, of 4, 2 and 1 bits, stand for (code - middle) * scale:

    int4    scale = largest / 7, middle 8: -7 to 7, ties to even; -8 is no code
    int2    scale = mean, middle 1.5: -1.5, -.5, .5 and 1.5 times the mean magnitude
    int1    scale = 2 mean, middle .5: the sign times the mean magnitude

A block cut into `values` equal parts, the last of which may be shorter, has value i of part j in bits j * 8 / values
and above of byte i. Few bits that are scaled to the largest value lose most others: by the mean they lose the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, get_args

import ml_dtypes
import numpy as np

from isthmus.ops.exchange.requested import Format

CODE_BLOCK: Final = 256
"""Values that share a scale: the largest of them costs the others the least precision, and a scale of 4 bytes is 3 % of
the codes of 4 bits."""
LANES: Final = 32
"""Of a sum over a block: value i goes to lane i mod 32, and the lanes are added in their order. Its bits depend on no
vector width, and on no order that a compiler chooses."""
CODE_LEAST: Final = 1e-35
"""A block whose largest or mean magnitude is below it is coded as zeros: above it a scale is a normal float32, which no
device flushes to zero, and the levels divided by it are finite."""


class WireFormat(NamedTuple):
    """One format. A sound gradient's norm is between `length_least` and `length_most` times that of what its codes
    stand for.
    """

    number: int
    """That in kernels."""
    dtype: np.dtype[Any]
    """Of the elements that hold the codes."""
    values: int = 1
    """How many codes an element holds."""
    levels: float = 0.0
    """What the largest magnitude of a block is divided by for its scale, 0 without scales."""
    by_mean: bool = False
    """Not the largest magnitude is, but the mean one."""
    length_least: float = 0.9
    length_most: float = 1.1

    @property
    def bits(self) -> float:
        """Bits of a value as it travels, with its share of the scale."""
        return 8 * self.dtype.itemsize / self.values + (32 / CODE_BLOCK if self.levels else 0)

    def payload(self, sizes: Iterable[int]) -> int:
        """The bytes of codes and scales of units of these sizes."""
        scale_bytes = 4 if self.levels else 0
        return sum(
            self.dtype.itemsize * -(-size // self.values) + scale_bytes * -(-size // CODE_BLOCK) for size in sizes
        )

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return 8 * self.dtype.itemsize // self.values


FORMATS: Final[Mapping[str, WireFormat]] = {
    "float32": WireFormat(0, np.dtype(np.float32)),
    "bf16": WireFormat(1, np.dtype(ml_dtypes.bfloat16)),
    "int8": WireFormat(2, np.dtype(np.int8), levels=127.0),
    # Of a block of which one value is 14 and the others nearly 1, all others are coded as 0: it was 1.52 times as long;
    # where they are a little above 1, it was .61 times as long.
    "int4": WireFormat(3, np.dtype(np.uint8), 2, levels=7.0, length_least=0.4, length_most=1.6),
    # Of a block with one value that is not zero, 1.5 / 256 and 255 times .5 / 256 of that value are left: it was 31.6
    # times as long. Where all are as large, it was 1 / 1.5 times as long.
    "int2": WireFormat(4, np.dtype(np.uint8), 4, levels=1.0, by_mean=True, length_least=0.6, length_most=35.0),
    # The same block has 256 times 1 / 256 of that value: it was 16 times as long. No block gets longer.
    "int1": WireFormat(5, np.dtype(np.uint8), 8, levels=0.5, by_mean=True, length_least=0.9, length_most=18.0),
}
MEASURED: Final[Mapping[tuple[Format, int], float]] = {
    ("int4", 24): 0.0,
    ("int4", 48): 0.027,
    ("int4", 96): 0.047,
    ("int2", 24): 0.017,
    ("int2", 48): 0.041,
    ("int2", 96): 0.055,
    ("int1", 24): 0.021,
    ("int1", 48): 0.044,
    ("int1", 96): 0.077,
}
"""(push, interval) -> nats a byte by which the loss ends above int4 at 24 steps, by MEASURED_BY: a model of 0.13
M parameters, 4 learners, 4.1 M tokens, one seed. Finer formats cost as much as int4 (docs/explanation/ablations.md)."""
MEASURED_BY: Final = (
    "isthmus compare decoupled-diloco --sweep program.push=int4,int2,int1 --sweep program.interval=24,48,96 "
    "--set task.batch=8 --tokens 4100000 --speeds 1 --seeds 1"
)
STATE_FORMAT: Final[Format] = "int8"
"""The format of what a shard's neighbour keeps beside published values: the error is 1/254 of the largest magnitude of
a block at most."""


def state_code_bits(update: str, *, has_momentum: bool) -> float:
    """Bits of a value of what a shard's neighbour has in codes, beside published values: the momentum, where there is
    one, and, where updates are coded, the exact values."""
    return (has_momentum + (update != "float32")) * FORMATS[STATE_FORMAT].bits


CODED: Final[tuple[Format, ...]] = tuple(name for name in get_args(Format) if name != "float32")
"""The names of those that are codes."""
