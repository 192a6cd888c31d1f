"""The scalars of an evaluation: their means over its batches, the error of the loss, and the message with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from isthmus.ops.data.held_out import Extract
from isthmus.ops.exchange.messages import Evaluated, EvaluationKind

LOSS: Final = "loss"
ERROR: Final = "loss_error"
"""The standard error of the loss, where an evaluation has several batches."""


def means_of(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of scalars over the batches of an evaluation, and the standard error of the loss."""
    means = {name: float(np.mean([each[name] for each in batches])) for name in batches[0]}
    if len(batches) > 1 and LOSS in means and ERROR not in means:
        means[ERROR] = float(np.std([each[LOSS] for each in batches], ddof=1) / len(batches) ** 0.5)
    return means


def extract_of(task: Any) -> Extract | None:
    """What a task's evaluation reads of a held-out text; None if it has not told."""
    return getattr(task, "extract", None)


def evaluated(
    kind: EvaluationKind, metrics: Mapping[str, float], tokens: int, extract: Extract | None = None
) -> Evaluated:
    """The message about a model with these scalars, found on an extract of held-out text."""
    others = [[name, value] for name, value in metrics.items() if name not in (LOSS, ERROR)]
    found = Evaluated(kind=kind, loss=metrics.get(LOSS), tokens=tokens, metrics=others)
    if ERROR in metrics:
        found["error"] = metrics[ERROR]
    if extract is not None and LOSS in metrics:
        found["extract"] = list(extract)
    return found
