"""Axes: the map from values to pixels, and the places of the ticks.

Everything is a function of numbers; the only state is a `Scale`. Ticks are at 1, 2 or 5 times a power of ten. A range
without extent (one value, or none) is widened, so that no chart ever divides by zero.

Elements of SVG as markup, with every foreign string escaped exactly once.

Any string that is no `Markup` is content, and is escaped when an element takes it, so any string from a run (a
program's name, a reason) can be passed to `element` as it is. Attribute names are keywords: `class_` is class,
`stroke_width` is stroke-width, numbers are written with two decimals at most, and None leaves the attribute out.

Names of colours that the style sheet of the page defines: learners in turn, shares of contributors in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from markupsafe import Markup, escape

from isthmus.programs.engine.results.words import seconds

Attribute: TypeAlias = str | float | None


def element(tag: str, /, *children: str, **attributes: Attribute) -> Markup:
    """The element `tag` with its children and attributes."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = joined(children)
    return Markup(f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>")


def joined(parts: Iterable[str]) -> Markup:
    """The parts one after another; strings that are no Markup are escaped."""
    return Markup("").join(parts)


def titled(text: str) -> Markup:
    """The title of an element, shown as its tooltip."""
    return element("title", text)


def path(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a line through `points`, with one decimal: a tenth of a pixel is not visible."""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Scale(NamedTuple):
    """Maps [low, high] to the pixels [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, stop: float) -> Scale:
        """The scale that shows all `values`."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite, default=0.0), max(finite, default=1.0)
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


LEARNER_COLOURS: Final = 8
SHARE_LEVELS: Final = 5
"""None, fewer than half of all, than three quarters of all, than all, all."""


def learner_class(slot: int) -> str:
    """The class that gives an element the colour of a learner, as `--c`; colours repeat after LEARNER_COLOURS."""
    return f"c{slot % LEARNER_COLOURS}"


def share_level(count: int, of: int) -> int:
    """The level, below SHARE_LEVELS, of `count` contributors among `of`."""
    if count <= 0:
        return 0
    if count >= of:
        return SHARE_LEVELS - 1
    return max(1, min(4 * count // of, SHARE_LEVELS - 2))
