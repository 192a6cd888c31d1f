"""Buffers: aligned, new, and recycled only when nobody holds them."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.kernels.buffers import empty
from tests.patience import PATIENCE

LARGE = 2**19


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_buffers_are_aligned_and_writable() -> None:
    for size in (1, 17, 1000, LARGE, LARGE + 3):
        array = empty(size)
        assert array.shape == (size,)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert address(array) % 64 == 0
        array[:] = 1.0


def test_memory_returns_when_the_last_view_goes() -> None:
    array = empty(LARGE)
    where = address(array)
    view = array[5:].reshape(-1)[1:3].view(np.uint32)
    del array
    others = [empty(LARGE) for _ in range(8)]
    assert where not in map(address, others)
    del view
    assert where in [address(each) for each in [empty(LARGE) for _ in range(8)]]


@pytest.mark.long
@pytest.mark.slow
def test_a_large_block_that_nothing_takes_goes_to_the_kernel() -> None:
    """Though malloc has room for it. Smaller ones stay: they are taken from the shelf, where the large one is not."""
    np.empty(31 << 20, np.uint8)[:] = 1  # Freed, it lets malloc keep blocks of up to 31 MiB in its heap from now on.
    apart = [np.ones(8 << 20, np.uint8) for _ in range(8)]
    above = np.ones(1 << 20, np.uint8)  # What is below it stays in the heap when it is free.
    del apart
    large, small = empty(2**23 + 2), empty(LARGE)
    large[:], small[:] = 1.0, 1.0
    where, resident = address(small), own_bytes()  # Not from before: the large one may be a block of another test.
    del large, small
    until = time.monotonic() + PATIENCE
    while resident - own_bytes() < 4 * 2**22:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert where in [address(each) for each in [empty(LARGE) for _ in range(8)]]
    assert above.all()


@pytest.mark.slow
def test_what_jax_was_given_is_not_written_again() -> None:
    array = empty(LARGE)
    array[:] = 7.0
    held = jax.device_put(array)
    assert held.unsafe_buffer_pointer() == address(array)
    del array
    gc.collect()
    for _ in range(8):
        empty(LARGE)[:] = 0.0
    assert float(held.min()) == 7.0


def test_a_memoryview_holds_the_memory() -> None:
    array = empty(LARGE)
    array[:] = 7.0
    held = memoryview(array).cast("B")[8:16]
    del array
    for _ in range(8):
        empty(LARGE)[:] = 0.0
    assert np.frombuffer(held, np.float32).tolist() == [7.0, 7.0]


@given(st.lists(st.one_of(st.integers(0, 3), st.sampled_from([LARGE, LARGE + 1, LARGE + LARGE // 8, 2 * LARGE]))))
def test_live_buffers_never_overlap(actions: list[int]) -> None:
    live: list[tuple[np.ndarray, float]] = []
    for number, action in enumerate(actions):
        if action < 4:
            del live[action : action + 1]
        else:
            array = empty(action)
            array[::1024] = number
            live.append((array, number))
        assert all((array[::1024] == value).all() for array, value in live)
    spans = sorted((address(array), address(array) + array.nbytes) for array, _ in live)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
