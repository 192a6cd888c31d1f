"""The measurements in the run folders of a comparison: the figures of every run, and its losses over three axes.

The axes are tokens, time and bytes. Bytes are those that learners send, and, where a syncer sends to them, those that
they receive; those sent to the evaluator are not among them. Between two reports of a learner they are taken as even.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from isthmus.programs.comparison import folder as folders
from isthmus.programs.comparison.plan import Plan, Variant
from isthmus.programs.results.reading import load
from isthmus.programs.results.record import LOSS, Report, RunRecord, as_number

Axis = Literal["tokens", "time", "bytes"]
AXES: Final[tuple[Axis, ...]] = ("tokens", "time", "bytes")


class Place(msgspec.Struct, frozen=True):
    """One evaluation: the progress of the run, and the values by metric, the loss among them."""

    tokens: float
    time: float
    bytes: float
    values: dict[str, float]

    def at(self, axis: Axis) -> float:
        """The progress along an axis."""
        return float(getattr(self, axis))


class Run(msgspec.Struct, frozen=True):
    """One run that is done. `finals` are the last values by metric; `seconds` the wall or virtual time from the first
    inner step, `bytes` those of learners and shards; `devices` are the kinds of its learners' devices."""

    seed: int
    folder: str
    finals: dict[str, float]
    seconds: float | None
    goodput: float | None
    merged_share: float | None
    contributors: float | None
    bytes: float | None
    places: list[Place]
    remark: str = ""
    devices: tuple[str, ...] = ()

    def value(self, metric: str, axis: Axis, at: float) -> float | None:
        """A metric at a place along an axis, between the evaluations before and after it; None outside of them."""
        known = [(place.at(axis), place.values[metric]) for place in self.places if metric in place.values]
        if not known or not known[0][0] <= at <= known[-1][0]:
            return None
        return between(known, at)

    def end(self, axis: Axis) -> float:
        """The progress at the last evaluation, along an axis."""
        return self.places[-1].at(axis) if self.places else 0.0


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a place of a line through points, which are in order; that of the nearest end beyond them."""
    after = bisect_right(points, at, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    if after == len(points):
        return points[-1][1]
    (begin, first), (end, second) = points[after - 1], points[after]
    return first + (at - begin) / (end - begin) * (second - first)


def measured(folder: Path, plan: Plan, seeds: int) -> dict[str, list[Run]]:
    """The runs that are done, by variant."""
    found: dict[str, list[Run]] = {}
    for variant in plan.variants:
        runs = [(seed, folders.done(folder, variant, seed)) for seed in range(plan.seed, plan.seed + seeds)]
        found[variant.name] = [_run(folder, variant, seed, path) for seed, path in runs if path is not None]
    return found


def _run(folder: Path, variant: Variant, seed: int, path: Path) -> Run:
    record = load(path)
    loss, others = record.number("eval_loss_final"), record.summary.get("eval_metrics")
    scalars: Mapping[str, Any] = others if isinstance(others, dict) else {}
    finals = {LOSS: loss, **{name: as_number(value) for name, value in scalars.items()}}
    return Run(
        seed=seed,
        folder=str(path.relative_to(folder)),
        finals={name: value for name, value in finals.items() if value is not None},
        seconds=record.number("wall_seconds"),
        goodput=record.number("goodput"),
        merged_share=record.number("merged_share") if record.number("outer_steps") else None,
        contributors=record.number("contributors_mean") if record.number("outer_steps") else None,
        bytes=record.number("bytes_sent_total"),
        places=_places(record, is_alone=variant.learners == 1),
        remark=record.text("error"),
        devices=_devices(record),
    )


def _devices(record: RunRecord) -> tuple[str, ...]:
    rows = record.summary.get("per_learner")
    kinds = [row.get("device_kind") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(sorted({str(kind) for kind in kinds if kind}))


def _places(record: RunRecord, *, is_alone: bool) -> list[Place]:
    """The evaluations of a run. Bytes of one learner alone do not count: no other host needs them."""
    has_syncer = bool(record.number("syncer_shards"))

    def moved(report: Report) -> float:
        return 0.0 if is_alone else report.bytes_sent + (report.bytes_received if has_syncer else 0.0)

    passed = _totals(record.reports, moved)
    places = []
    for item in record.evaluations:
        values = {name: item.of(name) for name in (LOSS, *record.metrics)}
        known = {name: value for name, value in values.items() if value is not None}
        places.append(Place(item.tokens, max(item.time, 0.0), between(passed, item.time), known))
    return places


def _totals(reports: Sequence[Report], figure: Callable[[Report], float]) -> list[tuple[float, float]]:
    """(seconds, sum of a growing figure over all lives of all learners), from (0, 0) on."""
    newest: dict[tuple[int, int], float] = {}
    points, total = [(0.0, 0.0)], 0.0
    for report in reports:
        life, value = (report.learner, report.incarnation), figure(report)
        total += max(0.0, value - newest.get(life, 0.0))
        newest[life] = max(value, newest.get(life, 0.0))
        points.append((max(report.time, points[-1][0]), total))
    return points
