"""Numbers as people read them: few digits, a unit, narrow spaces between groups of thousands.

What is not known (None, NaN, infinite) is a dash, everywhere.
"""

from __future__ import annotations

import math
from typing import Final

SPACE: Final = "\u202f"
"""Narrow and never broken: between digits, and between a number and its unit."""

UNKNOWN: Final = "–"

_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SCALES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def is_known(value: float | None) -> bool:
    """Whether there is a finite number."""
    return value is not None and math.isfinite(value)


def whole(value: float | None) -> str:
    """1 234 567."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}".replace(",", SPACE)


def scaled(value: float | None, unit: str = "") -> str:
    """1.23 M, 45.6 k, 789: three digits and a decimal prefix."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for scale, prefix in _SCALES:
        if abs(value) >= scale * 0.9995:
            return f"{_digits(value / scale)}{SPACE}{prefix}{unit}"
    text = f"{value:.0f}" if float(value).is_integer() else _digits(value)
    return f"{text}{SPACE}{unit}" if unit else text


def size(value_bytes: float | None) -> str:
    """Bytes: 1.23 GB."""
    return scaled(value_bytes, "B")


def seconds(value: float | None) -> str:
    """850 ms, 12.3 s, 2 min 14 s, 1 h 02 min."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return "\u2212" + seconds(-value)
    if value == 0:
        return f"0{SPACE}s"
    if value < 0.9995:
        return f"{_digits(value * 1e3)}{SPACE}ms" if value >= 1e-5 else f"{value * 1e6:.1f}{SPACE}µs"
    if value < 119.5:
        return f"{_digits(value)}{SPACE}s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {rest:02d}{SPACE}s"
    return f"{minutes // 60}{SPACE}h {minutes % 60:02d}{SPACE}min"


def percent(share: float | None) -> str:
    """0.9912 as 99.1 %."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    if 99.95 <= value < 100:
        # Rounding up to 100 would hide that something is missing.
        return f"{math.floor(value * 100) / 100:.2f}{SPACE}%"
    return f"{value:.0f}{SPACE}%" if value in (0, 100) else f"{value:.1f}{SPACE}%"


def decimal(value: float | None, digits: int = 3) -> str:
    """A loss or another plain number, with `digits` decimals; very large and very small ones in powers of ten."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return power(value)
    return f"{value:.{digits}f}"


def power(value: float) -> str:
    """2.39·10⁻⁹; 10⁻⁵ where the factor is one."""
    factor, _, exponent = f"{value:.2e}".partition("e")
    raised = f"10{str(int(exponent)).translate(_RAISED)}"
    return raised if factor == "1.00" else f"{factor}·{raised}"


def tick(value: float) -> str:
    """A round number beside an axis, as short as it can be."""
    return f"{value:g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else power(value).replace(".00·", "·")


def ascii_only(text: str) -> str:
    """Numbers for a terminal, a log file or JSON, whose fonts and encodings are unknown: ASCII."""
    return text.replace(SPACE, " ").replace(UNKNOWN, "-").replace("\u2212", "-").replace("µ", "u")


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
