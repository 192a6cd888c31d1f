"""The shipped schedules of learning rates, and the constants of AdamW: the same in every framework.

A schedule depends on the share of the run's token budget that all learners together have trained, not on a count of
steps: a learner that joins late, or is slow, then has the same learning rate as all others.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple, TypeAlias, final

BETA_1: Final = 0.9
BETA_2: Final = 0.95
EPSILON: Final = 1e-8
FINAL_SHARE: Final = 0.05
"""The learning rate at the end of the run, as a share of its peak."""
COOLDOWN: Final = 0.1
"""The share of a run at its end in which a constant rate falls."""

ScheduleName: TypeAlias = Literal["cosine", "constant"]


@final
class RateSchedule(NamedTuple):
    """How the learning rate goes with progress: up to its peak on a line within `warmup` (0 <= warmup < 1), then down
    to FINAL_SHARE of it, along half a cosine; or, 'constant', on a line within the last COOLDOWN.

    A run with a constant rate can go on: what it trained before its cooldown does not depend on where its end was.
    """

    warmup: float
    name: ScheduleName = "cosine"

    def share(self, progress: float) -> float:
        """The learning rate at `progress`, as a share of its peak; outside [0, 1] that of the nearer end."""
        progress = min(max(progress, 0.0), 1.0)
        if progress < self.warmup:
            return progress / self.warmup
        fallen = max(progress - self.falls_from, 0.0) / (1.0 - self.falls_from)
        twice = 1.0 + math.cos(math.pi * fallen) if self.name == "cosine" else 2.0 * (1.0 - fallen)
        return FINAL_SHARE + (1.0 - FINAL_SHARE) * 0.5 * twice

    @property
    def falls_from(self) -> float:
        """The progress at which the rate begins to fall."""
        return self.warmup if self.name == "cosine" else max(self.warmup, 1.0 - COOLDOWN)
