"""How far each learner's outer gradients agree with the others', by fragment: means over the merges of a run.

A cosine of 1 is one direction, 0 a right angle, and below 0 they pull apart. It costs nothing: merges compare learners
anyway. What a learner brings to the others it does not say, only whether it goes their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple, TypedDict, final

from isthmus.programs.engine.results.lines import MergeRecord


class LearnerAgreement(TypedDict):
    """One learner: the mean of its cosines by fragment, None where no merge has one, over all of them, and of how many
    merges."""

    learner: int
    fragments: list[float | None]
    mean: float | None
    merges: int


@final
class _Cosine(NamedTuple):
    slot: int
    fragment: int
    value: float


def by_learner(merges: Iterable[MergeRecord], fragments: int) -> list[LearnerAgreement]:
    """A row for each learner that was compared."""
    cosines = [_Cosine(slot, line.fragment, value) for line in merges for slot, value in line.agreement]
    rows = []
    for slot in sorted({each.slot for each in cosines}):
        own = [each for each in cosines if each.slot == slot]
        means = [_mean([each.value for each in own if each.fragment == p]) for p in range(fragments)]
        mean = _mean([each.value for each in own])
        rows.append(LearnerAgreement(learner=slot, fragments=means, mean=mean, merges=len(own)))
    return rows


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 6) if values else None
