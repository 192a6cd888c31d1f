"""The points at which utilisation is measured: models, links and programs, written down before any was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

REPEATS: Final = 3
REACHED: Final = 0.9
"""Of a rate, that our channel has to carry."""
FRAGMENTS: Final = 8
PARALLEL, DILOCO, STREAMING, DECOUPLED = "data-parallel", "diloco", "streaming-diloco", "decoupled-diloco"
OVERLAP: Final = 2


class Model(NamedTuple):
    """A task of `links/paced.py`, and its parameters."""

    task: str
    parameters: int


MODELS: Final = {"1M": Model("million", 16 * 256**2), "50M": Model("fifty_million", 48 * 1024**2)}


class Point(NamedTuple):
    """A model, the milliseconds of a step, the rate of each island's link in Mbit/s in each direction, its delay in ms
    one way, the islands, the program, the format (of answers and of versions), and the interval H."""

    model: str
    step_ms: int
    mbit: int
    delay_ms: int
    islands: int
    program: str
    form: str
    interval: int

    @property
    def place(self) -> str:
        """Model, step and link."""
        delay = f" {self.delay_ms} ms" if self.delay_ms else ""
        return f"{self.model} {self.step_ms} ms, {self.mbit} Mbit/s{delay}, {self.islands} islands"

    @property
    def name(self) -> str:
        """The name in the file, without the number of the run."""
        how = "" if self.program == PARALLEL else f" {self.form} H {self.interval}"
        return f"{self.place}: {self.program}{how}"

    @property
    def settings(self) -> dict[str, Any]:
        """Of the program: data-parallel's snapshots, which cross the link, are put off."""
        if self.program == PARALLEL:
            return {"snapshot_seconds": 86400}
        version = "int4" if self.form == "int1" else self.form
        forms = {"push": self.form, "update": version, "interval": self.interval}
        if self.program == DILOCO:
            return forms
        return {**forms, "fragments": FRAGMENTS, "overlap": min(OVERLAP, self.interval)}


def _points() -> Iterator[Point]:
    """At most 60, those that decide most first."""
    small = ("1M", 50)
    for mbit in (50, 200, 25, 1000):  # At 25 data-parallel is below .05 of the bare loop by arithmetic.
        yield Point(*small, mbit, 0, 2, PARALLEL, "float32", 1)
        yield Point(*small, mbit, 0, 2, DECOUPLED, "int4", 24)
    for mbit, form in product((50, 200), ("float32", "int4")):
        yield Point(*small, mbit, 0, 2, DILOCO, form, 32)
        yield Point(*small, mbit, 0, 2, STREAMING, form, 32)
    # What a plan proposes where data-parallel waits: the most bits that half of the link carries.
    yield Point(*small, 50, 0, 2, DECOUPLED, "bf16", 24)
    yield Point(*small, 200, 0, 2, DECOUPLED, "float32", 24)
    yield Point(*small, 1000, 0, 2, DECOUPLED, "float32", 24)
    yield Point(*small, 50, 0, 2, DECOUPLED, "float32", 32)
    yield Point(*small, 50, 0, 2, DECOUPLED, "int1", 32)
    yield Point(*small, 50, 0, 2, DECOUPLED, "int4", 8)
    yield Point(*small, 50, 0, 2, DECOUPLED, "int4", 128)
    yield from (Point(*small, 50, 0, 2, program, "int4", 8) for program in (DILOCO, STREAMING))
    yield from (Point(*small, 50, 0, 2, program, "int4", 128) for program in (DILOCO, STREAMING))
    yield Point(*small, 50, 0, 2, DILOCO, "int4", 1)
    yield Point(*small, 50, 0, 2, DECOUPLED, "int4", 1)
    yield Point(*small, 200, 50, 2, DECOUPLED, "float32", 24)
    yield Point(*small, 200, 0, 4, DECOUPLED, "float32", 24)
    for program, interval in ((PARALLEL, 1), (DECOUPLED, 24), (STREAMING, 32), (DILOCO, 32)):
        yield Point(*small, 200, 50, 2, program, "float32" if program == PARALLEL else "int4", interval)
    for program, interval in ((PARALLEL, 1), (DECOUPLED, 24), (STREAMING, 32), (DILOCO, 32)):
        yield Point(*small, 200, 0, 4, program, "float32" if program == PARALLEL else "int4", interval)
    for mbit in (50, 1000):
        yield Point("50M", 1000, mbit, 0, 2, PARALLEL, "float32", 1)
        yield Point("50M", 1000, mbit, 0, 2, DECOUPLED, "int4", 24)
    yield from (Point("50M", 1000, 200, 0, 2, program, "int4", 8) for program in (DILOCO, STREAMING, DECOUPLED))
    yield Point("50M", 1000, 200, 0, 2, DECOUPLED, "float32", 24)
    yield Point("1M", 1000, 50, 0, 2, PARALLEL, "float32", 1)
    yield Point("1M", 1000, 50, 0, 2, DECOUPLED, "int4", 24)
    yield Point(*small, 5000, 0, 2, PARALLEL, "float32", 1)
    yield Point(*small, 5000, 0, 2, DECOUPLED, "int4", 24)


POINTS: Final = tuple(_points())


def link_name(point: Point) -> str:
    """The cell of a transfer at a rate."""
    return f"link {point.mbit} Mbit/s"


def is_reached(cells: Mapping[str, Mapping[str, Any]], point: Point) -> bool:
    """Whether our channel carries the rate of a point, in both directions."""
    return all(share >= REACHED for share in cells[link_name(point)]["shares"])
