"""The loss curves: what each learner saw in training, and what the global model reached on held-out data.

The horizontal axis is the run: the tokens that all learners had trained, or seconds. A learner's points are means over
equal stretches of that axis, each smoothed with its two neighbours, so its curve neither lags nor shows a single batch;
it is broken where the learner did not step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

from isthmus.programs.command.absences import Absence
from isthmus.programs.command.chart_axes import Scale, drawing, horizontal_axis, line, rectangle, text, vertical_axis
from isthmus.programs.command.report_markup import Markup, element, joined, path, titled
from isthmus.programs.command.report_progress import Progress, by_learner, unbroken
from isthmus.programs.command.report_record import Evaluation, Report, RunRecord
from isthmus.programs.command.report_style import learner_class
from isthmus.programs.numbers import decimal, scaled, seconds, tick

Axis: TypeAlias = Literal["tokens", "time"]
Point: TypeAlias = tuple[float, float]

_POINTS_MAX: Final = 5_000
"""Of all learners together, so that the page stays small however many there are."""

_STRETCHES_MAX: Final = 150
_LEGEND_MAX: Final = 8


def draw_curves(record: RunRecord, axis: Axis = "tokens", width: float = 1080, height: float = 400) -> Markup:
    """All loss curves over `axis`, `width` x `height` pixels."""
    left, right, top, bottom = 42.0, width - 80, 24.0, height - 42
    curves = training_curves(record, axis)
    points = [(item, (item.tokens if axis == "tokens" else item.time, item.eval_loss)) for item in record.evaluations]
    known = [(item, (x, y)) for item, (x, y) in points if y is not None]
    trained = [point for parts in curves.values() for part in parts for point in part]
    x_scale = Scale.over([0.0, *(x for _, (x, _) in known), *(x for x, _ in trained)], left, right)
    losses = _visible([y for _, (_, y) in known], [y for _, y in trained])
    y_scale = Scale.over(losses, bottom - 8, top + 6, is_log=True)
    name = "tokens trained by all learners" if axis == "tokens" else "time since the first inner step"
    clip = f"plot-{axis}-{width:g}"
    return drawing(
        width,
        height,
        f"Loss over {name}: {len(curves)} learners in training, and the global model on held-out data",
        horizontal_axis(x_scale, top, bottom, max(int(width / 150), 3), scaled if axis == "tokens" else seconds),
        vertical_axis(y_scale, left, right, 7, tick),
        text((left + right) / 2, height - 8, name, "mid"),
        text(0, 10, "loss, logarithmic" if y_scale.is_log else "loss"),
        element("clipPath", element("rect", x=left, y=top, width=right - left, height=bottom - top), id=clip),
        element("g", *_training(curves, x_scale, y_scale), clip_path=f"url(#{clip})"),
        *_missing(record, axis, x_scale, top, bottom),
        _evaluation(known, x_scale, y_scale, record.absences),
        _legend(list(curves), bool(known), right, top),
    )


def training_curves(record: RunRecord, axis: Axis) -> dict[int, list[list[Point]]]:
    """Per slot, the unbroken parts of its curve of mean losses over `axis`."""
    progress = Progress(record.reports)
    reports = by_learner(record.reports)
    count = max(min(_STRETCHES_MAX, _POINTS_MAX // max(len(reports), 1)), 8)
    last = max((report.time for report in record.reports), default=0.0)
    end = last if axis == "time" else progress.at(last)

    def drawn(part: Sequence[Report]) -> list[Point]:
        places = [(report.time if axis == "time" else progress.at(report.time), report.loss) for report in part]
        return _smoothed(_means([(x, loss) for x, loss in places if loss is not None], end / count))

    return {slot: [drawn(part) for part in unbroken(items, record.wall_seconds)] for slot, items in reports.items()}


def _means(points: Sequence[Point], stretch: float) -> list[Point]:
    """The mean point of every stretch that has any."""
    stretches: dict[int, list[Point]] = {}
    for x, y in points:
        stretches.setdefault(int(x / stretch) if stretch > 0 else 0, []).append((x, y))
    return [
        (sum(x for x, _ in found) / len(found), sum(y for _, y in found) / len(found))
        for _, found in sorted(stretches.items())
    ]


def _smoothed(points: Sequence[Point]) -> list[Point]:
    """Each point with half the weight of its neighbours: reports are means over few batches, and noisy."""
    if len(points) < 3:
        return list(points)
    inner = [
        (x, (before + 2 * y + after) / 4)
        for (_, before), (x, y), (_, after) in zip(points, points[1:], points[2:], strict=False)
    ]
    return [points[0], *inner, points[-1]]


def _visible(evaluated: Sequence[float], trained: Sequence[float]) -> list[float]:
    """The losses that the vertical axis has to reach: all of the evaluation, and training but for its outliers."""
    ordered = sorted(trained)
    high = [ordered[math.ceil(0.99 * (len(ordered) - 1))]] if ordered else []
    return [*evaluated, *ordered[:1], *high]


def _training(curves: dict[int, list[list[Point]]], x_scale: Scale, y_scale: Scale) -> Iterator[Markup]:
    for slot, parts in curves.items():
        drawn = [path((x_scale(x), y_scale(y)) for x, y in part) for part in parts if len(part) > 1]
        dots = [part[0] for part in parts if len(part) == 1]
        if drawn:
            name = titled(f"learner {slot}, training loss")
            yield element("path", name, d="".join(drawn), class_=f"training {learner_class(slot)}")
        for x, y in dots:
            yield element("circle", cx=x_scale(x), cy=y_scale(y), r=1.5, class_=f"chip {learner_class(slot)}")


def _missing(record: RunRecord, axis: Axis, x_scale: Scale, top: float, bottom: float) -> Iterator[Markup]:
    """A band where the evaluator was away."""
    progress = Progress(record.reports)
    for absence in _evaluator_away(record.absences):
        end = record.wall_seconds if absence.ended is None else absence.ended
        x = x_scale(absence.begun if axis == "time" else progress.at(absence.begun))
        # An evaluation is of the model as it was some time before, so that the band ends where its point is drawn.
        first = next((item for item in record.evaluations if item.time >= end), None)
        until = x_scale.stop if first is None else x_scale(first.time if axis == "time" else first.tokens)
        wide = min(until, x_scale.stop) - x
        if wide > 0:
            yield rectangle(
                x, top, wide, bottom - top, "missing", f"the evaluator was away for {seconds(end - absence.begun)}"
            )
            if wide > 90:
                yield text(x + wide / 2, bottom - 7, "evaluator away", "mid")


def _evaluator_away(absences: Sequence[Absence]) -> list[Absence]:
    return [item for item in absences if item.role == "evaluator" and item.kind == "gone"]


def _pieces(known: Sequence[tuple[Evaluation, Point]], absences: Sequence[Absence]) -> list[list[Point]]:
    """The points of the curve, in parts between which the evaluator was away."""
    pieces: list[list[Point]] = [[]]
    before = None
    for item, point in known:
        was_away = before is not None and any(
            absence.begun < item.time and (absence.ended is None or absence.ended > before)
            for absence in _evaluator_away(absences)
        )
        if was_away:
            pieces.append([])
        pieces[-1].append(point)
        before = item.time
    return pieces


def _evaluation(
    known: Sequence[tuple[Evaluation, Point]], x_scale: Scale, y_scale: Scale, absences: Sequence[Absence]
) -> Markup:
    """The global model: a bold line, broken where nobody evaluated, its points, and what it came to."""
    if not known:
        return Markup()
    places = [(x_scale(x), y_scale(y)) for _, (x, y) in known]
    pieces = [[(x_scale(x), y_scale(y)) for x, y in piece] for piece in _pieces(known, absences) if len(piece) > 1]
    parts = [element("path", d=path(piece), class_=name) for name in ("halo", "evaluation") for piece in pieces]
    for (item, (_, loss)), (x, y) in zip(known, places, strict=True):
        told = f"{item.kind}: {decimal(loss)} after {scaled(item.tokens)} tokens, {seconds(item.time)}"
        is_last = item is known[-1][0]
        classes = "point last" if is_last else "point"
        parts.append(element("circle", titled(told), cx=x, cy=y, r=4.2 if is_last else 3, class_=classes))
    x, y = places[-1]
    parts.append(text(x + 10, y + 4, decimal(known[-1][1][1]), "value"))
    return joined(parts)


def _legend(slots: Sequence[int], has_evaluation: bool, right: float, top: float) -> Markup:
    """Who is who, in the corner that falling curves leave free."""
    rows: list[tuple[str, str]] = [("evaluation", "global model, held-out data")] if has_evaluation else []
    if len(slots) <= _LEGEND_MAX:
        rows += [(f"training {learner_class(slot)}", f"learner {slot}, training") for slot in slots]
    else:
        rows.append((f"training {learner_class(0)}", f"{len(slots)} learners, training"))
    parts = []
    for index, (class_, name) in enumerate(rows):
        y = top + 16 + 18 * index
        parts.append(line(right - 196, y - 4, right - 172, y - 4, class_))
        parts.append(text(right - 164, y, name))
    return joined(parts)
