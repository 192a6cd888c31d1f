"""The tokens of a step: of every slot, of each, or at most so many; also in a run in which a resume has changed them.

No process of a run outlives its resume, so each life has one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final


@final
@dataclass(frozen=True, slots=True)
class AtMost:
    """The tokens of a step, where batches are counted: any number up to `tokens`."""

    tokens: int


PresentStepTokens: TypeAlias = int | tuple[int, ...] | AtMost
"""The tokens of a step: of every slot, of each, or at most so many."""


@final
@dataclass(frozen=True, slots=True)
class FormerStepTokens:
    """The tokens of a step until a resume changed them: up to these `lives`, one of each slot that had any."""

    lives: tuple[tuple[int, int], ...]
    """(slot, incarnation)."""
    tokens: PresentStepTokens


@final
@dataclass(frozen=True, slots=True)
class ChangedStepTokens:
    """The tokens of a step in a run that a resume has given others: those of `now`, and of `before`, oldest first."""

    now: PresentStepTokens
    before: tuple[FormerStepTokens, ...]


StepTokens: TypeAlias = PresentStepTokens | ChangedStepTokens
"""The tokens of a step, against which messages are checked."""


def tokens_now(step_tokens: StepTokens) -> PresentStepTokens:
    """Those of the lives that a run has begun since the last change."""
    return step_tokens.now if isinstance(step_tokens, ChangedStepTokens) else step_tokens
