"""The contents of metrics.jsonl, from learners' reports, and their times.

The newest report of each slot, at most every 200 ms, with means over all reports meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

from isthmus.ops.exchange.messages import Report
from isthmus.programs.recorder.lines import RecordLines

METRIC_NS: Final = 200_000_000
"""A learner's lines are at least this far apart: a day of them is some tens of megabytes."""
_PLACE: Final = ("incarnation", "phase", "step", "tokens")
_TRAFFIC: Final = ("staleness", "bytes_sent", "bytes_received", "sick", "sick_step")


@final
class TokenMeans:
    """Token-weighted means of one slot's metrics since the last `take`; values that are not finite do not count."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def hear(self, metrics: Iterable[Sequence[Any]], tokens: int) -> None:
        """Take [name, mean] of the steps in which these tokens were trained."""
        for name, mean in metrics:
            if tokens > 0 and math.isfinite(mean):
                total, weight = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + tokens * mean, weight + tokens

    def take(self) -> dict[str, float]:
        """The means, by name; resets them."""
        means = {name: total / weight for name, (total, weight) in self._sums.items()}
        self._sums.clear()
        return means


@final
class MetricLines:
    """The lines of one recorder, which `lines` writes."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self._written_at: dict[int, int] = {}
        self._losses: dict[int, list[float]] = {}
        self._means: dict[int, TokenMeans] = {}
        self._withheld: dict[int, Report] = {}
        self._told_last: dict[int, tuple[Any, ...]] = {}
        self._begun: set[tuple[int, int, str]] = set()
        """Lives whose `began` is written."""

    def hear(self, report: Report, known: Mapping[str, Any] | None, now: int) -> None:
        """Take the report that follows the `known` one of its slot; write it now, or withhold it for a while."""
        slot = report["slot"]
        if known is not None and known["incarnation"] < report["incarnation"]:
            self._write(slot, now)
        if _told(report) != self._told_last.get(slot):
            self._withheld[slot] = report
        if math.isfinite(report["loss"]):
            self._losses.setdefault(slot, []).append(report["loss"])
        is_same_life = known is not None and known["incarnation"] == report["incarnation"]
        before = known["tokens"] if known is not None and is_same_life else 0
        self._means.setdefault(slot, TokenMeans()).hear(report["metrics"], report["tokens"] - before)
        is_new_phase = known is None or known["phase"] != report["phase"]
        if is_new_phase or now - self._written_at.get(slot, -METRIC_NS) >= METRIC_NS:
            self._write(slot, now)

    def write_all(self, now: int) -> None:
        """Write the withheld reports."""
        for slot in sorted(self._withheld):
            self._write(slot, now)

    def _write(self, slot: int, now: int) -> None:
        """Write the newest report of a slot, if it is withheld."""
        report = self._withheld.pop(slot, None)
        if report is None:
            return
        self._written_at[slot], self._told_last[slot] = now, _told(report)
        fields: Mapping[str, Any] = {**report}
        losses = self._losses.pop(slot, [])
        loss = sum(losses) / len(losses) if losses else None
        line = {"learner": slot, **{name: fields[name] for name in _PLACE}, "loss": loss}
        began = fields.get("began")
        if began and (slot, fields["incarnation"], began[0]) not in self._begun:
            self._begun.add((slot, fields["incarnation"], began[0]))
            line["began"] = began
        metrics = as_field(self._means[slot].take().items())
        self._lines.write("metrics", now, {**line, **metrics, **{name: fields[name] for name in _TRAFFIC}})


def finite(value: float | None) -> float | None:
    """A loss for files and figures: None if it is not finite, which JSON cannot express."""
    return value if value is not None and math.isfinite(value) else None


def metrics_of(told: Iterable[Sequence[Any]]) -> dict[str, float | None]:
    """Scalars by name, as files and figures have them."""
    return {name: finite(value) for name, value in told}


def as_field(told: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Scalars as the field `metrics` of a line; no field where a task has none."""
    metrics = metrics_of(told)
    return {"metrics": metrics} if metrics else {}


def mean_of(lives: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The newest scalars of several lives of learners, by name, each weighted by the tokens of its life."""
    means = TokenMeans()
    for life in lives:
        means.hear(life.get("metrics", {}).items(), life["tokens"])
    return means.take()


def _told(report: Report) -> tuple[Any, ...]:
    """The fields that distinguish one line from another."""
    fields: Mapping[str, Any] = {**report}
    return tuple(fields[name] for name in _PLACE)
