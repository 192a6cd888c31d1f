"""Learners that were slow, or kept up again, in words: told as such, and not as failures, for nothing came of it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from isthmus.programs.command.absence_words import named
from isthmus.programs.command.absences import Fact
from isthmus.programs.command.report_numbers import seconds
from isthmus.programs.command.waiting import Waiting

_PACE: Final = re.compile(
    r"(?P<how>slow|keeps up again): (?P<own>[\d.]+) ms a step, (?P<whose>.+) (?P<usual>[\d.]+) ms"
)


class Pace(NamedTuple):
    """What became of the pace of a host, at a time in the seconds of the fact that told it."""

    at: float
    is_slow: bool
    text: str


def pace(fact: Fact, waiting: Waiting | None = None) -> Pace | None:
    """What a fact tells of the pace of a host; None if it tells of something else."""
    found = _PACE.fullmatch(fact.what)
    if found is None:
        return None
    own, usual = (seconds(float(found[name]) / 1e3) for name in ("own", "usual"))
    figures = f"{own} a step, {found['whose']} {usual}"
    if found["how"] != "slow":
        return Pace(fact.at, False, f"{named(fact.host)} keeps up again: {figures}")
    told = (
        "" if waiting is None else "; nobody waits for it" if waiting.others == "go on" else "; the others wait for it"
    )
    return Pace(fact.at, True, f"{named(fact.host)} is slow: {figures}{told}")
