"""The results of a comparison: the figures of every run, its losses over tokens, time and bytes, paired differences,
and verdicts.

Decides what is measured in a run folder, and when a difference is a verdict. Bytes are those that learners send, and,
where a syncer sends to them, those that they receive; between two reports of a learner they are taken as even.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, Literal

import msgspec

from isthmus.ops.island.scores import of_set
from isthmus.programs.engine.results import site_words
from isthmus.programs.engine.results.lines import LOSS, ReportLine
from isthmus.programs.engine.results.reading import load
from isthmus.programs.engine.results.record import RunRecord, TokenProgress, as_number, between
from isthmus.programs.wings.compare import compare
from isthmus.programs.wings.compare.compare import ComparisonPlan, Variant

Axis = Literal["tokens", "time", "bytes"]
AXES: Final[tuple[Axis, ...]] = ("tokens", "time", "bytes")


class EvaluatedPlace(msgspec.Struct, frozen=True):
    """One evaluation: the progress of the run, and the values by metric, the loss among them."""

    tokens: float
    time: float
    bytes: float
    values: dict[str, float]

    def at(self, axis: Axis) -> float:
        """The progress along an axis."""
        return float(getattr(self, axis))


class ComparedRun(msgspec.Struct, frozen=True):
    """One run that is done."""

    seed: int
    folder: str
    finals: dict[str, float]
    """The last values by metric, and the figures of the final model."""
    seconds: float | None
    """The wall or virtual time from the first inner step."""
    goodput: float | None
    merged_share: float | None
    contributors: float | None
    bytes: float | None
    """Those of learners and shards."""
    places: list[EvaluatedPlace]
    remark: str = ""
    devices: tuple[str, ...] = ()
    """The kinds of its learners' devices."""
    error: float | None = None
    """The standard error of the last loss."""
    windows: tuple[int, int] | None = None
    """Of how many windows of held-out text that loss is, and how many there are, where that is known."""
    better: dict[str, str] = {}
    """Which way a figure of the final model is better, by name."""

    def value(self, metric: str, axis: Axis, at: float) -> float | None:
        """A metric at a place along an axis, between the evaluations before and after it; None outside of them."""
        points = [(place.at(axis), place.values[metric]) for place in self.places if metric in place.values]
        if not points or not points[0][0] <= at <= points[-1][0]:
            return None
        return between(points, at)

    def end(self, axis: Axis) -> float:
        """The progress at the last evaluation, along an axis."""
        return self.places[-1].at(axis) if self.places else 0.0


def measured(folder: Path, plan: ComparisonPlan, seeds: int) -> dict[str, list[ComparedRun]]:
    """The runs that are done, by variant."""
    by_variant: dict[str, list[ComparedRun]] = {}
    for variant in plan.variants:
        runs = [(seed, compare.done(folder, variant, seed)) for seed in range(plan.seed, plan.seed + seeds)]
        by_variant[variant.name] = [_run(folder, variant, seed, path) for seed, path in runs if path is not None]
    return by_variant


def _run(folder: Path, variant: Variant, seed: int, path: Path) -> ComparedRun:
    record = load(path)
    loss, others = record.number("eval_loss_final"), record.summary.get("eval_metrics")
    scalars: Mapping[str, Any] = others if isinstance(others, dict) else {}
    figures, better = (record.summary.get(f"final_figures{key}") for key in ("", "_better"))
    if isinstance(figures, dict):
        scalars = {**scalars, **figures}
    finals = {LOSS: loss, **{name: as_number(value) for name, value in scalars.items()}, **of_sites(record)}
    return ComparedRun(
        seed=seed,
        folder=str(path.relative_to(folder)),
        finals={name: value for name, value in finals.items() if value is not None},
        seconds=record.number("wall_seconds"),
        goodput=record.number("goodput"),
        merged_share=record.number("merged_share") if record.number("outer_steps") else None,
        contributors=record.number("contributors_mean") if record.number("outer_steps") else None,
        bytes=record.number("bytes_sent_total"),
        places=_places(record, is_alone=variant.run.learners == 1),
        remark=record.text("error"),
        devices=_devices(record),
        error=record.number("eval_loss_error"),
        windows=_windows(record),
        better={str(name): str(way) for name, way in better.items()} if isinstance(better, dict) else {},
    )


def of_sites(record: RunRecord) -> dict[str, float | None]:
    """The loss of the final model on the own data of each site that tells it, as that of a held-out set."""
    rows = site_words.rows(record.summary)
    return {of_set(LOSS, f"site {row.site}"): row.global_last for row in rows if row.is_final}


def _windows(record: RunRecord) -> tuple[int, int] | None:
    used, there = record.number("eval_windows"), record.number("eval_windows_there")
    return None if used is None or there is None else (int(used), int(there))


def _devices(record: RunRecord) -> tuple[str, ...]:
    rows = record.summary.get("per_learner")
    kinds = [row.get("device_kind") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(sorted({str(kind) for kind in kinds if kind}))


def _places(record: RunRecord, *, is_alone: bool) -> list[EvaluatedPlace]:
    """The evaluations of a run. Bytes of one learner alone do not count: no other host needs them."""
    has_syncer = bool(record.number("syncer_shards"))

    def moved(report: ReportLine) -> float:
        return 0.0 if is_alone else (report.bytes_sent or 0.0) + ((report.bytes_received or 0.0) if has_syncer else 0.0)

    passed = TokenProgress(record.reports, moved)
    places = []
    for item in record.evaluations:
        values = {name: item.of(name) for name in (LOSS, *record.metrics)}
        measured_values = {name: value for name, value in values.items() if value is not None}
        places.append(EvaluatedPlace(float(item.tokens), max(item.time, 0.0), passed.at(item.time), measured_values))
    return places


CONFIDENCE: Final = 0.95
OF_SETS: Final = of_set(LOSS, "")
"""How the names of losses of held-out sets begin."""
Verdict = Literal["better", "worse", "as good", "no worse", "no better", "undecided"]


class FigureDifference(msgspec.Struct, frozen=True):
    """One variant's figure minus that of another, over the `seeds` that both have: the mean, the standard `deviation`,
    and the ends of the 95 % interval of the mean, None with fewer than two pairs."""

    seeds: tuple[int, ...]
    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (of a sample); None with too few values."""
    mean = fmean(values) if values else None
    return mean, stdev(values) if len(values) > 1 else None


def difference(values: Mapping[int, float], others: Mapping[int, float]) -> FigureDifference | None:
    """`values` minus `others`, both seed -> figure; None without a common seed.

    Two variants are compared seed by seed: both see the same first parameters and the same batches, so the effect of
    the seed on both cancels out. The interval of 95 % is that of Student's t for the mean of the differences, which
    takes them for normal and independent; with three seeds it is 4.3 standard errors wide to each side, and knows
    little about tails.
    """
    seeds = tuple(sorted(values.keys() & others.keys()))
    if not seeds:
        return None
    each = [values[seed] - others[seed] for seed in seeds]
    mean, deviation = spread(each)
    assert mean is not None, "there is a common seed"
    if deviation is None:
        return FigureDifference(seeds, mean)
    half = quantile(len(each) - 1) * deviation / math.sqrt(len(each))
    return FigureDifference(seeds, mean, deviation, mean - half, mean + half)


def quantile(freedom: int) -> float:
    """The factor of the interval: the 97.5 % quantile of Student's t with `freedom` degrees of freedom."""
    # Not above: it takes a tenth of a second, which help and mistyped options need not wait for.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def verdict(gap: FigureDifference | None, margin: float | None) -> Verdict | None:
    """The verdict on a loss from its interval and a margin; None without either.

    Better and worse by more than the margin; as good: within it on both sides; no worse (no better): at least not worse
    (better) by more than it; undecided: the interval reaches beyond it on both sides.
    """
    if gap is None or gap.low is None or gap.high is None or margin is None:
        return None
    if gap.high < -margin:
        return "better"
    if gap.low > margin:
        return "worse"
    if -margin <= gap.low and gap.high <= margin:
        return "as good"
    if gap.high <= margin:
        return "no worse"
    return "no better" if gap.low >= -margin else "undecided"


def reversed_difference(gap: FigureDifference) -> FigureDifference:
    """The difference of the negated figures, of which less is better."""
    low, high = (None if end is None else -end for end in (gap.high, gap.low))
    return FigureDifference(gap.seeds, -gap.mean, gap.deviation, low, high)


def is_loss(metric: str) -> bool:
    """Whether a metric is the loss, or that of a held-out set."""
    return metric == LOSS or metric.startswith(OF_SETS)


def verdicts(
    differences: Mapping[str, FigureDifference], better: Mapping[str, str], margin: float | None
) -> dict[str, Verdict]:
    """The verdicts on losses, of held-out sets, too, by the margin; and on figures of which it is known which way is
    better, by whether their interval is all on one side of 0."""
    found: dict[str, Verdict | None] = {}
    for name, gap in differences.items():
        if is_loss(name):
            found[name] = verdict(gap, margin)
        elif name in better:
            found[name] = verdict(gap if better[name] == "lower" else reversed_difference(gap), 0.0)
    return {name: each for name, each in found.items() if each is not None}


class Figure(msgspec.Struct, frozen=True):
    """A figure over the seeds: its mean and its standard deviation, None with too few values."""

    mean: float | None
    deviation: float | None


class Side(msgspec.Struct, frozen=True):
    """A variant with the results of its runs.

    `finals` are by metric, `differences` from the reference by metric, None for the reference, and `verdicts` on these;
    `gain` is the control's loss minus this one's; `at_equal` is the difference of the loss from the reference at the
    end of the one that progressed less along an axis.
    """

    name: str
    is_control: bool
    program: str
    learners: int
    tokens: int
    runs: list[ComparedRun]
    finals: dict[str, Figure]
    differences: dict[str, FigureDifference]
    verdict: Verdict | None
    gain: FigureDifference | None
    at_equal: dict[str, FigureDifference]
    verdicts: dict[str, Verdict]
    seconds: Figure
    goodput: Figure
    merged_share: Figure
    contributors: Figure
    bytes: Figure


class Comparison(msgspec.Struct, frozen=True):
    """All sides, the reference first, controls last; `devices` are the kinds of devices that runs computed on."""

    folder: str
    reference: str
    seeds: list[int]
    tokens: int
    margin: float | None
    clock: str
    speeds: list[float]
    failed: int
    missing: int
    devices: list[str]
    sides: list[Side]

    @property
    def metrics(self) -> list[str]:
        """The metrics that final models were evaluated by, the loss first."""
        return list(dict.fromkeys(name for side in self.sides for name in side.finals))


def comparison(folder: Path, plan: ComparisonPlan, seeds: int, failed: int = 0) -> Comparison:
    """The results of the runs that are done."""
    runs = measured(folder, plan, seeds)
    reference = plan.variants[0].name
    sides = [
        _side(variant, runs[variant.name], runs[reference], runs.get(variant.control, []), plan)
        for variant in plan.variants
    ]
    return Comparison(
        folder=str(folder),
        reference=reference,
        seeds=list(range(plan.seed, plan.seed + seeds)),
        tokens=plan.tokens,
        margin=plan.margin,
        clock="real" if plan.pacing is None else "virtual",
        speeds=[] if plan.pacing is None else list(plan.pacing.speeds),
        failed=failed,
        missing=sum(seeds - len(of_variant) for of_variant in runs.values()),
        devices=sorted({kind for of_variant in runs.values() for run in of_variant for kind in run.devices}),
        sides=sides,
    )


def _side(
    variant: Variant,
    runs: list[ComparedRun],
    reference: list[ComparedRun],
    control: list[ComparedRun],
    plan: ComparisonPlan,
) -> Side:
    is_reference = variant.name == plan.variants[0].name
    metrics = list(dict.fromkeys(name for run in runs for name in run.finals))
    differences = {} if is_reference else _differences(metrics, runs, reference)
    return Side(
        name=variant.name,
        is_control=not variant.control,
        program=variant.config["run"]["program"],
        learners=variant.run.learners,
        tokens=variant.run.tokens,
        runs=runs,
        finals={name: Figure(*spread(list(_finals(runs, name).values()))) for name in metrics},
        differences=differences,
        verdict=verdict(differences.get(LOSS), plan.margin),
        gain=difference(_finals(control, LOSS), _finals(runs, LOSS)) if variant.control else None,
        at_equal={} if is_reference or not variant.control else _at_equal(runs, reference),
        verdicts=verdicts(differences, {name: way for run in runs for name, way in run.better.items()}, plan.margin),
        seconds=_figure(runs, lambda run: run.seconds),
        goodput=_figure(runs, lambda run: run.goodput),
        merged_share=_figure(runs, lambda run: run.merged_share),
        contributors=_figure(runs, lambda run: run.contributors),
        bytes=_figure(runs, lambda run: run.bytes),
    )


def _differences(
    metrics: Sequence[str], runs: list[ComparedRun], others: list[ComparedRun]
) -> dict[str, FigureDifference]:
    differences = {name: difference(_finals(runs, name), _finals(others, name)) for name in metrics}
    return {name: each for name, each in differences.items() if each is not None}


def _finals(runs: list[ComparedRun], metric: str) -> Mapping[int, float]:
    return {run.seed: run.finals[metric] for run in runs if metric in run.finals}


def _at_equal(runs: list[ComparedRun], others: list[ComparedRun]) -> dict[str, FigureDifference]:
    """The difference of losses at equal tokens, time and bytes; an axis along which one of them has no way is left
    out."""
    differences: dict[str, FigureDifference] = {}
    for axis in AXES:
        mine, theirs = dict[int, float](), dict[int, float]()
        pairs = {run.seed: run for run in others}
        for run in runs:
            other = pairs.get(run.seed)
            at = 0.0 if other is None else min(run.end(axis), other.end(axis))
            if other is None or at <= 0.0:
                continue
            for values, each in ((mine, run), (theirs, other)):
                value = each.value(LOSS, axis, at)
                if value is not None:
                    values[run.seed] = value
        each_difference = difference(mine, theirs)
        if each_difference is not None:
            differences[axis] = each_difference
    return differences


def _figure(runs: list[ComparedRun], of: Callable[[ComparedRun], Any]) -> Figure:
    return Figure(*spread([value for run in runs if (value := of(run)) is not None]))
