"""Settings of a shard that follow its links, as they are requested: formats, interval and overlap.

What follows from the links is `adaptive`, of syncers: a learner knows in which formats its answers may leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from isthmus.ops.exchange.requested import Format

AUTO: Final = "auto"
LADDER: Final[tuple[Format, ...]] = ("float32", "bf16", "int4", "int2", "int1")
"""The formats to choose from, the finest first. int8 loses more than bf16 in values that are small beside the largest
of their block, and saves half of what int4 saves. By `formats.MEASURED` bits cost less loss than steps: a finer format
at an interval that is longer by as much as bits would save is never better."""
INTERVAL: Final = 24
OVERLAP: Final = 2

Setting: TypeAlias = Literal["push", "update", "interval", "overlap"]
Steps: TypeAlias = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class WantedSettings:
    """Formats by name, `interval` and `overlap` in inner steps; for those in `auto`, their initial values."""

    push: str
    update: str
    interval: int
    overlap: int
    auto: frozenset[Setting]

    @classmethod
    def of(cls, *, push: str, update: str, interval: Steps, overlap: Steps) -> WantedSettings:
        """The settings that a program requests."""
        values: dict[Setting, object] = {"push": push, "update": update, "interval": interval, "overlap": overlap}
        steps = first_interval(interval)
        return cls(
            push=LADDER[0] if push == AUTO else push,
            update=LADDER[0] if update == AUTO else update,
            interval=steps,
            overlap=min(OVERLAP, steps) if overlap == "auto" else overlap,
            auto=frozenset(name for name, value in values.items() if value == AUTO),
        )


def coarser(push: str) -> tuple[str, ...]:
    """The formats, but for float32, in which an outer gradient may leave, where `push` was asked for."""
    return LADDER[1:] if push == AUTO else tuple({push} - {LADDER[0]})


def first_interval(interval: Steps) -> int:
    """The initial interval of a run, in inner steps."""
    return INTERVAL if interval == "auto" else interval
