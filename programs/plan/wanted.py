"""The request for a plan, and its faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from isthmus.ops.exchange.schemas import BITS
from isthmus.programs.ahead.targets import Target, target
from isthmus.runtime.errors import ConfigError, Fault, nearest

LEARNERS_MAX: Final = 1024
PARAMETERS_MAX: Final = 1e14
CHIPS_MAX: Final = 10_000_000
_DOING: Final = "Reading the options of `isthmus plan`"


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """A run: its size, its learners, and how they exchange.

    `push`, `update` and `gradients` are wire formats (the last of data-parallel training); `gradient_share` is the
    share of a step in which those gradients may cross; `link_bits` the capacity of each learner's link, bits a second
    in each direction, None if not given; `islands` are one for each learner, or none.
    """

    parameters: float
    learners: int
    step_seconds: float
    islands: tuple[Target, ...] = ()
    interval: int = 24
    fragments: int = 24
    overlap: int = 2
    shards: int = 1
    push: str = "float32"
    update: str = "float32"
    gradients: str = "float32"
    gradient_share: float = 1.0
    link_bits: float | None = None
    chips: int | None = None
    failures_per_year: float = 1.0
    price_per_hour: float | None = None

    @property
    def fragment_values(self) -> float:
        """Values of a fragment, on average."""
        return self.parameters / self.fragments

    @property
    def chips_total(self) -> int | None:
        """Chips of all learners: by default those of the islands."""
        counted = sum(island.count // island.devices_a_chip for island in self.islands)
        return self.chips if self.chips is not None else counted or None


def islands_of(names: Sequence[str], learners: int) -> tuple[Target, ...]:
    """One island for each learner, from a single name or one name for each."""
    found = [target(name, _DOING) for name in names]
    if len(found) == 1:
        return tuple(found * max(learners, 0))
    if found and len(found) != learners:
        expected = f"one --island for all learners, or {learners}, one for each"
        raise ConfigError(_DOING, expected, f"{len(found)}", "Name one, or all; or change --learners.")
    return tuple(found)


def check(wanted: Wanted) -> None:
    """ConfigError with everything that cannot be."""
    faults = [Fault(_DOING, expected, found, do) for is_right, expected, found, do in _demands(wanted) if not is_right]
    if faults:
        raise ConfigError.of(faults)


def _demands(of: Wanted) -> list[tuple[bool, str, str, str]]:
    """Each demand as (is met, expected, found, what to do)."""
    least = f"from 1 to {of.interval}, no more than --interval"
    demands = [
        _within(of.parameters, 1, PARAMETERS_MAX, "--parameters", "Say how many, as in 12e9."),
        _within(of.learners, 1, LEARNERS_MAX, "--learners", "Say how many there are."),
        _within(of.step_seconds, 1e-6, 1e6, "--step-seconds", "Say how long an inner step takes."),
        _within(of.interval, 1, 1e6, "--interval", "Say after how many steps a fragment is merged again."),
        _within(of.fragments, 1, _fragments_max(of), "--fragments", "Say into how many to cut the model."),
        (
            1 <= of.overlap <= of.interval,
            f"--overlap {least}",
            str(of.overlap),
            "Say in how many steps it is back.",
        ),
        _within(of.shards, 1, min(max(of.fragments, 1), 1e6), "--shards", "A shard has a fragment at least."),
        _within(of.gradient_share, 1e-6, 1, "--gradient-share", "Say in which share of a step gradients may cross."),
        _within(of.failures_per_year, 0, 1e4, "--failures-per-year", "Say how often a chip fails."),
    ]
    for option, value, most in (
        ("--link-gbits", None if of.link_bits is None else of.link_bits / 1e9, 1e6),
        ("--chips", of.chips, CHIPS_MAX),
        ("--price", of.price_per_hour, 1e6),
    ):
        if value is not None:
            demands.append(_within(value, 1 if option == "--chips" else 1e-6, most, option, "Leave it out, or say it."))
    for option, form in (("--push", of.push), ("--update", of.update), ("--gradients", of.gradients)):
        demands.append((form in BITS, f"{option} one of {', '.join(BITS)}", repr(form), nearest(form, BITS)))
    if of.chips is not None and of.chips < of.learners:
        demands.append((False, "--chips at least one for each learner", str(of.chips), "Take more chips."))
    return demands


def _fragments_max(of: Wanted) -> float:
    """A fragment has a parameter at least; where there cannot be so many parameters, that says it."""
    return min(of.parameters, 1e6) if 1 <= of.parameters <= PARAMETERS_MAX else 1e6


def _within(value: float, least: float, most: float, option: str, do: str) -> tuple[bool, str, str, str]:
    is_right = math.isfinite(value) and least <= value <= most
    return is_right, f"{option} from {least:g} to {most:g}", f"{value:g}", do
