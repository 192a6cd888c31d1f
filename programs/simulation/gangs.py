"""Runs in which islands have several processes, some of them elastic, and whatever befalls hosts befalls these, too.

Decides which islands a seed has, what happens to the processes that follow, and what a search has to see of it: islands
that end as one, and elastic ones that lose a process, take it back, and have too few left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from isthmus.programs.checks.processes import followed
from isthmus.programs.request.program import DEFAULT, Program
from isthmus.programs.simulation import toy_task
from isthmus.programs.simulation.seeds import moment_of, shape_of
from isthmus.programs.simulation.trials import trial_of
from isthmus.programs.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import LEARNER, Replica, follower
from isthmus.runtime.sim import Blackout, Cut, Fault, Hang, Kill, KillDaemon, Pause, SlowStarts, machine_of

PROCESSES_MAX: Final = 4
ELASTIC_SHARE: Final = 0.5
"""Share of elastic islands among those of several processes."""
FAULTS_MAX: Final = 5
WORDS: Final = ("bereft", "process-lost", "process-back", "process-missing", "reformed", "undermanned")
"""Tags of incidents and verdicts about islands; a search that is long enough sees all of them."""


def check(program: str) -> None:
    """ConfigError for a program whose learners always have one process."""
    plans = lower(toy_task.graph_of(Program(program), learners=2, steps=1, seed=0))
    if followed(plans.get(LEARNER)) is None:
        do = "Leave out --gangs, or choose a program that exchanges fragments."
        doing = "Reading the options of `isthmus simulate world`"
        raise ConfigError(doing, "--gangs of a program whose learners may be of several processes", program, do)


def ganged(seed: int, program: str = DEFAULT) -> Shape:
    """The run of a seed, with islands of several processes and their faults."""
    shape, rng = shape_of(seed, program), random.Random(f"isthmus {seed} gangs")
    processes = [rng.choice((1, 2, 2, 3, PROCESSES_MAX)) for _ in range(shape.learners)]
    if max(processes) == 1:
        processes[0] = 2
    elastic = tuple(_sizes(rng, count) for count in processes)
    pairs = [(slot, number) for slot, count in enumerate(processes) for number in range(1, count)]
    hosts = [follower(Replica(LEARNER, slot), number) for slot, number in pairs]
    lasts_max = trial_of(program).lasts_max
    faults = [
        _fault(rng, rng.choice(hosts), moment_of(rng, shape.steps, shape.step_ms), lasts_max)
        for _ in range(rng.randint(1, FAULTS_MAX))
    ]
    return replace(shape, processes=tuple(processes), elastic=elastic, faults=(*shape.faults, *faults))


def _sizes(rng: random.Random, count: int) -> tuple[int, ...]:
    """The numbers of processes with which an island may train; empty if it is not elastic."""
    if count == 1 or rng.random() > ELASTIC_SHARE:
        return ()
    return tuple(each for each in range(rng.randint(1, count), count + 1) if each == count or rng.random() < 0.8)


def _fault(rng: random.Random, replica: Replica, moment: dict[str, Any], lasts_max: float) -> Fault:
    host, machine = str(replica), machine_of(replica)
    lasts = min(rng.choice((0.3, 1.0, 4.0, 25.0)), lasts_max)
    made: Sequence[Fault] = (
        Kill(host, **moment),
        Kill(host, **moment),
        Pause(host, lasts, **moment),
        Hang(host, lasts, **moment),
        KillDaemon(machine, lasts, rng.choice((0, 1, 3, 10)), **moment),
        Blackout(machine, lasts, **moment),
        Cut(machine, None, lasts, **moment),
        SlowStarts(machine, 3.0, **moment),
    )
    return rng.choice(made)


def run(seed: int, program: str = DEFAULT) -> Outcome:
    """The outcome of one seed."""
    return outcome_of(ganged(seed, program))


def unseen(guards: Counter[str]) -> list[str]:
    """The tags of islands that never occurred, in words."""
    return [f"of islands {word!r} never happened" for word in WORDS if not guards[f"island: {word}"]]
