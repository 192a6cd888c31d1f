"""Buffers: aligned, new, and recycled only when nobody holds them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given as from_hypothesis
from hypothesis import strategies as st

from isthmus.ops.kernels.buffers import Lent, Loose, empty, given, taken
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


def test_values_that_nobody_else_has_change_in_their_memory() -> None:
    lent = Lent(LARGE)
    lent.array.fill(1.0)
    where, loose = address(lent.array), Loose(lent.array)
    lent.array.setflags(write=False)  # As a host does with what a body emits.
    assert loose.get() is not None
    changed = lent.changing()
    assert (changed is lent, address(changed.array), loose.get()) == (True, where, None)
    changed.array += 1.0
    assert (changed.array == 2.0).all()


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[7:9].view(np.uint8),
        lambda array: memoryview(array).cast("B")[4:8],
        lambda array: Loose(array).get(),
        lambda array: {"tensors": [array]},
    ],
)
def test_values_that_somebody_has_stay_and_others_have_memory_of_their_own(hold: Callable[[np.ndarray], Any]) -> None:
    lent = Lent(LARGE)
    lent.array.fill(1.0)
    loose, held = Loose(lent.array), hold(lent.array)
    changed = lent.changing()
    changed.array.fill(2.0)
    del lent
    for _ in range(8):
        empty(LARGE)[:] = 3.0
    before = loose.get()
    assert before is not None
    assert (before == 1.0).all()
    assert not before.flags.writeable
    assert (changed.array == 2.0).all()
    where = address(before)
    del held, before
    assert loose.get() is None
    assert where in [address(each) for each in [empty(LARGE) for _ in range(8)]]


def test_small_values_never_change_in_their_memory() -> None:
    lent = Lent(3)
    lent.array[:] = 1.0, 2.0, 3.0
    loose, changed = Loose(lent.array), lent.changing()
    changed.array.fill(0.0)
    assert loose.get() is lent.array
    assert lent.array.tolist() == [1.0, 2.0, 3.0]


def test_what_was_given_away_is_taken_once_and_anything_else_copied() -> None:
    array = empty(LARGE)
    array.fill(1.0)
    small = given(empty(3))
    assert address(taken(array)) != address(array)
    assert address(taken(given(array[1:]))) != address(array[1:])
    assert address(taken(small)) != address(small)
    given(array).setflags(write=False)
    first, second = taken(array), taken(array)
    first.fill(2.0)
    assert address(first) == address(array)
    assert address(second) != address(array)
    assert (second == 1.0).all()


@from_hypothesis(
    st.lists(st.one_of(st.integers(0, 3), st.sampled_from([LARGE, LARGE + 1, LARGE + LARGE // 8, 2 * LARGE])))
)
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
