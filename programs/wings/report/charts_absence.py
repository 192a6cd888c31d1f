"""The picture of a death: every learner's steps around it, the one that was killed and came back among the others.

Time runs to the right, a lane for each learner, and in it a box for each inner step, as wide as it lasted: a pause of
others would show as a gap. Where steps are too many to be distinguished their boxes run together; gaps narrower than
half a pixel close. A life of which neither trace nor tape is left is hatched, and drawn from its reports. Below, the
merges of the syncer and the evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup

from isthmus.programs.engine.results.absences import Absence, cause, named
from isthmus.programs.engine.results.record import Firing, RunRecord
from isthmus.programs.engine.results.words import decimal, seconds
from isthmus.programs.wings.report.charts_drawing import (
    Scale,
    drawing,
    element,
    joined,
    learner_class,
    line,
    rectangle,
    share_level,
    text,
    time_axis,
    titled,
)
from isthmus.programs.wings.report.charts_merges import describe, merges_by_fragment
from isthmus.programs.wings.report.charts_timeline import LEARNERS_DRAWN_MAX, Steps, TimeWindow, steps_between

GUTTER: Final = 104.0
_TOP: Final = 26.0
_HIGH: Final = 26.0
_LOW: Final = 18.0
_BETWEEN: Final = 7.0
_GAP_PIXELS_MIN: Final = 0.5
_SINGLE_PIXELS_MIN: Final = 2.5
"""Steps that are narrower are not shaded in turns: it would be noise."""
_CHARACTER_PIXELS: Final = 5.6
_SHARDS_MAX: Final = 4


def draw_absence(
    record: RunRecord,
    window: TimeWindow,
    absences: Sequence[Absence],
    width: float = 1080,
    marks: Sequence[float] = (),
) -> Markup:
    """The activity in `window` around `absences`, `width` pixels wide, with vertical lines at `marks` (seconds)."""
    learners = steps_between(record, window)[:LEARNERS_DRAWN_MAX]
    others = [host for host in (*_shards(record, absences), "evaluator/0") if _is_worth_a_lane(record, host)]
    bottom = _TOP + (_HIGH + _BETWEEN) * len(learners) + (_LOW + _BETWEEN) * len(others)
    x = Scale(window.begin, window.end, GUTTER, width - 2)
    hatch = f"told-{round(1e3 * window.begin)}-{width:g}"
    parts = [time_axis(x, _TOP - 6, bottom, max(int(width / 95), 3), _TOP - 11)]
    y = _TOP
    for steps in learners:
        parts += _learner(steps, x, y, hatch)
        y += _HIGH + _BETWEEN
    for host in others:
        parts.append(text(12, y + 13, named(host), "name"))
        parts.append(rectangle(GUTTER, y, x.stop - GUTTER, _LOW, "band"))
        parts += _merges(record, host, x, y) if host.startswith("syncer/") else _evaluations(record, x, y)
        parts += [_absence(item, x, y, _LOW) for item in absences if item.host == host]
        y += _LOW + _BETWEEN
    parts += [line(x(mark), _TOP - 6, x(mark), bottom, "mark") for mark in marks]
    causes = "; ".join(f"{named(item.host)} {cause(item)} at {item.begun:.1f} s" for item in absences)
    label = f"Inner steps of {len(learners)} learners from {window.begin:.1f} s to {window.end:.1f} s: {causes}"
    return drawing(width, bottom, label, *parts)


def _shards(record: RunRecord, absences: Sequence[Absence]) -> list[str]:
    """The syncer shards that have a lane: all of a few, of many those that were away."""
    shards = [f"syncer/{shard}" for shard in range(record.shards)]
    away = {absence.host for absence in absences}
    return [host for host in shards if len(shards) <= _SHARDS_MAX or host in away]


def _is_worth_a_lane(record: RunRecord, host: str) -> bool:
    return bool(merges_by_fragment(record)) if host.startswith("syncer/") else bool(record.evaluations)


def _hatch(name: str, colour: str) -> Markup:
    """The pattern of a life that is drawn from reports."""
    written = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return element("pattern", line(1, 0, 1, 6, "hatch"), id=name, class_=colour, width=4.5, height=6, **written)


def _learner(steps: Steps, x: Scale, y: float, hatch: str) -> Iterator[Markup]:
    colour = learner_class(steps.slot)
    yield rectangle(0, y, 4, _HIGH, f"chip {colour}")
    yield text(12, y + 17, f"learner {steps.slot}", "name")
    yield rectangle(GUTTER, y, x.stop - GUTTER, _HIGH, "band")
    if steps.reported:
        yield _hatch(f"{hatch}-{steps.slot}", colour)
    for stretch in steps.reported:
        title = f"learner {steps.slot}, from its reports: nothing tells of its single steps"
        box = {"x": x(stretch.begin), "y": y, "width": x(stretch.end) - x(stretch.begin), "height": _HIGH}
        yield element("rect", class_=f"told-paper {colour}", **box)
        yield element("rect", titled(title), fill=f"url(#{hatch}-{steps.slot})", **box)
    for shade, boxes in enumerate(_boxes(steps.traced, x)):
        if boxes:
            drawn = "".join(f"M{begin:.1f} {y:g}h{wide:.1f}v{_HIGH:g}h-{wide:.1f}z" for begin, wide in boxes)
            yield element("path", titled(f"learner {steps.slot}"), d=drawn, class_=f"step{' odd' * shade} {colour}")
    for absence in steps.absences:
        yield _absence(absence, x, y, _HIGH)


def _boxes(firings: Sequence[Firing], x: Scale) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(left edge, width) of the boxes, in two shades if single steps can be seen, else run together in one."""
    edges = [(max(x(firing.begun), x.start), min(x(firing.ended), x.stop)) for firing in firings]
    if not edges:
        return [], []
    if sum(end - begin for begin, end in edges) / len(edges) >= _SINGLE_PIXELS_MIN:
        boxes = [(begin, max(end - begin, 1.0)) for begin, end in edges]
        return boxes[::2], boxes[1::2]
    together = [edges[0]]
    for begin, end in edges[1:]:
        if begin - together[-1][1] < _GAP_PIXELS_MIN:
            together[-1] = (together[-1][0], max(end, together[-1][1]))
        else:
            together.append((begin, end))
    return [(begin, max(end - begin, 0.5)) for begin, end in together], []


def _merges(record: RunRecord, host: str, x: Scale, y: float) -> Iterator[Markup]:
    """A stroke for every merge of a shard, in the colour of its contributors."""
    of = len(record.learners)
    for merge in record.merges:
        is_own = host == f"syncer/{merge.fragment % record.shards}"
        if is_own and merge.kind in ("merge", "final") and x.low <= merge.time <= x.high:
            level = share_level(len(merge.voters), of)
            yield rectangle(x(merge.time) - 1, y, 2, _LOW, f"cell k{level}", describe(merge, of))


def _evaluations(record: RunRecord, x: Scale, y: float) -> Iterator[Markup]:
    for item in record.evaluations:
        if x.low <= item.time <= x.high:
            title = f"evaluated at {seconds(item.time)}: {decimal(item.eval_loss)}"
            yield element("circle", titled(title), cx=x(item.time), cy=y + _LOW / 2, r=3.4, class_="point")


def _absence(absence: Absence, x: Scale, y: float, high: float) -> Markup:
    """An empty box with a cross at the loss of the host, and its cause inside, if there is room."""
    begin = max(x(absence.begun), x.start)
    end = x.stop if absence.ended is None else min(x(absence.ended), x.stop)
    why = "silent" if absence.kind == "silent" else cause(absence)
    away = "silent" if absence.kind == "silent" else "away"
    took = "and did not come back" if absence.seconds is None else f"{away} for {seconds(absence.seconds)}"
    whole = took if absence.kind == "silent" else f"{why}, {took}"
    title = f"{named(absence.host)}: {whole}"
    parts = [
        element("rect", titled(title), x=begin, y=y + 0.5, width=max(end - begin, 2), height=high - 1, class_="absent")
    ]
    if absence.begun >= x.low and absence.kind == "gone":
        cross, middle = 4.5, y + high / 2
        d = f"M{begin - cross:.1f} {middle - cross:.1f}l9 9m0-9l-9 9"
        parts.append(element("path", titled(title), d=d, class_="cross"))
    shown = next((words for words in (whole, took, why) if _fits(words, end - begin - 16)), "")
    if shown:
        parts.append(text((begin + end) / 2 + 4, y + high / 2 + 4, shown, "mid"))
    return joined(parts)


def _fits(words: str, pixels: float) -> bool:
    return len(words) * _CHARACTER_PIXELS <= pixels
