"""Elements of HTML and SVG as text, with every foreign string escaped exactly once.

A `Markup` is text that is markup already; any other string is content, and is escaped when an element takes it. So
whatever comes out of a run (a program's name, a device, a reason) can be handed to `element` as it is. Attribute
names are keywords: `class_` is class, `stroke_width` is stroke-width, numbers are written with two decimals at most,
and None leaves the attribute out. Where a number is a figure of the run's own, `figure` keeps the exact value in the
page beside the rounded one, in a `data` element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape
from typing import Final, TypeAlias

from isthmus.programs.numbers import UNKNOWN, is_known

Attribute: TypeAlias = str | float | None

_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters and halves of surrogate pairs: no document may hold them, but a JSON file may name them."""

_VOID: Final = frozenset({"meta", "input", "br", "hr", "col"})


class Markup(str):
    """Text that is markup, and is not escaped again."""

    __slots__ = ()


Content: TypeAlias = str | Markup


def element(tag: str, /, *children: Content, **attributes: Attribute) -> Markup:
    """The element `tag` with its children and attributes; void elements of HTML have no end tag."""
    written = "".join(
        f' {_attribute_name(name)}="{_escaped(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    inside = joined(children)
    return Markup(f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}></{tag}>")


def joined(parts: Iterable[Content]) -> Markup:
    """The parts one after another; strings that are no Markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts))


def titled(text: str) -> Markup:
    """The title of an SVG element: what a pointer that rests on it is told."""
    return element("title", text)


def figure(name: str, value: float | None, write: Callable[[float | None], str]) -> Markup:
    """A figure of the run: what `write` makes of it, with the name and the exact value for machines."""
    if not is_known(value):
        return element("span", UNKNOWN, class_="unknown", title=f"{name} is not known")
    return element("data", write(value), value=repr(value), data_figure=name)


def path(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a line through `points`, with one decimal: a tenth of a pixel is less than anybody sees."""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _escaped(content: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", content), quote=True)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attribute_name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
