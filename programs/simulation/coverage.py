"""Whether a search has covered enough: every kind of fault, in every phase in which it can happen, and every guard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from isthmus.programs.invariants.guards import guards_of
from isthmus.programs.simulation.deaths import KINDS as KINDS_OF_DEATHS
from isthmus.programs.simulation.seeds import DAEMON_KINDS, DISK_KINDS, KINDS, OTHER_KINDS, STANDING_KINDS, STORM_KINDS
from isthmus.programs.simulation.trials import trial_of

PHASES: Final = ("starting", "stepping", "final")
ONLY: Final[Mapping[str, tuple[str, ...]]] = {"fork": ("stepping",)}
"""Kinds that happen in some phases only: a shard cannot lose its last versions before it has any, and the final ones go
to all."""


def kinds_of(program: str) -> list[str]:
    """The kinds of faults that runs of a program have."""
    trial = trial_of(program)
    kinds = {*KINDS, *DISK_KINDS, *DAEMON_KINDS, *STANDING_KINDS, *OTHER_KINDS, "stop", "end"}
    kinds |= {"join"} if trial.joins else set()
    kinds |= set() if trial.spared else set(STORM_KINDS)
    kinds -= set() if trial.crashes else {"crash loop"}
    return sorted(kinds)


def pairs_of(program: str) -> list[tuple[str, str]]:
    """(kind, phase of the run) of all that can happen in runs of a program."""
    return [(kind, phase) for kind in kinds_of(program) for phase in ONLY.get(kind, PHASES)]


def rare(phases: Counter[tuple[str, str]], program: str, least: int) -> list[str]:
    """The faults and phases that happened fewer than `least` times, in words."""
    return [
        f"{kind} in phase {phase}: {phases[kind, phase]} times, at least {least} are asked for"
        for kind, phase in pairs_of(program)
        if phases[kind, phase] < least
    ]


def rare_steps(phases: Counter[tuple[str, str]], least: int) -> list[str]:
    """The steps of a snapshot at which everything died fewer than `least` times, in words."""
    counts = {kind: sum(phases[kind, phase] for phase in PHASES) for kind in KINDS_OF_DEATHS}
    return [f"{kind}: {count} times, at least {least} are asked for" for kind, count in counts.items() if count < least]


def idle(guards: Counter[str], program: str) -> list[str]:
    """Guards that never fired, in words."""
    return [f"guard {guard!r} never fired" for guard in guards_of(program) if not guards[guard]]
