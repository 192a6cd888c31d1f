"""Amounts as people write them, "2 Gbit/s" and "80 GB": converted to the unit that the program counts in.

k, M, G, T and P are powers of 1000; Ki, Mi, Gi and Ti, before bytes only, of 1024. A number without a unit is refused:
nothing else distinguishes bits and bytes.
"""

from __future__ import annotations

import re
from typing import Final

from isthmus.runtime.errors import ConfigError

_FORM: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[kKMGTP]?i?)(?P<unit>bit|B)(?P<rate>/s)?\s*")
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def size_bytes(text: str, doing: str) -> int:
    """Bytes; ConfigError if `text` is no size."""
    return _read(text, doing, "B", "", "a size, such as 80 GB or 24 GiB")


def rate_bytes(text: str, doing: str) -> int:
    """Bytes a second; ConfigError if `text` is no rate of them. Bits are turned into bytes."""
    return _read(text, doing, "B", "/s", "bytes a second, such as 3.35 TB/s")


def rate_bits(text: str, doing: str) -> int:
    """Bits a second; ConfigError if `text` is no rate of them. Bytes are turned into bits."""
    return _read(text, doing, "bit", "/s", "bits a second, such as 2 Gbit/s")


def _read(text: str, doing: str, unit: str, rate: str, expected: str) -> int:
    form = _FORM.fullmatch(text)
    if (
        form is None
        or (form["rate"] or "") != rate
        or form["prefix"] == "i"
        or (form["prefix"][1:] and form["unit"] != "B")
    ):
        raise ConfigError(doing, expected, repr(text), "Write a number and a unit.")
    base = 1024.0 if form["prefix"].endswith("i") else 1000.0
    amount = float(form["number"]) * base ** _POWERS[form["prefix"][:1]]
    factor = {("bit", "B"): 8.0, ("B", "bit"): 1 / 8}.get((unit, form["unit"]), 1.0)
    if round(amount * factor) < 1:
        raise ConfigError(doing, f"{expected}, and above 0", repr(text), "Write a larger number, or leave it out.")
    return round(amount * factor)
