"""Universes by the hundred: each seed is a run of a small task on several machines, with faults of its own.

Decides what a seed means: the shape of the run, the climate, and which faults happen when. Swarm style (Groce et al.,
Swarm testing, ISSTA 2012): each seed allows a random subset of the kinds, so that some runs know nothing but one of
them, which finds what a mixture of all hides. First safety: faults, and checkers that object. Then liveness: everything
is healed, and the run has to come to its end within `LIVENESS_SECONDS` of virtual time.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from isthmus.programs import toy
from isthmus.programs.invariants import checkers
from isthmus.programs.program import Program
from isthmus.programs.recording import RUN_FOLDER
from isthmus.programs.reference import resolve
from isthmus.programs.summary import roster_counts
from isthmus.runtime.clock import Duration, milliseconds, seconds
from isthmus.runtime.errors import InvariantError, RunError
from isthmus.runtime.graph import Graph, Reference
from isthmus.runtime.ids import Replica
from isthmus.runtime.lowering import lower
from isthmus.runtime.sim import (
    BoundsChecker,
    Checker,
    Climate,
    Clog,
    Cut,
    Fault,
    Kill,
    Lose,
    Pause,
    Reset,
    RosterChecker,
    Skew,
    Slow,
    Universe,
    ViolationError,
    WaitsChecker,
    digest,
    machine_of,
)

KINDS: Final = ("kill", "pause", "slow", "skew", "cut", "one-way cut", "clog", "lose", "reset")
LIVENESS_SECONDS: Final = 60.0
"""From the healing to the end: a silent host is replaced after 20 s, back-offs take 15 s in all, and what was left of
the run is at most 40 steps of 0.4 s."""
PATIENCE_SECONDS: Final = 10.0
"""How long faults of the final phase are waited for."""
START_SECONDS: Final = 0.9
"""About when the first learner steps."""
KILLS_MAX: Final = 3
"""Of one host: in a run of a few dozen steps more would leave nothing else to see."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed means."""

    seed: int
    learners: int
    steps: int
    step_ms: float
    program: Program
    climate: Climate
    speeds: tuple[float, ...]
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class Outcome:
    """What came of a seed; `violation` is None where nothing was wrong. `phases` counts (kind, phase of the run);
    `lives` are the processes that there were ('learner/2#1')."""

    seed: int
    violation: str | None
    faults: Counter[str]
    phases: Counter[tuple[str, str]]
    story: list[str] = field(default_factory=list)
    seconds: float = 0.0
    events: int = 0
    lives: list[str] = field(default_factory=list)
    tape_digest: str = ""


def shape_of(seed: int, program: str = "decoupled-diloco") -> Shape:
    """The run of a seed."""
    rng = random.Random(f"isthmus {seed}")
    learners = rng.choice((2, 3, 3, 4))
    step_ms = rng.choice((20.0, 100.0, 400.0))
    steps = rng.choice((24, 32, 40))
    shards = rng.choice((1, 1, 2))
    settings: dict[str, float] = {"fragments": rng.choice((2, 3)), "interval": rng.choice((6, 8)), "shards": shards}
    settings["quorum"] = rng.choice((1, 1, 1, 2))
    settings["alpha"] = rng.choice((0.0, 0.0, 0.5))
    climate = Climate(
        latency=rng.choice((0.0002, 0.005, 0.04)), jitter=rng.choice((0.0, 0.002, 0.03)), gbits=rng.choice((0.001, 1.0))
    )
    speeds = tuple(rng.choice((1.0, 1.0, 0.8, 0.5)) for _ in range(learners))
    hosts = [Replica("learner", slot) for slot in range(learners)] + [Replica("syncer", slot) for slot in range(shards)]
    hosts += [Replica("evaluator", 0), Replica("recorder", 0)]
    faults = _faults(rng, hosts, steps, step_ms)
    is_shipped = program == "decoupled-diloco"
    return Shape(
        seed=seed,
        learners=learners,
        steps=steps,
        step_ms=step_ms,
        program=Program(program, **(settings if is_shipped else {})),
        climate=climate,
        speeds=speeds,
        faults=faults,
    )


def _faults(rng: random.Random, hosts: Sequence[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    """Faults of a random subset of the kinds, in a run of so many steps."""
    kinds = [kind for kind in KINDS if rng.random() < 0.4] or [rng.choice(KINDS)]
    kills: Counter[Replica] = Counter()
    made: list[Fault] = []
    comes_together = rng.choice((0.0, 0.7))
    moment = _moment(rng, steps, step_ms)
    for _ in range(rng.randint(1, 8)):
        kind, replica = rng.choice(kinds), rng.choice(hosts)
        moment = _soon(rng, moment) if rng.random() < comes_together else _moment(rng, steps, step_ms)
        kills[replica] += kind == "kill"
        if kills[replica] <= KILLS_MAX:
            made.append(_fault(rng, kind, replica, moment))
    return tuple(made)


def _soon(rng: random.Random, moment: dict[str, Any]) -> dict[str, Any]:
    """A moment at another one, or a little later: faults that come together find what no single one does."""
    name = "at" if "at" in moment else "later"
    return {**moment, name: round(moment[name] + rng.choice((0.0, 0.01, 0.1, 0.5)), 3)}


def _moment(rng: random.Random, steps: int, step_ms: float) -> dict[str, Any]:
    """When a fault is to happen: mostly while learners step, and often enough at the start and around the end."""
    match rng.choice(("start", "middle", "middle", "end")):
        case "start":
            return {"at": round(rng.uniform(0.0, START_SECONDS), 3)}
        case "middle":
            return {"at": round(START_SECONDS + rng.uniform(0.0, steps * step_ms / 1e3), 3)}
        case _:
            return {"at_phase": "final", "later": rng.choice((0.0, 0.001, 0.02, 0.1, 0.5))}


def _fault(rng: random.Random, kind: str, replica: Replica, moment: dict[str, Any]) -> Fault:
    host, machine = str(replica), machine_of(replica)
    lasts = rng.choice((0.3, 1.0, 3.0, 7.0, 25.0))
    make: dict[str, Callable[[], Fault]] = {
        "kill": lambda: Kill(host, **moment),
        "pause": lambda: Pause(host, lasts, **moment),
        "slow": lambda: Slow(host, rng.choice((2.0, 10.0)), lasts, **moment),
        "skew": lambda: Skew(host, rng.choice((0.0, 3600.0)), rng.choice((-500, 500, 20_000)), **moment),
        "cut": lambda: Cut(machine, None, lasts, **moment),
        "one-way cut": lambda: Cut(machine, None, lasts, True, **moment),
        "clog": lambda: Clog(machine, rng.choice((0.1, 1.0)), lasts, **moment),
        "lose": lambda: Lose(machine, rng.choice((0.02, 0.3)), lasts, **moment),
        "reset": lambda: Reset(machine, **moment),
    }
    return make[kind]()


def run(seed: int, program: str = "decoupled-diloco") -> Outcome:
    """The outcome of one seed. RequestError for a program that there is not."""
    return outcome_of(shape_of(seed, program))


def outcome_of(shape: Shape) -> Outcome:
    """The outcome of one universe, which may be of a shape of your own."""
    graph = toy.graph_of(shape.program, learners=shape.learners, steps=shape.steps, seed=shape.seed)
    with tempfile.TemporaryDirectory(prefix="isthmus-simulate-") as folder:
        universe = _universe(shape, graph, Path(folder))
        try:
            violation = _violation(universe, shape)
            tapes = universe.tape()
        finally:
            universe.close()
    return Outcome(
        seed=shape.seed,
        violation=violation,
        faults=universe.injector.counts,
        phases=universe.injector.phases,
        story=[f"{at / 1e9:9.3f} s  {what}" for at, what in universe.injector.story],
        seconds=universe.clock.now() / 1e9,
        events=universe.events,
        lives=sorted(tapes),
        tape_digest=digest(tapes),
    )


def _violation(universe: Universe, shape: Shape) -> str | None:
    """What was wrong, in words."""

    def is_over() -> bool:
        return ("recorder/0", "record") in universe.ended

    until = START_SECONDS + shape.steps * shape.step_ms / 1e3 + 1.0

    def is_enough() -> bool:
        """Whether all has happened that is to happen, or the faults hold up what is to come before it."""
        now = universe.clock.now()
        return now >= seconds(until) and (not universe.injector.missed or now >= seconds(until + PATIENCE_SECONDS))

    try:
        universe.run(lambda: is_over() or is_enough(), seconds_max=until + PATIENCE_SECONDS + 1.0)
        universe.heal()
        universe.run(is_over, seconds_max=universe.clock.now() / 1e9 + LIVENESS_SECONDS)
        universe.finish()
    except (ViolationError, InvariantError, RunError, TimeoutError) as error:
        return str(error)
    return None


def _universe(shape: Shape, graph: Graph, folder: Path) -> Universe:
    def duration(replica: Replica, node: str) -> Duration:
        if node != "inner-step":
            return milliseconds(shape.step_ms / 50)
        return milliseconds(shape.step_ms / shape.speeds[replica.slot])

    def found(reference: Reference) -> Any:
        return folder if reference == RUN_FOLDER else resolve(reference)

    free = {
        role.name: frozenset(node.name for node in graph.nodes if node.role == role.name and node.free_running)
        for role in graph.roles
    }
    objecting: list[Checker] = [BoundsChecker(), RosterChecker(), WaitsChecker(free), *checkers()]
    return Universe(
        lower(graph),
        roster_counts(graph, shape.learners),
        seed=shape.seed,
        resolve=found,
        duration=duration,
        jitter=0.1,
        climate=shape.climate,
        faults=shape.faults,
        checkers=objecting,
    )
