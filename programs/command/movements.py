"""Machines that come and go while a run goes on, in words: told as such, and not as failures."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

from isthmus.programs.command.absence_words import named
from isthmus.programs.command.absences import Fact

How: TypeAlias = Literal["joined", "left", "expelled"]

_MOVED: Final = re.compile(r"(?P<how>joined|left|expelled) with its machine (?P<machine>.+)")


class Movement(NamedTuple):
    """A host that came or went with its machine, at a time in the seconds of the fact that told it."""

    at: float
    how: How
    text: str


def movement(fact: Fact) -> Movement | None:
    """What a fact tells of a machine that came or went; None if it tells of something else."""
    found = _MOVED.fullmatch(fact.what)
    if found is None:
        return None
    machine = found["machine"]
    if found["how"] == "joined":
        return Movement(fact.at, "joined", f"{named(fact.host)} joined with its machine {machine}")
    if found["how"] == "left":
        return Movement(fact.at, "left", f"{named(fact.host)} left with its machine {machine}; the others go on")
    text = f"{named(fact.host)} was expelled with its machine {machine}; the others go on"
    return Movement(fact.at, "expelled", text)
