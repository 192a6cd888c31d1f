"""The scalars of a learner's steps: kept as they come from the device, read for reports, and checked for finiteness.

Reading a scalar that the device has not finished would wait for it, so the newest are left. Decides which step is the
first whose loss is not finite; the consequences for the learner are inner-step's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

WAITING_MAX: Final = 64
"""Steps whose scalars may wait to be read: a learner is found sick within so many steps, or at the next full report."""


class StepMetrics:
    """The scalars since the last report, as sums by name."""

    def __init__(self) -> None:
        self._waiting: list[Mapping[str, Any]] = []
        self._sums: dict[str, float] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Any]) -> bool:
        """Keep the scalars of one step, 'loss' among them; returns whether to read now, because too many wait."""
        self._waiting.append(metrics)
        return len(self._waiting) > WAITING_MAX

    def read(self, *, left: int) -> int | None:
        """Read the scalars of all steps but the last `left`.

        Returns how many steps ago the first step was whose loss is not finite, None if there is none.
        """
        count = max(0, len(self._waiting) - left)
        if not count:
            return None
        read, self._waiting = self._waiting[:count], self._waiting[count:]
        self._count += count
        losses: list[float] = []
        for name in read[0]:
            values = [float(np.asarray(metrics[name])) for metrics in read]  # A sixth of what jax's own float() takes.
            self._sums[name] = self._sums.get(name, 0.0) + sum(values)
            losses = values if name == "loss" else losses
        if math.isfinite(sum(losses)):
            return None
        first = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), count - 1)
        return len(self._waiting) + count - 1 - first

    def forget(self) -> None:
        """Drop the scalars that wait."""
        self._waiting.clear()

    def means(self) -> dict[str, float]:
        """The means of the scalars read since the previous call, by name; empty if none was."""
        means = {name: total / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
        return means
