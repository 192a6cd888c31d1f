"""DiLoCo (arXiv 2311.08105): H inner steps alone, then all learners wait for the mean of their outer gradients.

It is streaming-diloco with the model as one fragment, whose outer step is adopted at the boundary at which it was
captured: every learner waits for the slowest, and for the transfers there and back.
"""

from __future__ import annotations

from typing import Annotated, Final

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.requested import Format
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.settings import checked
from isthmus.programs.streaming_diloco import in_turns
from isthmus.programs.sweeps import interval_default
from isthmus.programs.update_settings import (
    PUSH,
    UPDATE,
    Interval,
    MergeRule,
    OuterLr,
    OuterMomentum,
    outer_settings,
    subject,
)

NAME: Final = "diloco"


@checked(subject(NAME))
def build(
    job: Job,
    *,
    interval: Interval = None,
    merge: MergeRule = "average",
    push: Annotated[Format, PUSH] = "float32",
    update: Annotated[Format, UPDATE] = "float32",
    outer_lr: OuterLr = None,
    outer_momentum: OuterMomentum = None,
) -> ProgramGraph:
    """The graph; ConfigError, with every fault, for settings out of range."""
    interval = interval_default(job) if interval is None else interval
    outer = outer_settings(job, interval, outer_lr, outer_momentum)
    whole = partition(job.layout, 1)
    return in_turns(NAME, job, whole, interval, outer, overlap=0, alpha=0.0, merge=merge, push=push, update=update)
