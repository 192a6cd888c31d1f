"""Stripes: they cover a payload, begin anew in each unit, and are shared without overlap."""

from __future__ import annotations

import os
import pwd
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.kernels.stripes import STRIPE_SIZE, has_cache, kernel, share, stripes

sizes = st.lists(st.one_of(st.integers(1, 100), st.integers(1, 5 * STRIPE_SIZE)), min_size=1, max_size=12)


@given(sizes, st.integers(1, 5))
def test_stripes_cover_units_and_threads_cover_stripes(sizes: list[int], threads: int) -> None:
    offsets = (0, *np.cumsum(sizes).tolist())
    cut = stripes(offsets)
    for u, (start, stop) in enumerate(pairwise(offsets)):
        begins, ends = cut.begins[cut.units == u].tolist(), cut.ends[cut.units == u].tolist()
        assert begins == list(range(start, stop, STRIPE_SIZE))
        assert ends == [*begins[1:], stop]

    ranges: list[tuple[int, int]] = []
    share(lambda first, last: ranges.append((first, last)), cut, threads)
    assert len(ranges) <= threads
    assert [s for first, last in sorted(ranges) for s in range(first, last)] == list(range(len(cut)))


def test_large_work_uses_the_threads_and_small_work_does_not() -> None:
    for size, expected in [(STRIPE_SIZE, 1), (64 * STRIPE_SIZE, 3)]:
        names: list[str] = []
        share(lambda first, last, names=names: names.append(threading.current_thread().name), stripes((0, size)), 3)
        assert len(names) == expected
        assert threading.current_thread().name in names


def test_unless_told_otherwise_there_are_as_many_threads_as_this_process_has_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cores in ({0, 1, 2}, {3}):  # A learner that was forked is kept to one core after these kernels were loaded.
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: cores)
        ranges: list[int] = []
        share(lambda first, last, ranges=ranges: ranges.append(first), stripes((0, 64 * STRIPE_SIZE)))
        assert len(ranges) == len(cores)


def test_a_failure_in_a_thread_is_raised() -> None:
    def task(first: int, last: int) -> None:
        if first > 0:
            raise ArithmeticError("in a thread")

    with pytest.raises(ArithmeticError, match="in a thread"):
        share(task, stripes((0, 64 * STRIPE_SIZE)), 2)


def test_stripes_of_chosen_units() -> None:
    cut = stripes((0, 10, STRIPE_SIZE + 20, STRIPE_SIZE + 25))
    chosen = cut.of(np.array([False, True, False]))
    assert list(zip(chosen.begins.tolist(), chosen.ends.tolist(), chosen.units.tolist(), strict=True)) == [
        (10, STRIPE_SIZE + 10, 1),
        (STRIPE_SIZE + 10, STRIPE_SIZE + 20, 1),
    ]


def test_without_a_home_kernels_are_cached_only_where_there_is_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not has_cache()
    monkeypatch.setenv("HOME", "/home/of-somebody")
    assert has_cache()
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/var/cache/kernels")
    assert has_cache()


def test_where_no_folder_can_be_written_to_kernels_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])

    def double(value: float) -> float:
        return 2 * value

    assert kernel(double)(2.0) == 4.0
