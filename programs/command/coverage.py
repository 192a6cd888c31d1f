"""Whether a search has seen enough: every kind of fault, in every phase of the runs."""

from __future__ import annotations

from collections import Counter
from typing import Final

from isthmus.programs.simulate import DISK_KINDS, KINDS
from isthmus.programs.survival import trial_of

PHASES: Final = ("starting", "stepping", "final")


def kinds_of(program: str) -> list[str]:
    """The kinds of faults that runs of a program have."""
    joins = ("join",) if trial_of(program).joins else ()
    return sorted((*KINDS, *DISK_KINDS, *joins, "stop"))


def rare(phases: Counter[tuple[str, str]], program: str, least: int) -> list[str]:
    """What happened fewer than `least` times, in words."""
    pairs = [(kind, phase) for kind in kinds_of(program) for phase in PHASES]
    return [
        f"{kind} in phase {phase}: {phases[kind, phase]} times, at least {least} are asked for"
        for kind, phase in pairs
        if phases[kind, phase] < least
    ]
