"""The tokens of a step of one life of a learner, in a run in which a resume may have changed them."""

from __future__ import annotations

from isthmus.ops.data.positions import of_slot
from isthmus.ops.step_tokens import AtMost, ChangedStepTokens, StepTokens, tokens_now


def tokens_of_life(step_tokens: StepTokens, slot: int, incarnation: int) -> int | AtMost:
    """The tokens of a step of a life. No process of a run outlives its resume, so each life has one number."""
    of_step = tokens_now(step_tokens)
    if isinstance(step_tokens, ChangedStepTokens):
        before = (each.tokens for each in step_tokens.before if incarnation <= dict(each.lives).get(slot, 0))
        of_step = next(before, of_step)
    return of_step if isinstance(of_step, AtMost) else of_slot(of_step, slot)
