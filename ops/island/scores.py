"""The scalars of an evaluation: their means over its batches, the error of the loss, and the message with them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from isthmus.ops.data.held_out import Extract
from isthmus.ops.exchange.messages import Evaluated, EvaluationKind

LOSS: Final = "loss"
ERROR: Final = "loss_error"
"""The standard error of the loss, where an evaluation has several batches."""


Parts: TypeAlias = Generator[None, None, dict[str, float]]
"""An evaluation that yields before each of its batches, and returns its mean scalars."""


def means_of(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of scalars over the batches of an evaluation, and the standard error of the loss."""
    means = {name: float(np.mean([each[name] for each in batches])) for name in batches[0]}
    if len(batches) > 1 and LOSS in means and ERROR not in means:
        means[ERROR] = float(np.std([each[LOSS] for each in batches], ddof=1) / len(batches) ** 0.5)
    return means


def of_set(scalar: str, name: str) -> str:
    """The name of a scalar that is of a held-out set."""
    return f"{scalar}/{name}"


def batches_by_set(task: Any, own: Iterable[Any]) -> dict[str, list[Any]]:
    """The batches of an evaluation of a task: its `own`, by the name "", then those of each of its held-out sets."""
    return {"": list(own)} | {name: list(make()) for name, make in getattr(task, "sets", ())}


def some_of(batches: Mapping[str, Sequence[Any]], most: int) -> dict[str, Sequence[Any]]:
    """`most` of the batches of an evaluation at most, in proportion of each set, and evenly spaced; two of each set at
    least, where it has them, so that the losses have errors."""
    least = {name: min(2, len(each)) for name, each in batches.items()}
    more = sum(map(len, batches.values())) - sum(least.values())
    share = min(1.0, max(0, most - sum(least.values())) / max(1, more))
    return {name: _spaced(each, least[name] + int((len(each) - least[name]) * share)) for name, each in batches.items()}


def _spaced(batches: Sequence[Any], count: int) -> Sequence[Any]:
    return [batches[index * len(batches) // count] for index in range(count)]


def parts_by_set(batches: Mapping[str, Sequence[Any]], scalars_of: Callable[[Any], Mapping[str, float]]) -> Parts:
    """An evaluation on `batches_by_set`, a batch after the other: the means of each set, named by `of_set`."""
    means: dict[str, float] = {}
    for name, each in batches.items():
        scalars = []
        for batch in each:
            yield
            scalars.append(scalars_of(batch))
        own = means_of(scalars)
        means |= {of_set(scalar, name): mean for scalar, mean in own.items() if scalar != ERROR} if name else own
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
