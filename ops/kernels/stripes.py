"""Parallel execution of kernels over a flat payload: compiled without the GIL, over stripes that threads share.

Decides where a payload is cut and how threads split the cuts. Does not decide what is computed.

Theory of operation. Each unit is cut, from its own start, into stripes of 65,536 values. A kernel does one stripe at a
time and leaves partial sums per stripe, which are added in stripe order: a result depends on the values of the unit
alone, not on the number of threads nor on where the unit lies in the payload. Threads are plain Python threads, each
with one contiguous share of the stripes and one call: numba's own parallel regions lose a time slice at each barrier
where cores are shared, and many small calls would each wait for the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from importlib.util import find_spec
from itertools import pairwise
from threading import RLock
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.kernels.buffers import Float32

HAS_COMPILER: Final = find_spec("numba") is not None
"""Whether kernels are compiled here. Without a compiler codes are made and read by NumPy (`plain_codes`), to the same
bits, and nothing can be merged."""
Int64: TypeAlias = NDArray[np.int64]
P = ParamSpec("P")
R = TypeVar("R")

# 256 KiB of float32: a multiple of the kernels' blocks, and enough that a stripe's bookkeeping does not show.
STRIPE_SIZE = 2**16
# Starting a thread costs about 0.1 ms, in which one core merges a few stripes.
_SIZE_PER_THREAD_MIN = 4 * STRIPE_SIZE


@final
class LazyKernel(Generic[P, R]):
    """A function that is compiled when it is first called: to numba's cache, where that has a folder, releasing the
    GIL, no fast math.

    Float sums are then computed in the order in which they are written, with no fused multiply-add, on every machine.
    numba is imported by then: it takes as long as a host's own code, and most processes that load this call no kernel,
    or none before their first step.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._compiled: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        result: R = self.compiled(*arguments, **keywords)
        return result

    @property
    def compiled(self) -> Any:
        """What numba has made of it."""
        if self._compiled is None:
            with _COMPILING:
                if self._compiled is None:
                    self._compiled = self._compile()
        return self._compiled

    @property
    def is_compiled(self) -> bool:
        """Whether it has been called before, or was loaded."""
        return self._compiled is not None

    @property
    def signatures(self) -> list[Any]:
        """Those for which it is compiled."""
        return [] if self._compiled is None else list(self._compiled.signatures)

    def _compile(self) -> Any:
        if not HAS_COMPILER:
            raise ModuleNotFoundError(
                f"the kernel {self._function.__name__} needs numba, which merges: pip install numba"
            )
        import numba

        names = self._function.__globals__
        for name in self._function.__code__.co_names:  # numba looks up there what this one calls.
            if isinstance(other := names.get(name), LazyKernel):
                names[name] = other.compiled
        compiled = numba.njit(nogil=True, fastmath=False)(self._function)
        if has_cache():
            with suppress(RuntimeError, OSError):  # It has tried each place that it knows: none can be written to.
                compiled.enable_caching()
        return compiled


_COMPILING: Final = RLock()


def kernel(function: Callable[P, R]) -> LazyKernel[P, R]:
    """The function as a `LazyKernel`."""
    return LazyKernel(function)


def has_cache() -> bool:
    """Whether numba may look for a folder for what it compiles. For a user without a home it would make one named ~ in
    the working folder."""
    if "NUMBA_CACHE_DIR" in os.environ or os.access(os.path.dirname(__file__), os.W_OK):
        return True
    return os.path.expanduser("~") != "~"


def kernel_input(vector: Float32) -> Float32:
    """The vector as the one array type that kernels are compiled for: contiguous, aligned, read-only; copied if not."""
    view = np.require(vector, np.float32, ["C", "A"]).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False)
class Stripes:
    """int64[n] each: stripe s covers values [begins[s], ends[s]) and lies in unit units[s]."""

    begins: Int64
    ends: Int64
    units: Int64

    def __len__(self) -> int:
        return len(self.begins)

    def of(self, chosen: NDArray[np.bool_]) -> Stripes:
        """The stripes of the chosen units; bool[units]."""
        kept = chosen[self.units]
        return Stripes(self.begins[kept], self.ends[kept], self.units[kept])


@lru_cache(maxsize=256)
def stripes(offsets: tuple[int, ...]) -> Stripes:
    """The stripes of a payload whose unit u holds values [offsets[u], offsets[u + 1])."""
    starts = [np.arange(offsets[u], offsets[u + 1], STRIPE_SIZE, dtype=np.int64) for u in range(len(offsets) - 1)]
    units = np.repeat(np.arange(len(starts), dtype=np.int64), [len(start) for start in starts])
    begins = np.concatenate(starts)
    ends = np.minimum(begins + STRIPE_SIZE, np.asarray(offsets, np.int64)[units + 1])
    return Stripes(begins, ends, units)


def share(task: Callable[[int, int], object], over: Stripes, threads: int | None = None) -> None:
    """Run task(first, last) on ranges of stripes that cover `over`, on at most `threads` threads, this one included.

    Without a number, on as many as there are cores that this process may use now: a forked host may have fewer than the
    process that loaded this.
    """
    covered = np.cumsum(over.ends - over.begins)
    size = int(covered[-1]) if len(over) else 0
    workers = max(1, min(threads or len(os.sched_getaffinity(0)), size // _SIZE_PER_THREAD_MIN))
    if workers == 1:
        task(0, len(over))
        return
    cuts = np.searchsorted(covered, [size * worker // workers for worker in range(1, workers)]).tolist()
    ranges = list(pairwise([0, *cuts, len(over)]))
    with ThreadPoolExecutor(workers - 1, thread_name_prefix="stripes") as pool:
        others = [pool.submit(task, *each) for each in ranges[1:]]
        task(*ranges[0])
        for other in others:
            other.result()
