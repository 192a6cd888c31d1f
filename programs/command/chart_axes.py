"""Axes: from values to pixels, and where the ticks are.

Everything is a function of numbers; the only state is what a `Scale` says. Ticks are at 1, 2 or 5 times a power of
ten. A range without extent (one value, or none) is widened, so that no chart ever divides by zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from isthmus.programs.command.report_markup import Attribute, Markup, element, joined


class Scale(NamedTuple):
    """Maps [low, high] to the pixels [start, stop], linearly or by the logarithm."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, stop: float, *, is_log: bool = False) -> Scale:
        """The scale that shows all `values`; logarithmic only if they are all positive."""
        known = [value for value in values if math.isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        if high <= low:
            low, high = low - abs(low) * 0.1 - 0.1, high + abs(high) * 0.1 + 0.1
        return cls(low, high, start, stop, is_log and low > 0)

    def __call__(self, value: float) -> float:
        """The pixel of `value`."""
        if self.is_log:
            share = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values in the range."""
        if self.is_log:
            return _log_ticks(self.low, self.high, count)
        step = round_step((self.high - self.low) / max(count, 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    """Powers of ten, and as many values between them as `count` leaves room for."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, len(powers) // max(count, 1))
    found: list[float] = []
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        found = [f * 10.0**power for power in powers if power % every == 0 for f in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) >= count / 2:
            break
    return found


def round_step(rough: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def drawing(width: float, height: float, label: str, *parts: Markup, **attributes: Attribute) -> Markup:
    """An `svg` element with its own coordinates, named for people who do not see it."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=label, **attributes)


def text(x: float, y: float, content: str, *classes: str, **attributes: Attribute) -> Markup:
    """A piece of text at (x, y), its baseline."""
    return element("text", content, x=x, y=y, class_=" ".join(classes) or None, **attributes)


def rectangle(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    """A box, with what a pointer that rests on it is told."""
    children = [element("title", title)] if title else []
    return element("rect", *children, x=x, y=y, width=max(width, 0.0), height=height, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def horizontal_axis(scale: Scale, top: float, bottom: float, count: int, write: Callable[[float], str]) -> Markup:
    """Vertical rules and, below them, what the ticks are."""
    parts = []
    for value in scale.ticks(count):
        x = scale(value)
        parts.append(line(x, top, x, bottom, "grid"))
        parts.append(text(x, bottom + 15, write(value), "mid"))
    return joined(parts)


def vertical_axis(scale: Scale, left: float, right: float, count: int, write: Callable[[float], str]) -> Markup:
    """Horizontal rules and, left of them, what the ticks are."""
    parts = []
    for value in scale.ticks(count):
        y = scale(value)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(text(left - 7, y + 4, write(value), "end"))
    return joined(parts)
