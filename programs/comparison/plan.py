"""The plan of a comparison: variants, each a whole configuration, with a run for every seed. Plain data, kept as JSON.

The first variant is the reference. For each number of learners (and each task) there is a control: one learner alone on
its share of the tokens, the result that each would reach without the others. It is `diloco` with one learner and an
outer step of 1 without momentum, which gives a learner its own parameters back: the inner optimizer alone, in every
task.

The `identity` tells which runs belong together: configurations, sources, pace. The number of seeds is not part of it,
so that a comparison can be given more of them later; nor is the margin, which is given before the first run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

CONTROL: Final = "alone"
CONTROL_PROGRAM: Final = "diloco"
CONTROL_SETTINGS: Final[Mapping[str, Any]] = {"outer_lr": 1.0, "outer_momentum": 0.0}
_SLUG_MAX: Final = 60
"""Letters of a folder's name; file systems take 255."""


class Variant(msgspec.Struct, frozen=True):
    """One side of a comparison: `config` has the sections run, program and task, resolved but for `run.seed`; `control`
    is the name of its control, empty for a control itself. `folder` is that of its runs."""

    name: str
    folder: str
    config: dict[str, dict[str, Any]]
    fingerprint: str
    control: str = ""

    @property
    def learners(self) -> int:
        """The number of learners."""
        return int(self.config["run"]["learners"])


class Pacing(msgspec.Struct, frozen=True):
    """Virtual time: a speed for each slot, the time of an inner step at speed 1, and of a transfer between hosts."""

    speeds: tuple[float, ...]
    step_ms: float = 10.0
    delay_ms: float = 1.0


class Plan(msgspec.Struct, frozen=True):
    """A comparison. The reference is the first of `variants`, controls are last; in real time `pacing` is None, and
    without a verdict `margin`, in units of the loss."""

    variants: tuple[Variant, ...]
    seed: int
    tokens: int
    pacing: Pacing | None = None
    margin: float | None = None

    @property
    def compared(self) -> tuple[Variant, ...]:
        """All but the controls."""
        return tuple(variant for variant in self.variants if variant.control)

    @property
    def identity(self) -> str:
        """Which comparison this is, as 32 hexadecimal digits."""
        told = msgspec.json.encode([self.variants, self.seed, self.tokens, self.pacing], order="deterministic")
        return hashlib.sha256(told).hexdigest()[:32]

    def runs(self, seeds: int) -> list[tuple[Variant, int]]:
        """All runs in the order of execution: seed by seed, so that pairs are complete early."""
        return [(variant, seed) for seed in range(self.seed, self.seed + seeds) for variant in self.variants]


def variant_name(program: str, chosen: Mapping[str, Any]) -> str:
    """A variant's name: its program, and its values of the sweeps."""
    return " ".join([program, *(f"{key.removeprefix('program.')}={value}" for key, value in chosen.items())])


def control_name(tokens: int) -> str:
    """A control's name."""
    return f"{CONTROL} on {tokens:,} tokens"


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder for each variant, numbered, so that they differ and stand in order."""
    slugs = [re.sub(r"[^A-Za-z0-9.=]+", "-", name).strip("-")[:_SLUG_MAX] for name in names]
    return [f"{number:02}-{slug}" for number, slug in enumerate(slugs)]
