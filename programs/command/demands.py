"""Demands on the numbers of a request: each is met or not, and those that are not are told together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from isthmus.runtime.errors import ConfigError, Fault


class Demand(NamedTuple):
    """What is expected, what was found, and what to do where it is not met."""

    is_met: bool
    expected: str
    found: str
    do: str


def within(option: str, value: float, least: float, most: float, do: str) -> Demand:
    """That the number of an option is in a range."""
    found = str(value) if isinstance(value, int) else f"{value:g}"
    return Demand(math.isfinite(value) and least <= value <= most, f"{option} from {least:g} to {most:g}", found, do)


def check(doing: str, demands: Iterable[Demand]) -> None:
    """ConfigError with all demands that are not met."""
    if faults := [Fault(doing, each.expected, each.found, each.do) for each in demands if not each.is_met]:
        raise ConfigError.of(faults)
