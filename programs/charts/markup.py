"""Elements of SVG as markup, with every foreign string escaped exactly once.

Any string that is no `Markup` is content, and is escaped when an element takes it, so any string from a run (a
program's name, a reason) can be passed to `element` as it is. Attribute names are keywords: `class_` is class,
`stroke_width` is stroke-width, numbers are written with two decimals at most, and None leaves the attribute out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from markupsafe import Markup, escape

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
