"""A plan as text, as JSON, and as a page with a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from isthmus.programs.charts.axes import Scale, drawing, line, rectangle, text
from isthmus.programs.plan.links import Links
from isthmus.programs.plan.plan import Outlook, Plan
from isthmus.programs.report.sheet import Part, Sheet
from isthmus.programs.results.numbers import percent, scaled, seconds, size

_COLUMNS = ("program", "up, mean", "down, mean", "peak", "shard's link", "no wait from", "a step", "goodput")
_LEGEND = (
    "no wait from: the smallest link on which every fragment is back within the overlap; -: on none. In "
    "decoupled-diloco no step ever waits; what comes back later is older, and H is lengthened where it has to be."
)
_ASSUMED = (
    "Bits a second of each learner's link, full duplex, without latency. The peak is that of the largest fragment, at "
    "most 4/3 of the mean one; of data-parallel training that of the share of a step in which gradients cross; diloco "
    "sends everything at once, as fast as its link is.",
    "Memory is the least: parameters, gradient and AdamW on an island, without activations.",
    "Goodput is of the event model of `isthmus simulate goodput`, calibrated to published cells; in diloco and "
    "streaming-diloco, where all wait for each, it is that of one learner with all chips. Without --chips or --island "
    "there is none.",
)


def as_object(plan: Plan) -> dict[str, Any]:
    """All figures, in bits, bytes and seconds."""
    wanted = asdict(plan.wanted) | {"islands": [island.name for island in plan.wanted.islands]}
    return {
        "wanted": wanted,
        "programs": [
            {
                **asdict(each.links),
                **{name: getattr(each, name) for name in ("step_seconds", "goodput", "uptime")},
                "cost_per_1000_steps": each.cost,
            }
            for each in plan.outlooks
        ],
        "memory_bytes": asdict(plan.memory),
        "islands": list(_islands(plan)),
        "merge": {**asdict(plan.rates), "seconds": plan.merge_seconds, "overlap_left_seconds": plan.overlap_left},
        "cost_per_hour": plan.cost_per_hour,
    }


def table(plan: Plan) -> str:
    """The plan for people, without a page."""
    rows = _rows(plan)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    facts = (f"{name:<10}{told}" for name, told in _facts(plan))
    return "\n".join([*lines, _LEGEND, "", *facts, "", *_ASSUMED, ""])


def sheet(plan: Plan) -> Sheet:
    """The page."""
    wanted, (columns, *rows) = plan.wanted, _rows(plan)
    lead = (
        f"{scaled(wanted.parameters)} parameters, {wanted.learners} learners, {seconds(wanted.step_seconds)} a step, "
        f"{wanted.fragments} fragments, each merged once in {wanted.interval} steps. Nothing ran but the merge."
    )
    return Sheet(
        "A plan",
        lead,
        [
            Part("Links", _drawing(plan), columns, rows, [_LEGEND]),
            Part("Machines", None, ("what", "how much"), list(_facts(plan)), _ASSUMED),
        ],
    )


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    """The names of the columns, and a row for each program; with what 1000 steps that count cost, where it is known."""
    rows = [_COLUMNS, *map(_row, plan.outlooks)]
    if plan.cost_per_hour is None:
        return rows
    costs = ["1000 steps cost", *(f"{each.cost:,.2f}" for each in plan.outlooks if each.cost is not None)]
    return [(*row, cost) for row, cost in zip(rows, costs, strict=True)]


def _row(of: Outlook) -> tuple[str, ...]:
    links = of.links
    return (
        links.program,
        *(scaled(bits, "bit/s") for bits in (links.up_bits, links.down_bits, links.peak_bits)),
        *(scaled(bits, "bit/s") for bits in (links.shard_bits, links.smallest_bits)),
        _step(of),
        percent(of.goodput),
    )


def _step(of: Outlook) -> str:
    told = seconds(of.step_seconds)
    raised = of.links.interval
    return f"{told}, H = {raised:.0f}" if of.links.program == "decoupled-diloco" and raised is not None else told


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    memory, rates = plan.memory, plan.rates
    yield "learner", f"{size(memory.island)} on its island, {size(memory.machine)} in its machine's memory"
    yield "syncer", f"{size(memory.shard)} on each of {plan.wanted.shards} shard{'s' if plan.wanted.shards > 1 else ''}"
    for island in _islands(plan):
        if not island["fits"]:
            yield "too small", f"{island['island']} has {size(island['memory_limit_bytes'])}"
    measured = f"{scaled(rates.merged)} values a second merged and {scaled(rates.stepped)} stepped"
    yield (
        "merge",
        f"{seconds(plan.merge_seconds)} for the largest fragment; here, by {rates.threads} threads: {measured}",
    )
    yield "overlap", f"{seconds(plan.overlap_left)} of {seconds(plan.wanted.overlap * plan.wanted.step_seconds)} left"
    if plan.cost_per_hour is not None:
        yield "cost", f"{plan.cost_per_hour:,.2f} an hour for all devices"


def _islands(plan: Plan) -> Iterator[dict[str, Any]]:
    for slot, island in enumerate(plan.wanted.islands):
        memory = island.device.memory_bytes
        limit = None if memory is None else memory * island.count // island.devices_a_chip
        fits = limit is None or plan.memory.island <= limit
        yield {"learner": slot, "island": island.name, "memory_limit_bytes": limit, "fits": fits}


def _drawing(plan: Plan) -> Markup:
    """Mean, peak and smallest link of each program, on a logarithmic scale."""
    bars = [(each.links, *named) for each in plan.outlooks for named in _bits(each.links).items()]
    known = [math.log10(bits) for _, _, bits in bars if bits]
    left, row, width, height = 250, 22, 1080, 22 * len(bars) + 34
    across = Scale(math.floor(min(known, default=0)), math.ceil(max(known, default=1)), left, width - 120)
    decades = range(int(across.low), int(across.high) + 1)
    parts = [line(across(each), 8, across(each), height - 26, "grid") for each in decades]
    parts += [text(across(each), height - 8, scaled(10.0**each, "bit/s"), "mid") for each in decades]
    for index, (links, name, bits) in enumerate(bars):
        y, end, told = 10 + row * index, float(left), "-"
        if not index % len(_bits(links)):
            parts.append(text(0, y + 12, links.program, "name"))
        if bits:
            end, told = across(math.log10(bits)), scaled(bits, "bit/s")
            parts.append(rectangle(left, y + 2, end - left, 13, f"c{index // len(_bits(links))} step", told))
        parts += [text(left - 10, y + 12, name, "end"), text(end + 6, y + 12, told)]
    return drawing(width, height, "Bits a second of a learner's link", *parts)


def _bits(links: Links) -> dict[str, float | None]:
    return {"mean": max(links.up_bits, links.down_bits), "peak": links.peak_bits, "no wait from": links.smallest_bits}
