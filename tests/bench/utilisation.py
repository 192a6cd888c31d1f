"""What `bench_utilisation` measured, beside what `isthmus plan` says: predictions, table, picture, and how far a
proposed point is behind the best one.

It is apart from the bench, so that a plan that says something else leaves measured cells as they are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from isthmus.programs.wings.plan.plan import PlanRequest, Rates, links_of, measure, proposal_of
from isthmus.programs.wings.report.charts_drawing import Scale, drawing, element, line, text
from isthmus.programs.wings.report.page import document
from tests.bench.kept_cells import KeptCells
from tests.bench.utilisation_points import (
    DECOUPLED,
    DILOCO,
    MODELS,
    PARALLEL,
    POINTS,
    REPEATS,
    STREAMING,
    Point,
    is_reached,
    link_name,
)

INTERVAL: Final = 24
"""The default, from which a plan chooses."""
RATES: Final = "plan: rates"
"""The cell of this machine's merge."""


def request_of(point: Point) -> PlanRequest:
    """What a plan of a point is asked."""
    of = point.settings
    return PlanRequest(
        MODELS[point.model].parameters,
        point.islands,
        point.step_ms / 1e3,
        interval=point.interval,
        fragments=of.get("fragments", 1),
        overlap=of.get("overlap", 1),
        push=of.get("push", "float32"),
        update=of.get("update", "float32"),
        link_bits=point.mbit * 1e6,
        latency_seconds=point.delay_ms / 1e3,
    )


def predicted(point: Point, rates: Rates) -> float:
    """What `isthmus plan` says of the share of the time in which a learner steps."""
    wanted = request_of(point)
    links = next(each for each in links_of(wanted, rates.merge_seconds(wanted)) if each.program == point.program)
    assert links.wait_seconds is not None
    return wanted.step_seconds / (wanted.step_seconds + links.wait_seconds)


def predict(kept: KeptCells) -> None:
    """Keep what a plan says of all points that it has not spoken of."""
    if RATES not in kept:
        rates = measure(PlanRequest(1e6, 2, 0.05))
        kept.keep(RATES, {"merged": rates.merged, "stepped": rates.stepped, "threads": rates.threads})
    for point in POINTS:
        if (name := f"plan: {point.name}") not in kept:
            kept.keep(name, {"predicted": predicted(point, Rates(**kept[RATES]))})


class Row(NamedTuple):
    """A point that was measured: median, least, most and number of runs, what a plan says now, and said before; the
    median share of tokens that were merged, and the most processes that waited for a core."""

    point: Point
    share: float
    least: float
    most: float
    runs: int
    planned: float
    before: float | None
    merged: float
    load: float


def rows(kept: KeptCells) -> Iterator[Row]:
    """The points that were measured, in the order in which they were written down."""
    rates = Rates(**kept[RATES])
    for point in POINTS:
        cells = [kept[name] for run in range(REPEATS) if (name := f"{point.name}, run {run}") in kept]
        if not cells:
            continue
        shares = [cell["utilisation"] for cell in cells]
        before = kept.get(f"plan: {point.name}", {}).get("predicted")
        merged, load = (
            statistics.median(cell["merged"] or 0.0 for cell in cells),
            max(cell["load"] for cell in cells),
        )
        yield Row(
            point,
            statistics.median(shares),
            min(shares),
            max(shares),
            len(shares),
            predicted(point, rates),
            before,
            merged,
            load,
        )


def table(kept: KeptCells) -> str:
    """The table, in Markdown."""
    lines = [
        "| model, step, link | program | of the bare loop | plan | plan before |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows(kept), key=lambda row: _order(row.point)):
        before = "-" if row.before is None else f"{row.before:.3f}"
        span = f"{row.share:.3f}" + (f" ({row.least:.3f} to {row.most:.3f})" if row.runs > 1 else ", 1 run")
        how = row.point.name.partition(": ")[2]
        lines.append(f"| {row.point.place} | {how} | {span} | {row.planned:.3f} | {before} |")
    left = dict.fromkeys(link_name(each) for each in POINTS if link_name(each) in kept and not is_reached(kept, each))
    told = [f"Left out, because our channel does not reach the rate: {', '.join(left)}.", ""] if left else []
    return "\n".join([*lines, "", *told, table_of_regrets(kept), "", kept.told("utilisation")])


class Regret(NamedTuple):
    """At a place: the point that a plan proposes, the best one of those that were measured, how many these are, and how
    far the proposed one is behind, as a share of the best."""

    proposed: Row
    best: Row
    measured: int
    regret: float


def regrets(found: list[Row], rates: Rates) -> Iterator[Regret]:
    """Of each place at which the proposed point was measured, and another program."""
    places = dict.fromkeys(row.point.place for row in found)
    for place in places:
        those = [row for row in found if row.point.place == place]
        proposed = [row for row in those if row.point == proposed_at(those[0].point, rates)]
        if proposed and len({row.point.program for row in those}) > 1:
            best = max(those, key=lambda row: row.share)
            yield Regret(proposed[0], best, len(those), 1 - proposed[0].share / best.share)


def proposed_at(point: Point, rates: Rates) -> Point:
    """The point that a plan proposes at the place of another."""
    wanted = request_of(point._replace(program=DECOUPLED, form="float32", interval=INTERVAL))
    proposal = proposal_of(wanted, rates.merge_seconds(wanted))
    assert proposal is not None, "points have links"
    if proposal.push is None or proposal.interval is None:
        return point._replace(program=proposal.program, form="float32", interval=1)
    return point._replace(program=proposal.program, form=proposal.push, interval=proposal.interval)


def table_of_regrets(kept: KeptCells) -> str:
    """It, in Markdown."""
    lines = ["| model, step, link | proposed | measured | best of | is | behind |", "| --- " * 6 + "|"]
    told = list(regrets(list(rows(kept)), Rates(**kept[RATES])))
    for each in sorted(told, key=lambda each: _order(each.best.point)):
        names = [row.point.name.partition(": ")[2] for row in (each.proposed, each.best)]
        best = f"{names[1]}, {each.best.share:.3f}"
        figures = f"{each.proposed.share:.3f} | {each.measured} | {best} | {100 * each.regret:.1f} %"
        lines.append(f"| {each.best.point.place} | {names[0]} | {figures} |")
    if told:
        behind = [each.regret for each in told]
        lines.append(f"\nIn the mean {100 * statistics.fmean(behind):.1f} %, {100 * max(behind):.1f} % at most.")
    return "\n".join(lines)


def _order(point: Point) -> tuple[Any, ...]:
    return (
        MODELS[point.model].parameters,
        point.step_ms,
        point.islands,
        point.delay_ms,
        point.mbit,
        PROGRAMS.index(point.program),
    )


PROGRAMS: Final = (PARALLEL, DILOCO, STREAMING, DECOUPLED)
_HEIGHT, _WIDTH, _LEFT, _TOP, _BOTTOM = 330.0, 760.0, 60.0, 20.0, 280.0


def picture(kept: KeptCells) -> str:
    """The shares of the small model on links without a delay, by rate and program: measured, and as planned."""
    found = [row for row in rows(kept) if (row.point.model, row.point.step_ms) == ("1M", 50)]
    found = [row for row in found if row.point.islands == 2 and not row.point.delay_ms and row.point.interval in _DRAWN]
    rates = sorted({row.point.mbit for row in found})
    across = Scale.over(map(math.log10, rates), _LEFT + 20, _WIDTH - 190)
    up = Scale(0.0, 1.0, _BOTTOM, _TOP)
    parts = [line(_LEFT, up(share), _WIDTH - 170, up(share), "grid") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    parts += [text(_LEFT - 8, up(share) + 4, f"{share:.2f}", "end") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    parts += [text(across(math.log10(rate)), _BOTTOM + 18, f"{rate}", "mid") for rate in rates]
    parts.append(text((_LEFT + _WIDTH - 170) / 2, _BOTTOM + 40, "Mbit/s of each island's link", "mid"))
    for number, (program, form) in enumerate(_LINES):
        those = [row for row in found if row.point.program == program and row.point.form == form]
        those.sort(key=lambda row: row.point.mbit)
        for one, other in pairwise(those):
            ends = (across(math.log10(one.point.mbit)), up(one.share), across(math.log10(other.point.mbit)))
            parts.append(line(*ends, up(other.share), f"ring c{number}"))
        for row in those:
            x = across(math.log10(row.point.mbit))
            parts.append(element("circle", cx=x, cy=up(row.share), r=4, class_=f"c{number} step"))
            parts.append(element("circle", cx=x, cy=up(row.planned), r=6, class_=f"ring c{number}"))
        y = _TOP + 14 + 40 * number
        parts.append(element("circle", cx=_WIDTH - 150, cy=y - 4, r=4, class_=f"c{number} step"))
        parts.append(text(_WIDTH - 138, y, program, "name"))
        parts.append(text(_WIDTH - 138, y + 15, form, "small"))
    parts.append(text(_WIDTH - 150, _BOTTOM, "dots: measured"))
    parts.append(text(_WIDTH - 150, _BOTTOM + 16, "rings: isthmus plan"))
    return document(drawing(_WIDTH, _HEIGHT, "Steps a second over the bare loop's, by rate and program", *parts))


_DRAWN: Final = (1, 24, 32)
_LINES: Final = ((PARALLEL, "float32"), (DILOCO, "float32"), (DILOCO, "int4"), (STREAMING, "int4"), (DECOUPLED, "int4"))
