"""Sweeps: how often a run merges its whole model, and the defaults that follow from that.

One sweep is one merge of every fragment. A run has tokens / (learners x interval x tokens of a batch) of them. Few
sweeps are what costs most against data-parallel: at 1.02 M tokens, batches of 8 sequences leave 20 sweeps, and no outer
optimizer that was tried works in so few (docs/explanation/ablations.md). So the shipped task takes smaller batches, and
after them a shorter interval, until a run has `SWEEPS_MIN`. The outer step follows from the sweeps that are left.

The batch does not depend on the interval that was given: a sweep of `program.interval` compares intervals, not batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from isthmus.ops.exchange.wanted_settings import INTERVAL
from isthmus.programs.job import Job
from isthmus.runtime.errors import Fault

SWEEPS_MIN: Final = 60
"""From here on an outer step with momentum pays: (0.4, 0.7) was the best of those tried on nano at 80 sweeps."""
BATCHES: Final = (8, 4, 2, 1)
"""Sequences of a batch of the shipped task, the first that leaves enough sweeps."""
INTERVAL_MIN: Final = 8
"""The shortest interval that is chosen: 8 fragments, of which one is merged at each step."""
CARRIED_BELOW: Final = INTERVAL
"""Learners keep what they trained over an adoption where the interval is shorter than this: there it gains
(docs/decisions/0103-slow-learners-and-carry-by-default.md)."""
OUTER_DECOUPLED: Final = ((SWEEPS_MIN, (0.4, 0.7)), (15, (0.7, 0.3)), (0, (0.7, 0.0)))
"""(least sweeps, (eta, mu)) of learners that never wait: of those tried on nano, (0.4, 0.7) was best at 83 sweeps and
(0.7, 0.3) better than no momentum at 20; fewer were not tried."""
OUTER_LOCK_STEP: Final = ((SWEEPS_MIN, (0.4, 0.7)), (0, (1.0, 0.0)))
"""The same of programs in lock-step: of those tried on nano, no momentum was best at 20 and 41 sweeps."""

OUTER_REGION: Final = (0.7, 0.0)
"""The step of a region where the global one has momentum."""
OUTER_GLOBAL: Final = ((15, (0.7, 0.5)), (0, (1.0, 0.0)))
"""The same of the global step of two levels, by global sweeps: of those tried on nano at 31, momentum there and none in
the regions was best; fewer were not tried."""


def sweeps_of(job: Job, interval: int) -> float:
    """The number of sweeps of a job whose fragments are merged every `interval` steps of each learner."""
    return job.tokens / (job.learners * interval * job.tokens_per_batch)


def batch_default(tokens: int, learners: int, context: int) -> int:
    """The sequences, of `context` tokens each, of a batch of the shipped task, with which a run has enough sweeps at
    the default interval; the smallest where none has."""
    most = tokens / (learners * INTERVAL * context * SWEEPS_MIN)
    return next((batch for batch in BATCHES if batch <= most), BATCHES[-1])


def interval_default(job: Job, *, least: int = 1) -> int:
    """The inner steps between two merges of one fragment: 24, as published, or fewer where 24 leave too few sweeps.

    `least`: the number that a program needs for its fragments and its overlap; the default does not exceed 24 for it.
    """
    most = int(job.tokens / (job.learners * job.tokens_per_batch * SWEEPS_MIN))
    return min(INTERVAL, max(most, INTERVAL_MIN, least))


def carry_default(interval: int) -> bool | Literal["auto"]:
    """Whether all learners keep what they trained over an adoption, or, 'auto', only slow ones."""
    return True if interval < CARRIED_BELOW else "auto"


def outer_default(sweeps: float, table: Sequence[tuple[float, tuple[float, float]]]) -> tuple[float, float]:
    """The (eta, mu) of a table for so many sweeps."""
    return next(settings for least, settings in table if sweeps >= least)


def few_sweeps(job: Job, interval: int) -> Fault | None:
    """The warning about a run that has fewer sweeps than an outer step needs; None if it has enough, or one learner."""
    sweeps = sweeps_of(job, interval)
    if sweeps >= SWEEPS_MIN or job.learners == 1:
        return None
    enough = SWEEPS_MIN * job.learners * interval * job.tokens_per_batch
    return Fault(
        f"Training on {job.tokens:,} tokens with {job.learners} learners",
        f"at least {SWEEPS_MIN} merges of every fragment, fewer of which gain little over one learner alone",
        f"{sweeps:.1f}, with {interval} steps of {job.tokens_per_batch:,} tokens between two merges",
        f"Train on {enough:,} tokens (--tokens), or set fewer learners, a shorter program.interval or smaller batches.",
    )
