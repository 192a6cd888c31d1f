"""Runs in which everything dies at once, every process of every machine, at each step of a snapshot; and goes on.

Or whose home is lost: another machine becomes the home, and the lost one comes back. Decides the steps, and at which of
them a seed has everything die. The rest is as after a real power failure: daemons begin with the contents of their
ledgers, and hosts with those of the disk of the home.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from isthmus.programs.request.program import DEFAULT
from isthmus.programs.simulation.seeds import moment_of, shape_of
from isthmus.programs.simulation.trials import hosts_of
from isthmus.programs.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.sim import DieAll, Fault, MoveHome, machine_of
from isthmus.runtime.sim.universe import HOME

MOVED_SHARE: Final = 0.25
"""Share of runs whose home moves."""
TWICE_SHARE: Final = 0.3
"""Share of runs in which everything dies twice."""


class Step(NamedTuple):
    """The operation before which everything dies, and the names of its files; with `then`, one that follows it."""

    operation: str
    name: str
    then: str = ""


STEPS: Final[Mapping[str, Step]] = {
    "before": Step("create", ".fragment-*"),
    "fragment, write": Step("write", ".fragment-*"),
    "fragment, sync": Step("sync", ".fragment-*"),
    "fragment, rename": Step("rename", ".fragment-*"),
    "fragment, keep": Step("rename", ".fragment-*", "sync_folder"),
    "put aside": Step("rename", "manifest.json"),
    "manifest, create": Step("create", ".manifest.json.*"),
    "manifest, write": Step("write", ".manifest.json.*"),
    "manifest, sync": Step("sync", ".manifest.json.*"),
    "manifest, rename": Step("rename", ".manifest.json.*"),
    "manifest, keep": Step("rename", ".manifest.json.*", "sync_folder"),
    "retention": Step("remove", "fragment-*"),
    "after": Step("rename", ".manifest.json.*", "create"),
}
"""In the order in which a snapshot is taken (`programs.snapshots.snapshots`)."""
KINDS: Final = (*(f"death of all: {name}" for name in STEPS), MoveHome.kind)


def deadly(seed: int) -> Shape:
    """The run of a seed, in which everything dies, too, or its home moves."""
    shape = shape_of(seed)
    rng = random.Random(f"isthmus {seed} deaths")
    made: list[Fault] = []
    if rng.random() < MOVED_SHARE:
        machines = [machine_of(host) for host in hosts_of(shape.program, shape.learners)]
        machine = rng.choice([each for each in machines if each != HOME])
        when = moment_of(rng, shape.steps, shape.step_ms)
        after, lasts = rng.choice((0.5, 3.0, 8.0)), rng.choice((1.0, 5.0, 15.0, 40.0))
        return replace(shape, faults=(*shape.faults, MoveHome(machine, after, lasts, **when)))
    for _ in range(1 + (rng.random() < TWICE_SHARE)):
        point = rng.choice(list(STEPS))
        step, lasts = STEPS[point], rng.choice((0.3, 1.0, 3.0, 7.0))
        when = moment_of(rng, shape.steps, shape.step_ms)
        keeps_power = rng.random() < 0.5
        made.append(DieAll(HOME, point, step.operation, step.name, lasts, step.then, keeps_power, **when))
    return replace(shape, faults=(*shape.faults, *made))


def run(seed: int, program: str = DEFAULT) -> Outcome:
    """The outcome of one seed."""
    return outcome_of(deadly(seed))
