"""The results of a comparison: means, spreads, paired differences from the reference and from the control, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from isthmus.programs.comparison.measured import AXES, Run, measured
from isthmus.programs.comparison.plan import Plan, Variant
from isthmus.programs.comparison.statistics import Difference, Verdict, difference, spread, verdict
from isthmus.programs.results.record import LOSS


class Figure(msgspec.Struct, frozen=True):
    """A figure over the seeds: its mean and its standard deviation, None with too few values."""

    mean: float | None
    deviation: float | None


class Side(msgspec.Struct, frozen=True):
    """A variant with the results of its runs.

    `finals` are by metric, `differences` from the reference by metric, None for the reference; `gain` is the control's
    loss minus this one's; `at_equal` is the difference of the loss from the reference at the end of the one that
    progressed less along an axis.
    """

    name: str
    is_control: bool
    program: str
    learners: int
    tokens: int
    runs: list[Run]
    finals: dict[str, Figure]
    differences: dict[str, Difference]
    verdict: Verdict | None
    gain: Difference | None
    at_equal: dict[str, Difference]
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


def comparison(folder: Path, plan: Plan, seeds: int, failed: int = 0) -> Comparison:
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
        missing=sum(seeds - len(found) for found in runs.values()),
        devices=sorted({kind for found in runs.values() for run in found for kind in run.devices}),
        sides=sides,
    )


def _side(variant: Variant, runs: list[Run], reference: list[Run], control: list[Run], plan: Plan) -> Side:
    is_reference = variant.name == plan.variants[0].name
    metrics = list(dict.fromkeys(name for run in runs for name in run.finals))
    found = {} if is_reference else _differences(metrics, runs, reference)
    return Side(
        name=variant.name,
        is_control=not variant.control,
        program=variant.config["run"]["program"],
        learners=variant.learners,
        tokens=int(variant.config["run"]["tokens"]),
        runs=runs,
        finals={name: Figure(*spread(list(_finals(runs, name).values()))) for name in metrics},
        differences=found,
        verdict=verdict(found.get(LOSS), plan.margin),
        gain=difference(_finals(control, LOSS), _finals(runs, LOSS)) if variant.control else None,
        at_equal={} if is_reference or not variant.control else _at_equal(runs, reference),
        seconds=_figure(runs, lambda run: run.seconds),
        goodput=_figure(runs, lambda run: run.goodput),
        merged_share=_figure(runs, lambda run: run.merged_share),
        contributors=_figure(runs, lambda run: run.contributors),
        bytes=_figure(runs, lambda run: run.bytes),
    )


def _differences(metrics: Sequence[str], runs: list[Run], others: list[Run]) -> dict[str, Difference]:
    found = {name: difference(_finals(runs, name), _finals(others, name)) for name in metrics}
    return {name: each for name, each in found.items() if each is not None}


def _finals(runs: list[Run], metric: str) -> Mapping[int, float]:
    return {run.seed: run.finals[metric] for run in runs if metric in run.finals}


def _at_equal(runs: list[Run], others: list[Run]) -> dict[str, Difference]:
    """The difference of losses at equal tokens, time and bytes; an axis along which one of them has no way is left
    out."""
    found: dict[str, Difference] = {}
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
            found[axis] = each_difference
    return found


def _figure(runs: list[Run], of: Callable[[Run], Any]) -> Figure:
    return Figure(*spread([value for run in runs if (value := of(run)) is not None]))
