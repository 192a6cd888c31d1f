"""Means of a learner's scalars over the tokens that it trained meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final


@final
class TokenMeans:
    """What was heard of one slot since it was asked for last; what is not finite does not count."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def hear(self, metrics: Iterable[Sequence[Any]], tokens: int) -> None:
        """Take [name, mean] of the steps in which these tokens were trained."""
        for name, mean in metrics:
            if tokens > 0 and math.isfinite(mean):
                total, weight = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + tokens * mean, weight + tokens

    def take(self) -> dict[str, float]:
        """The means, by name; begins anew."""
        means = {name: total / weight for name, (total, weight) in self._sums.items()}
        self._sums.clear()
        return means


def mean_of(lives: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The newest scalars of several lives of learners, by name, each weighted by the tokens of its life."""
    means = TokenMeans()
    for life in lives:
        means.hear(life.get("metrics", {}).items(), life["tokens"])
    return means.take()
