"""The settings that follow the links, and the values that all of them have where links carry everything.

Decides nothing but the initial values of "auto": the published interval and overlap, and formats that lose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

AUTO: Final = "auto"
FORMATS: Final = ("float32", "bf16", "int4")
"""The formats to choose from, the finest first. int8 loses more than bf16 in values that are small beside the largest
of their block, and saves half of what int4 saves."""
INTERVAL: Final = 24
OVERLAP: Final = 2

Setting: TypeAlias = Literal["push", "update", "interval", "overlap"]
Steps: TypeAlias = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Formats by name, `interval` and `overlap` in inner steps; for those in `auto`, their initial values."""

    push: str
    update: str
    interval: int
    overlap: int
    auto: frozenset[Setting]

    @classmethod
    def of(cls, *, push: str, update: str, interval: Steps, overlap: Steps) -> Wanted:
        """The settings that a program requests."""
        asked: dict[Setting, object] = {"push": push, "update": update, "interval": interval, "overlap": overlap}
        steps = first_interval(interval)
        return cls(
            push=FORMATS[0] if push == AUTO else push,
            update=FORMATS[0] if update == AUTO else update,
            interval=steps,
            overlap=min(OVERLAP, steps) if overlap == "auto" else overlap,
            auto=frozenset(name for name, value in asked.items() if value == AUTO),
        )


def coarser(push: str) -> tuple[str, ...]:
    """The formats, but for float32, in which an outer gradient may leave, where `push` was asked for."""
    return FORMATS[1:] if push == AUTO else tuple({push} - {FORMATS[0]})


def first_interval(interval: Steps) -> int:
    """The initial interval of a run, in inner steps."""
    return INTERVAL if interval == "auto" else interval
