"""The trials of each program in the simulator: its settings, the hosts of its runs, and the faults left out.

A program that comes with the package is spared the faults that it declares it cannot survive, and nothing else. One of
the user's own is spared nothing: if a fault makes it stop for good, that is a violation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from isthmus.programs.recorder.summary import roster_counts
from isthmus.programs.request.program import Program
from isthmus.programs.simulation import toy_task
from isthmus.runtime.ids import Replica

Settings: TypeAlias = dict[str, Any]
CODED: Final = ("bf16", "int8", "int4")
BRIEF_SECONDS: Final = 3.0
"""Limit of a fault where no host may be given up: a silent host is after 20 s, and faults follow one another."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The conditions of a program in the search.

    `settings(rng)` draws the program's settings; each of its `formats` is coded in one run of four. Hosts of the
    `spared` roles (or one replica of them: 'learner/0') never end; `lasts_max`: seconds that a fault may last; `joins`:
    machines may join; `crashes`: lives may end again and again.
    """

    settings: Callable[[random.Random], Settings]
    formats: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    lasts_max: float = 25.0
    joins: bool = True
    crashes: bool = True

    def formats_of(self, rng: random.Random) -> Settings:
        """The formats that are not float32."""
        drawn = {name: rng.choice(("float32",) * 9 + CODED) for name in self.formats}
        return {name: each for name, each in drawn.items() if each in CODED}

    def spares(self, host: str) -> bool:
        """Whether a host may not end."""
        return host in self.spared or host.partition("/")[0] in self.spared


def _decoupled(rng: random.Random) -> Settings:
    settings: Settings = {"fragments": rng.choice((2, 3)), "interval": rng.choice((6, 8))}
    settings["shards"], settings["quorum"] = rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 2))
    rng.choice((0.0, 0.0, 0.5))  # It was alpha, which is refused now; every seed stays the universe that it is.
    return settings


def _streaming(rng: random.Random) -> Settings:
    return {"fragments": rng.choice((2, 3)), "interval": rng.choice((6, 8)), "overlap": rng.choice((0, 2))}


TRIALS: Final[Mapping[str, Trial]] = {
    "decoupled-diloco": Trial(_decoupled, formats=("push", "update")),
    "streaming-diloco": Trial(_streaming, formats=("push", "update")),
    "diloco": Trial(lambda rng: {"interval": rng.choice((6, 8))}, formats=("push", "update")),
    # The learners have the state, but only the syncer knows their step.
    "elastic-data-parallel": Trial(lambda rng: {}, spared=("syncer", "learner/0"), lasts_max=BRIEF_SECONDS),
    # No learner can go on without the others: their number is part of the graph.
    "data-parallel": Trial(lambda rng: {}, spared=("learner",), lasts_max=BRIEF_SECONDS, joins=False),
}


def trial_of(program: str) -> Trial:
    """The trial of a program by its name."""
    return TRIALS.get(program, Trial(lambda rng: {}))


def hosts_of(program: Program, learners: int) -> list[Replica]:
    """The hosts of a run of a program: learners first, evaluator and recorder last. ConfigError if there is none."""
    graph = toy_task.graph_of(program, learners=learners, steps=1, seed=0)
    counts = roster_counts(graph, learners)
    roles = sorted(counts, key=lambda role: (role in ("evaluator", "recorder"), role))
    return [Replica(role, slot) for role in roles for slot in range(counts[role])]
