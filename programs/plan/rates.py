"""The merge rate of this machine: the kernels of the syncer, run once on enough values, and the consequences."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import averaging, coding, nesterov
from isthmus.programs.plan.links import LARGEST
from isthmus.programs.plan.wanted import Wanted

VALUES: Final = 4 << 20
"""16 MiB a gradient: beyond the caches of a core, and measured in a second."""
GRADIENTS_MAX: Final = 4
TRIES: Final = 5


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Values a second: of gradients merged, each counted, and of a fragment stepped and coded; by `threads` threads."""

    merged: float
    stepped: float
    threads: int

    def merge_seconds(self, of: Wanted) -> float:
        """Seconds of merge and outer step of the largest fragment, with every learner in it."""
        largest = LARGEST * of.fragment_values
        return of.learners * largest / self.merged + largest / self.stepped


def measure(of: Wanted) -> Rates:
    """The median rates of some tries, with gradients in the format that is wanted."""
    threads, count = len(os.sched_getaffinity(0)), min(of.learners, GRADIENTS_MAX)
    rows = VALUES // 1024
    fragment = Fragment(0, (Unit("weights", 0, rows, (rows, 1024)),))
    rng = np.random.default_rng(0)
    plain = [rng.standard_normal(VALUES, np.float32) for _ in range(count)]
    sent = [each if of.push == "float32" else coding.encode(each, fragment, _format(of.push)) for each in plain]
    norms = [averaging.unit_norms(each, fragment).astype(np.float32) for each in plain]
    merged = averaging.merge(sent, [1.0] * count, norms, fragment, threads=threads)

    def step() -> None:
        stepped, _ = nesterov.outer_step(
            plain[0], plain[0], merged.direction, merged.scale, fragment, 0.4, 0.7, threads=threads
        )
        if of.update != "float32":
            coding.advance(stepped, plain[0], fragment, _format(of.update))

    seconds = _median(lambda: averaging.merge(sent, [1.0] * count, norms, fragment, threads=threads))
    return Rates(count * VALUES / seconds, VALUES / _median(step), threads)


def _format(name: str) -> coding.CodeFormat:
    return cast(coding.CodeFormat, name)


def _median(run: Callable[[], Any]) -> float:
    run()
    found = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return sorted(found)[TRIES // 2]
