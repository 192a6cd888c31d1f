"""A compiler's message about a program that does not fit the memory of a device, as numbers.

A TPU's compiler refuses such a program, and reports how much it would need, and how much there is: that gives its own
limit, which is a little above or below the published figure of the device.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = r"(?P<{name}>[\d.]+)(?P<{name}_unit>[KMGT]?)"
_FORMS: Final = (
    re.compile(
        rf"HLO temporaries \({_SIZE.format(name='used')}\) exceeds available HBM \({_SIZE.format(name='limit')}\)"
    ),
    re.compile(rf"Used {_SIZE.format(name='used')} of {_SIZE.format(name='limit')} hbm"),
)


class Overflow(NamedTuple):
    """Bytes on each device: those that a program needs, arguments included, and the limit."""

    used_bytes: int
    limit_bytes: int


def read_overflow(message: str) -> Overflow | None:
    """The overflow in a compiler's message; None for a message about something else."""
    for form in _FORMS:
        if found := form.search(message):
            used, limit = (round(float(found[name]) * _UNITS[found[f"{name}_unit"]]) for name in ("used", "limit"))
            return Overflow(used, limit)
    return None
