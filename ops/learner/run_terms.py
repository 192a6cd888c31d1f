"""What the learners of a run know of it from its start: its length, and how often its data and its model are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from isthmus.ops.data.held_out import TIMES_DEFAULT


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The terms of one run.

    Attributes:
        tokens: the budget that the learning rate follows, where no message sets it; 0 where none does.
        evaluations: how often the model is evaluated on the way, where learners do that.
        learners: how many begin the run.
        epochs_max: how often a learner may train the data of its site, None where there is no bound.
    """

    tokens: int = 0
    evaluations: int = TIMES_DEFAULT
    learners: int = 1
    epochs_max: float | None = None


UNBOUNDED: Final = RunTerms()
"""Those of a run that says nothing."""
