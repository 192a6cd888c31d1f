"""The trials of each program in the simulator: its settings, the hosts of its runs, and the faults left out.

A program that comes with the package is spared the faults that it declares it cannot survive, and nothing else. One of
the user's own is spared nothing: if a fault makes it stop for good, that is a violation.

One universe: from its shape, which determines all events, to its outcome.

Decides how a run of the toy is set up and judged: first safety, while faults happen and checkers look on; then
liveness: everything is healed, and the run has to end within `LIVENESS_SECONDS` of virtual time. Does not decide the
shapes; `seeds` does. Every exception, by a checker itself too, is a violation of this universe, with the last lines of
its traceback: it never ends the search.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from isthmus.ops.exchange.formats import CODED
from isthmus.programs.engine.cluster.handover import MOVABLE
from isthmus.programs.engine.recorder.graph_parts import paths_in, roster_counts
from isthmus.programs.engine.recorder.roles import least_replicas
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.request.followers import follower_plan
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.run.merge_shares import MergeShares
from isthmus.programs.engine.snapshots.stored import StorePlace
from isthmus.programs.program_graph import REGION, regions_in
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.invariants import LiesChecker, checkers
from isthmus.programs.wings.simulation.invariants_books_checker import BooksChecker, TapesChecker
from isthmus.programs.wings.simulation.invariants_model import (
    FilesChecker,
    GuardsWitness,
    HonestChecker,
    SnapshotsChecker,
)
from isthmus.programs.wings.simulation.invariants_recoveries import recovery_checkers
from isthmus.programs.wings.simulation.invariants_regions import regions_checkers
from isthmus.programs.wings.simulation.places import machine_of
from isthmus.programs.wings.simulation.taped_tokens import BALLOT
from isthmus.runtime.clock import Duration, milliseconds, seconds
from isthmus.runtime.errors import InvariantError, RunError
from isthmus.runtime.graph.plans import Plan, lower
from isthmus.runtime.graph.template import Template
from isthmus.runtime.ids import LEARNER, ONE_RECORDER, MachineOwner, Party, Replica, follower
from isthmus.runtime.sim.checkers import Checker, ViolationError, left, runtime_checkers
from isthmus.runtime.sim.faults import Fault
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import MachinesOfRun, Universe, digest
from isthmus.runtime.supervision.home_events import RunRoles
from isthmus.runtime.wire.peers import Limits

Settings: TypeAlias = dict[str, Any]
OPTION_SHARE: Final = 0.25
"""Share of runs in which an option has its first value, and of those in which it has its second."""
BRIEF_SECONDS: Final = 3.0
"""Limit of a fault where no host may be given up: a silent host is after 20 s, and faults follow one another."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The conditions of a program in the search."""

    settings: Callable[[random.Random], Settings]
    """Draws the program's settings."""
    formats: tuple[str, ...] = ()
    """In one run of four each of these settings is coded."""
    options: tuple[tuple[str, tuple[Any, Any, Any]], ...] = ()
    """In one run of four each of these settings has its first value, in one of four its second, else its last."""
    spared: tuple[str, ...] = ()
    """Hosts of these roles (or one replica of them: 'learner/0') never end."""
    lasts_max: float = 25.0
    """Seconds that a fault may last."""
    joins: bool = True
    """Machines may join."""
    crashes: bool = True
    """Lives may end again and again."""
    task: Callable[[int], toy_task.Toy] = lambda learners: toy_task.TOY
    """What so many learners train."""

    def formats_of(self, rng: random.Random) -> Settings:
        """The formats that are not float32."""
        drawn = {name: rng.choice(("float32",) * 9 + CODED) for name in self.formats}
        return {name: each for name, each in drawn.items() if each in CODED}

    def options_of(self, rng: random.Random) -> Settings:
        """A value of each option."""
        return {name: values[min(int(rng.random() / OPTION_SHARE), 2)] for name, values in self.options}

    def spares(self, host: str) -> bool:
        """Whether a host may not end."""
        return host in self.spared or host.partition("/")[0] in self.spared


ONE_OWNER: Final = MachineOwner("ann", 0.45)


def _decoupled(rng: random.Random) -> Settings:
    settings: Settings = {"fragments": rng.choice((2, 3)), "interval": rng.choice((6, 8))}
    settings["shards"], settings["quorum"] = rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 2))
    if rng.choice((0, 0, 1)):
        settings |= {"weight_share_max": 0.6, "opposed": "refuse"}
    if settings["fragments"] == 3 and settings["interval"] == 6:  # Not drawn: the seeds are what they were.
        settings["site_weight"] = "equal"
    return settings | _kept(settings)


def _kept(settings: Settings, *kinds: str | None) -> Settings:
    """What shards keep of a round, one of these `kinds`, by the other settings: it is not drawn, so that the seeds are
    what they were."""
    return {"keeps": random.Random(repr(sorted(settings.items()))).choice(kinds or ("answers", "sums"))}


def _regional(rng: random.Random) -> Settings:
    settings: Settings = {"fragments": rng.choice((2, 3)), "interval": rng.choice((6, 8))}
    settings["exchange"] = rng.choice((1, 1, 2))
    if settings["fragments"] == 3 and settings["interval"] == 8:  # Likewise.
        settings |= {"weight_share_max": 0.6, "opposed": "refuse"}
    return settings | _kept(settings, None, "sums", "answers", "sums")


def _dipaco(rng: random.Random) -> Settings:
    settings: Settings = {"fragments": rng.choice((3, 4)), "interval": rng.choice((6, 8))}
    settings["shards"] = rng.choice((1, 1, 2))
    return settings | _kept(settings)


def _streaming(rng: random.Random) -> Settings:
    return {"fragments": rng.choice((2, 3)), "interval": rng.choice((6, 8)), "overlap": rng.choice((0, 2))}


FREE_RUNNING: Final = (("carry", (True, "auto", False)), ("steps_by_speed", (True, "auto", False)))
LEVELS: Final = (("shards", (2, 2, 1)), ("region_shards", (2, 2, 1)))
TRIALS: Final[Mapping[str, Trial]] = {
    "decoupled-diloco": Trial(_decoupled, formats=("push", "update"), options=FREE_RUNNING),
    "dipaco": Trial(_dipaco, formats=("push", "update"), options=FREE_RUNNING, task=toy_task.of_paths),
    "streaming-diloco": Trial(_streaming, formats=("push", "update")),
    "diloco": Trial(lambda rng: {"interval": rng.choice((6, 8))}, formats=("push", "update")),
    # The learners have the state, but only the syncer knows their step.
    "elastic-data-parallel": Trial(lambda rng: {}, spared=("syncer", "learner/0"), lasts_max=BRIEF_SECONDS),
    "regional-diloco": Trial(_regional, formats=("push", "regions_push", "regions_update", "update"), options=LEVELS),
    # No learner can continue without the others: their number is part of the graph.
    "data-parallel": Trial(lambda rng: {}, spared=("learner",), lasts_max=BRIEF_SECONDS, joins=False),
}


def trial_of(program: str) -> Trial:
    """The trial of a program by its name."""
    return TRIALS.get(program, Trial(lambda rng: {}))


def hosts_of(program: Program, learners: int) -> list[Replica]:
    """The hosts of a run of a program: learners first, evaluator and recorder last. ConfigError if there is none."""
    task = trial_of(program.name).task(learners)
    graph = toy_task.graph_of(program, learners=learners, steps=1, seed=0, task=task)
    counts = roster_counts(graph, learners)
    roles = sorted(counts, key=lambda role: (role in ("evaluator", "recorder"), role))
    return [Replica(role, slot) for role in roles for slot in range(counts[role])]


LIVENESS_SECONDS: Final = 120.0
"""From the healing to the end: a new daemon waits 11 s for hosts, a lost machine is given up after 20 s and a silent
host after 20 s, back-offs take 15 s in all, the rest of the run is at most 40 steps of 0.4 s, and its end takes 15
s."""
LEFT_SECONDS: Final = 15.0
"""Time after the end of the run for machines that could not be reached to learn of it."""
PATIENCE_SECONDS: Final = 10.0
"""Wait for faults of the final phase."""
STILL_SECONDS: Final = 10.0
"""Time without any event that is allowed while everything is dead."""
START_SECONDS: Final = 0.9
"""About when the first learner steps."""
SNAPSHOT_SECONDS: Final = 0.5
"""From one snapshot to the next: a run takes some seconds."""
FOLDER: Final = Path("/run")
"""The run folder, on the disk of its home."""
STORE: Final = Path("/store")
"""Folder where snapshots are also stored, in runs with a store."""
TRACEBACK_LINES: Final = 6
"""Last lines shown of an unexpected error's traceback: its place, and callers."""


@dataclass(frozen=True, slots=True)
class Storm:
    """Faults that belong together, under one name; it has happened once all of them have."""

    kind: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The plan of a universe."""

    seed: int
    learners: int
    steps: int
    step_ms: float
    program: Program
    climate: Climate
    speeds: tuple[float, ...]
    faults: tuple[Fault, ...]
    storms: tuple[Storm, ...] = ()
    """Those of the faults that belong together."""
    late: float = 1.0
    """Virtual seconds after its steps at which a run with faults is healed."""
    window_bytes: int | None = None
    """Under way to a peer at most; None: as in a real run."""
    apart: bool = False
    """The evaluator has a machine of its own."""
    task: toy_task.Toy = toy_task.TOY
    processes: tuple[int, ...] = ()
    """How many make up the island of each learner."""
    elastic: tuple[tuple[int, ...], ...] = ()
    """How many of these may train without the others."""
    stores: bool = False
    """Snapshots are also brought to another folder of the home's disk."""
    parties: tuple[tuple[str, str], ...] = ()
    """(machine, who has brought it), of those that others have."""
    leaves_files: bool = False
    """Learners leave copies of what they have for their next lives."""
    snapshot_seconds: float = SNAPSHOT_SECONDS


@dataclass(slots=True)
class Outcome:
    """The result of a universe."""

    seed: int
    violation: str | None
    """None if there was none."""
    faults: Counter[str] = field(default_factory=Counter)
    phases: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts (kind, phase of the run)."""
    missed: list[str] = field(default_factory=list)
    """The faults that did not happen."""
    story: list[str] = field(default_factory=list)
    seconds: float = 0.0
    events: int = 0
    lives: list[str] = field(default_factory=list)
    """The processes so far ('learner/2#1')."""
    tape_digest: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    """The recorder's last."""
    outcome: str | None = None
    """How the run ended."""
    guards: Counter[str] = field(default_factory=Counter)
    """How often each guard fired."""


def outcome_of(shape: Shape, *more: Checker) -> Outcome:
    """The outcome of one universe; `more` checkers may object, too."""
    try:
        graph = toy_task.graph_of(
            shape.program, learners=shape.learners, steps=shape.steps, seed=shape.seed, task=shape.task
        )
        guards, tapes = GuardsWitness(), TapesChecker()
        universe = _universe(shape, graph, (guards, tapes, *more))
        try:
            violation, taped = _violation(universe, shape), universe.tape()
            outcome = _outcome(universe, shape, violation, guards, digest(taped))
            if violation is None:
                outcome.violation = tapes.objection(_plans(graph, shape), taped, outcome.status)
            return outcome
        finally:
            universe.close()
    except Exception as error:
        return Outcome(shape.seed, words(error))


def words(error: Exception) -> str:
    """An error in words: violations as they are, others with their type and traceback."""
    if isinstance(error, (ViolationError, InvariantError, RunError, TimeoutError)):
        return str(error)
    lines = [line for each in traceback.format_tb(error.__traceback__) for line in each.splitlines()]
    return "\n".join([f"{type(error).__name__}: {error}", *lines[-TRACEBACK_LINES:]])


def _outcome(universe: Universe, shape: Shape, violation: str | None, guards: GuardsWitness, tapes: str) -> Outcome:
    injector = universe.injector
    storms = _storms(shape, injector.happened)
    recorder = universe.last(ONE_RECORDER)
    return Outcome(
        seed=shape.seed,
        violation=violation,
        faults=injector.counts + Counter(kind for kind, _ in storms),
        phases=injector.phases + Counter(storms),
        missed=injector.missed,
        story=[f"{at / 1e9:9.3f} s  {what}" for at, what in injector.story],
        seconds=universe.clock.now() / 1e9,
        events=universe.events,
        lives=[str(life.member) for life in universe.lives],
        tape_digest=tapes,
        outcome=universe.outcome,
        guards=guards.fired(universe),
        status=dict(recorder.host.published.get("record", {})) if recorder is not None else {},
    )


def _storms(shape: Shape, happened: Sequence[tuple[Fault, str]]) -> list[tuple[str, str]]:
    """(kind, phase of the run) of each storm whose faults have all happened; the phase is that of the first."""
    phases = dict(happened)
    whole = [storm for storm in shape.storms if all(fault in phases for fault in storm.faults)]
    return [(storm.kind, phases[storm.faults[0]]) for storm in whole]


def _violation(universe: Universe, shape: Shape) -> str | None:
    """The violation in words; None if there is none."""

    def is_over() -> bool:
        return universe.outcome is not None

    until = START_SECONDS + shape.steps * shape.step_ms / 1e3 + shape.late

    def is_enough() -> bool:
        """Whether all planned faults have happened, or faults hold up their own triggers."""
        now = universe.clock.now()
        return now >= seconds(until) and (not universe.injector.has_missed or now >= seconds(until + PATIENCE_SECONDS))

    try:
        universe.run(lambda: is_over() or is_enough(), seconds_max=until + PATIENCE_SECONDS + STILL_SECONDS)
        universe.heal()
        universe.run(is_over, seconds_max=universe.clock.now() / 1e9 + LIVENESS_SECONDS)
        universe.run(lambda: not left(universe), seconds_max=universe.clock.now() / 1e9 + LEFT_SECONDS)
        universe.finish()
    except Exception as error:
        return words(error)
    return None


def _universe(shape: Shape, graph: Template, more: tuple[Checker, ...]) -> Universe:
    def duration(replica: Replica, node: str) -> Duration:
        if node != "inner-step":
            return milliseconds(shape.step_ms / 50)
        return milliseconds(shape.step_ms / (shape.speeds[replica.slot] if replica.slot < len(shape.speeds) else 1.0))

    at = StorePlace(str(STORE), "run", in_background=False) if shape.stores else None
    resolver = resolving(FOLDER, resolve, shape.snapshot_seconds, at)

    def place(replica: Replica) -> str:
        is_apart = shape.apart and replica.role == "evaluator"
        return str(replica).replace("/", "-") if is_apart else machine_of(replica)

    window = shape.window_bytes
    return Universe(
        _plans(graph, shape),
        RunRoles(
            roles=roster_counts(graph, shape.learners),
            least=least_replicas(graph),
            processes=shape.processes,
            elastic=shape.elastic,
            group_role=REGION,
            groups=regions_in(graph),
        ),
        MachinesOfRun(
            place,
            MOVABLE,
            owners=_owners(shape),
            terms=lambda: MergeShares(1.0),
            parties={machine: Party(party) for machine, party in shape.parties},
        ),
        seed=shape.seed,
        resolve=resolver,
        duration=duration,
        jitter=0.1,
        climate=shape.climate,
        faults=shape.faults,
        leaves_files=shape.leaves_files,
        limits=Limits() if window is None else Limits(window_bytes=window, relay_window_bytes=window),
        checkers=[
            *runtime_checkers(graph),
            *_of_program(graph, shape),
            FilesChecker(FOLDER),
            SnapshotsChecker(),
            LiesChecker(),
            *more,
        ],
    )


def _of_program(graph: Template, shape: Shape) -> list[Checker]:
    """The checkers of versions, merges, answers and books."""
    owners, share_max = _owners(shape), shape.program.settings.get("weight_share_max", 1.0)

    def owner_of(slot: int) -> MachineOwner:
        owner = owners.get(machine := machine_of(Replica(LEARNER, slot)), MachineOwner(machine))
        return owner._replace(weight_share_max=owner.weight_share_max or share_max)

    if regions := regions_in(graph):
        return regions_checkers(regions, owner_of if "weight_share_max" in shape.program.settings else None)

    def site_of(slot: int) -> tuple[str, float]:
        site, weights = machine_of(Replica(LEARNER, slot)), shape.program.settings["site_weight"]
        return site, 1.0 if weights == "equal" else weights.get(site, 1.0)

    paths = paths_in(graph)
    sites = None if shape.program.settings.get("site_weight") is None else site_of
    sums = any(node.name == BALLOT for node in graph.nodes)
    return [*checkers(owner_of, paths, sites, sums=sums), *recovery_checkers(paths), BooksChecker(), HonestChecker()]


def _owners(shape: Shape) -> dict[str, MachineOwner]:
    """Whose the machines are: where shares are bounded, the first two (not all) are one owner's, who may have less."""
    machines = [machine_of(Replica(LEARNER, slot)) for slot in range(min(2, shape.learners - 1))]
    return {name: ONE_OWNER for name in machines if "weight_share_max" in shape.program.settings}


def _plans(graph: Template, shape: Shape) -> dict[str, Plan]:
    """The plan of each kind of host."""
    plans = lower(graph)
    for number in range(1, max(shape.processes, default=1)):
        role = follower(Replica(LEARNER, 0), number).role
        plans[role] = follower_plan(plans[LEARNER], role, shape.learners, shape.learners)
    return plans
