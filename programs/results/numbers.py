"""Numbers in readable form, the same on terminals, in files and on pages: few digits, a unit, ASCII only.

The fonts and encodings of terminals and logs are unknown. An unknown number (None, NaN, infinite) is a dash.
"""

from __future__ import annotations

import math
from typing import Final

UNKNOWN: Final = "-"
_SCALES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def is_known(value: float | None) -> bool:
    """Whether `value` is a finite number."""
    return value is not None and math.isfinite(value)


def whole(value: float | None) -> str:
    """1,234,567."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}"


def scaled(value: float | None, unit: str = "") -> str:
    """1.23 M, 45.6 k, 789: three digits and a decimal prefix."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for scale, prefix in _SCALES:
        if abs(value) >= scale * 0.9995:
            return f"{_digits(value / scale)} {prefix}{unit}"
    text = f"{value:.0f}" if float(value).is_integer() else _digits(value)
    return f"{text} {unit}" if unit else text


def size(value_bytes: float | None) -> str:
    """Bytes: 1.23 GB."""
    return scaled(value_bytes, "B")


def seconds(value: float | None) -> str:
    """850 ms, 12.3 s, 2 min 14 s, 1 h 02 min."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return "-" + seconds(-value)
    if value == 0:
        return "0 s"
    if value < 0.9995:
        return f"{_digits(value * 1e3)} ms" if value >= 9.995e-4 else f"{_digits(value * 1e6)} us"
    if value < 119.5:
        return f"{_digits(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None) -> str:
    """0.9912 as 99.1 %; a share below 1 never shows as 100 %, one above 0 never as 0 %."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        # Rounding up to 100 would hide that something is missing.
        return f"{math.floor(value * 100) / 100:.2f} %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def progress(share: float) -> str:
    """0.499 as 49 %: progress, rounded down, so that 100 % means the end."""
    return f"{math.floor(100 * min(max(share, 0.0), 1.0) + 1e-9)} %"


def decimal(value: float | None, digits: int = 3) -> str:
    """A loss or another plain number, with `digits` decimals; 3.23e-9 if it is very small or large."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        factor, _, exponent = f"{value:.2e}".partition("e")
        return f"{factor}e{int(exponent)}"
    return f"{value:.{digits}f}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
