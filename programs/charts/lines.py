"""Lines over numbers that people choose: chips, learners, speeds. Points of another source may stand beside a line.

Horizontal places are either even, in the order of their values, or to scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from markupsafe import Markup

from isthmus.programs.charts.axes import Scale, drawing, line, text
from isthmus.programs.charts.markup import element, joined, path, titled
from isthmus.programs.charts.style import LEARNER_COLOURS

_LEFT: Final = 56
_RIGHT: Final = 210
_TOP: Final = 18
_BOTTOM: Final = 44
_LABEL: Final = 14
"""Minimum distance of two names at the right."""


@final
@dataclass(frozen=True, slots=True)
class Line:
    """A named line through (place, value); `beside` are the points of another source, drawn as rings."""

    name: str
    points: Sequence[tuple[float, float]]
    beside: Sequence[tuple[float, float]] = ()


def draw_lines(
    lines: Sequence[Line],
    label: str,
    places: Callable[[float], str],
    values: Callable[[float], str],
    *,
    low: float | None = None,
    high: float | None = None,
    width: float = 1080,
    height: float = 420,
) -> Markup:
    """The chart, called `label`; `places` and `values` write the numbers of the axes. Places lie evenly."""
    found = sorted({place for each in lines for place, _ in (*each.points, *each.beside)})
    across = {place: Scale(0, max(len(found) - 1, 1), _LEFT, width - _RIGHT)(at) for at, place in enumerate(found)}
    ends = [end for end in (low, high) if end is not None]
    every = [value for each in lines for _, value in (*each.points, *each.beside)]
    up = Scale.over([*every, *ends], height - _BOTTOM, _TOP)
    parts = [_grid(up, across, places, values, width, height)]
    names = _spread([(up(each.points[-1][1]), index) for index, each in enumerate(lines) if each.points])
    for index, each in enumerate(lines):
        parts.append(_line(each, index, across, up, values))
        if index in names:
            name = text(width - _RIGHT + 14, names[index] + 4, each.name, "name", "chip", _colour(index))
            parts.append(name)
    return drawing(width, height, label, *parts)


def _grid(
    up: Scale,
    across: dict[float, float],
    places: Callable[[float], str],
    values: Callable[[float], str],
    width: float,
    height: float,
) -> Markup:
    rules = [
        line(_LEFT, up(tick), width - _RIGHT, up(tick), "grid") + text(_LEFT - 8, up(tick) + 4, values(tick), "end")
        for tick in up.ticks(8)
    ]
    marks = [text(x, height - _BOTTOM + 22, places(place), "mid") for place, x in across.items()]
    return joined([*rules, *marks])


def _line(each: Line, index: int, across: dict[float, float], up: Scale, values: Callable[[float], str]) -> Markup:
    colour = f"{_colour(index)} series"
    at = [(across[place], up(value)) for place, value in each.points]
    parts = [element("path", d=path(at), class_=colour)] if len(at) > 1 else []
    parts += [
        element("circle", titled(f"{each.name}: {values(value)}"), cx=x, cy=y, r=2.6, class_=f"{_colour(index)} step")
        for (x, y), (_, value) in zip(at, each.points, strict=True)
    ]
    parts += [
        element(
            "circle",
            titled(f"{each.name}, published: {values(value)}"),
            cx=across[place],
            cy=up(value),
            r=5.5,
            class_=f"{_colour(index)} ring",
        )
        for place, value in each.beside
    ]
    return joined(parts)


def _spread(heights: Sequence[tuple[float, int]]) -> dict[int, float]:
    """The height of each name, from the top, so that none overlap."""
    return dict(_placed(sorted(heights)))


def _placed(heights: Sequence[tuple[float, int]]) -> Iterator[tuple[int, float]]:
    free = 0.0
    for height, index in heights:
        free = max(free, height)
        yield index, free
        free += _LABEL


def _colour(index: int) -> str:
    return f"c{index % LEARNER_COLOURS}"
