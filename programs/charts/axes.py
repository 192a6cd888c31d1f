"""Axes: the map from values to pixels, and the places of the ticks.

Everything is a function of numbers; the only state is a `Scale`. Ticks are at 1, 2 or 5 times a power of ten. A range
without extent (one value, or none) is widened, so that no chart ever divides by zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from markupsafe import Markup

from isthmus.programs.charts.markup import Attribute, element, joined
from isthmus.programs.results.numbers import seconds


class Scale(NamedTuple):
    """Maps [low, high] to the pixels [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, stop: float) -> Scale:
        """The scale that shows all `values`."""
        known = [value for value in values if math.isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        if high <= low:
            low, high = low - abs(low) * 0.1 - 0.1, high + abs(high) * 0.1 + 0.1
        return cls(low, high, start, stop)

    def __call__(self, value: float) -> float:
        """The pixel of `value`."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values in the range."""
        step = round_step((self.high - self.low) / max(count, 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def round_step(rough: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def drawing(width: float, height: float, label: str, *parts: Markup, **attributes: Attribute) -> Markup:
    """An `svg` element with its own coordinates; `label` is its text for screen readers."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=label, **attributes)


def text(x: float, y: float, content: str, *classes: str, **attributes: Attribute) -> Markup:
    """A piece of text at (x, y), its baseline."""
    return element("text", content, x=x, y=y, class_=" ".join(classes) or None, **attributes)


def rectangle(
    x: float, y: float, width: float, height: float, class_: str, title: str = "", **attributes: str
) -> Markup:
    """A box, with its tooltip `title`."""
    children = [element("title", title)] if title else []
    return element("rect", *children, x=x, y=y, width=max(width, 0.0), height=height, class_=class_, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def time_axis(scale: Scale, top: float, bottom: float, count: int, label: float) -> Markup:
    """Vertical rules from `top` to `bottom`, and the seconds of each at the height `label`, if there is room."""
    return joined(_time_axis(scale, top, bottom, count, label))


def _time_axis(scale: Scale, top: float, bottom: float, count: int, label: float) -> Iterator[Markup]:
    digits = max(0, -math.floor(math.log10(round_step((scale.high - scale.low) / max(count, 1)))))
    for value in scale.ticks(count):
        x = scale(value)
        yield line(x, top, x, bottom, "grid")
        if x < scale.stop - 16:
            yield text(x, label, f"{value:.{digits}f} s" if scale.high < 120 else seconds(value), "mid")
