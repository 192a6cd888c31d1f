"""Seeds spread over processes, one each at a time: a process that dies takes one seed with it, which is reported.

Decides where a seed is run and the report on one whose process has died; not the meaning of a seed, nor how outcomes
are shown. The outcome of a seed does not depend on the others, so outcomes come as they are ready.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeAlias

from isthmus.programs.simulation.universe import Outcome

APART_MIN: Final = 40
"""Fewer seeds are over before other processes have started."""

Run: TypeAlias = Callable[[int], Outcome]


def outcomes(run: Run, seeds: range, *, apart_min: int = APART_MIN) -> Iterator[Outcome]:
    """The outcomes of `run` for each seed: few seeds in this process, in order; more in a process per core, unordered.

    `run` must be importable, or a partial of an importable function.
    """
    if len(seeds) < apart_min:
        yield from map(run, seeds)
    else:
        yield from _apart(run, seeds, len(os.sched_getaffinity(0)))


def _apart(run: Run, seeds: range, workers: int) -> Iterator[Outcome]:
    waiting = iter(seeds)
    busy: dict[Future[Outcome], tuple[int, ProcessPoolExecutor]] = {}
    pools = {_pool() for _ in range(workers)}

    def give(pool: ProcessPoolExecutor) -> None:
        seed = next(waiting, None)
        if seed is not None:
            busy[pool.submit(run, seed)] = seed, pool

    try:
        for pool in list(pools):
            give(pool)
        while busy:
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                seed, pool = busy.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = Outcome(seed, f"the process that ran seed {seed} died, without a word")
                    pools.remove(pool)
                    pool = _pool()
                    pools.add(pool)
                yield outcome
                give(pool)
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
