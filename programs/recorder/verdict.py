"""Whether a run that has come to its end is done: its reports must hold of the model that it leaves.

Decides only that; the recorder asks when everything final is there. A run that was stopped may have trained little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.programs.results import numbers

TRAINED_SHARE_MIN: Final = 0.9
"""Share of the budget: learners stop at the first boundary at which they know it to be spent, so a run without delays
trains all of it, and a little more."""


def failure(
    figures: Mapping[str, Any],
    accounts: Sequence[Mapping[str, int]],
    sizes: Sequence[int],
    *,
    budget: int,
    is_stopped: bool,
    loss: float | None,
) -> str | None:
    """Why the run has failed, or None if it is done.

    `figures` are those of a status, `accounts` those of its fragments, `loss` that of the last evaluation, None if
    there was none.
    """
    tokens = figures["tokens"]
    if not is_stopped and tokens < TRAINED_SHARE_MIN * budget:
        share = numbers.percent(tokens / budget)
        return (
            f"only {tokens} of {budget} tokens ({share}) were trained, and nobody had the run stopped. "
            "The report says which learners ended; the model has what was merged until then."
        )
    merged, refused = (_weighted(accounts, sizes, part) for part in ("merged", "refused"))
    if refused > merged:
        return (
            f"more was refused than merged: {refused:.0f} tokens against {merged:.0f}, of {tokens} trained. "
            "merges.jsonl says why answers were refused."
        )
    if loss is not None and not math.isfinite(loss):
        return (
            f"the loss of the trained model is not finite ({loss}). "
            "Lower the learning rates (task.lr, program.outer_lr), or look at the data."
        )
    return None


def _weighted(accounts: Sequence[Mapping[str, int]], sizes: Sequence[int], part: str) -> float:
    """A part of all tokens, as a mean over fragments weighted by size; 0 without fragments."""
    total = sum(sizes)
    return sum(account[part] * size for account, size in zip(accounts, sizes, strict=True)) / total if total else 0.0
