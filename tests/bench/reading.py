"""The limit of memory to which kernels are compared: reading arrays once.

It is a module of its own, because numba keeps what it compiles by the name of the module, and a bench's is `__main__`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.ops.kernels.buffers import Float32
from isthmus.ops.kernels.stripes import Int64, Stripes, kernel, kernel_input, share

LANES = 64


def read(gradients: Sequence[Float32], over: Stripes, threads: int) -> None:
    """Sum the gradients: each thread its share of every one of them."""
    sums = np.zeros(len(over), np.float32)
    inputs = [kernel_input(gradient) for gradient in gradients]

    def task(first: int, last: int) -> None:
        for values in inputs:
            _sum(values, over.begins, over.ends, sums, first, last)

    share(task, over, threads)


@kernel
def _sum(values: Float32, begins: Int64, ends: Int64, sums: Float32, first: int, last: int) -> None:
    lanes = np.zeros(LANES, np.float32)
    for s in range(first, last):
        stripe = values[begins[s] : ends[s]]
        for begin in range(0, len(stripe) - LANES + 1, LANES):
            row = stripe[begin : begin + LANES]
            for lane in range(LANES):
                lanes[lane] += row[lane]
        sums[s] = lanes[0]
