"""The shipped schedule of learning rates, and the constants of AdamW: the same in every framework.

The schedule depends on the share of the run's token budget that all learners together have trained, not on a count of
steps: a learner that joins late, or is slow, then has the same learning rate as all others.
"""

from __future__ import annotations

import math
from typing import Final

BETA_1: Final = 0.9
BETA_2: Final = 0.95
EPSILON: Final = 1e-8
FINAL_SHARE: Final = 0.05
"""The learning rate at the end of the run, as a share of its peak."""


def share_of_peak(progress: float, warmup: float) -> float:
    """The learning rate at `progress` in [0, 1], as a share of its peak: `ops.island.optimizer.learning_rate`."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    after = (progress - warmup) / (1.0 - warmup)
    return FINAL_SHARE + (1.0 - FINAL_SHARE) * 0.5 * (1.0 + math.cos(math.pi * after))
