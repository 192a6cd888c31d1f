"""Searches over many seeds: what a seed has happen where everything dies, where the home moves or where islands have
several processes; in which processes seeds run; and what a search has to have covered.

Decides the faults of such seeds and the bounds of coverage: every kind of fault, in every phase in which it can happen,
and every guard. The outcome of a seed does not depend on the others.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from isthmus.programs import DEFAULT
from isthmus.programs.engine.request.followers import followed
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.invariants_model import guards_of
from isthmus.programs.wings.simulation.places import machine_of
from isthmus.programs.wings.simulation.seeds import (
    DAEMON_KINDS,
    DISK_KINDS,
    KINDS,
    OTHER_KINDS,
    STANDING_KINDS,
    STORM_KINDS,
    lie,
    moment_of,
    shape_of,
)
from isthmus.programs.wings.simulation.universe import Outcome, Shape, hosts_of, outcome_of, trial_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import LEARNER, Replica, follower
from isthmus.runtime.sim.faults import (
    Blackout,
    Cut,
    DieAll,
    Fault,
    Hang,
    Join,
    Kill,
    KillDaemon,
    Lie,
    MoveHome,
    Pause,
    PreemptionNotice,
    SlowStarts,
)
from isthmus.runtime.sim.lies import CLAIMS
from isthmus.runtime.sim.universe import HOME

MOVED_SHARE: Final = 0.25
"""Share of runs whose home moves."""
TWICE_SHARE: Final = 0.3
"""Share of runs in which everything dies twice."""


class SnapshotStep(NamedTuple):
    """The operation before which everything dies, and the names of its files; with `then`, one that follows it."""

    operation: str
    name: str
    then: str = ""


STEPS: Final[Mapping[str, SnapshotStep]] = {
    "before": SnapshotStep("create", ".fragment-*"),
    "fragment, write": SnapshotStep("write", ".fragment-*"),
    "fragment, sync": SnapshotStep("sync", ".fragment-*"),
    "fragment, rename": SnapshotStep("rename", ".fragment-*"),
    "fragment, keep": SnapshotStep("rename", ".fragment-*", "sync_folder"),
    "put aside": SnapshotStep("rename", "manifest.json"),
    "manifest, create": SnapshotStep("create", ".manifest.json.*"),
    "manifest, write": SnapshotStep("write", ".manifest.json.*"),
    "manifest, sync": SnapshotStep("sync", ".manifest.json.*"),
    "manifest, rename": SnapshotStep("rename", ".manifest.json.*"),
    "manifest, keep": SnapshotStep("rename", ".manifest.json.*", "sync_folder"),
    "retention": SnapshotStep("remove", "fragment-*"),
    "after": SnapshotStep("rename", ".manifest.json.*", "create"),
}
"""In the order in which a snapshot is taken (`programs.engine.snapshots.snapshots`)."""
DEATH_KINDS: Final = (*(f"death of all: {name}" for name in STEPS), MoveHome.kind)


DEADLY: Final = (DEFAULT, "regional-diloco")
"""The programs whose runs go on from a snapshot after everything has died."""


def deadly(seed: int, program: str = DEFAULT, learners: int | None = None) -> Shape:
    """The run of a seed, in which everything dies, too, or its home moves.

    Everything dies at once, every process of every machine, at a step of a snapshot, and continues as after a real
    power failure: daemons begin with the contents of their ledgers, and hosts with those of the disk of the home. Or
    the home is lost: another machine becomes the home, and the lost one comes back.
    """
    shape = shape_of(seed, program, learners)
    rng = random.Random(f"isthmus {seed} deaths")
    faults: list[Fault] = []
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
        faults.append(DieAll(HOME, point, step.operation, step.name, lasts, step.then, keeps_power, **when))
    return replace(shape, faults=(*shape.faults, *faults))


def run_deadly(seed: int, program: str = DEFAULT, learners: int | None = None) -> Outcome:
    """The outcome of one seed."""
    return outcome_of(deadly(seed, program, learners))


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
    kinds -= {"lie"} if trial.spares(LEARNER) else set()
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
    counts = {kind: sum(phases[kind, phase] for phase in PHASES) for kind in DEATH_KINDS}
    return [f"{kind}: {count} times, at least {least} are asked for" for kind, count in counts.items() if count < least]


def idle(guards: Counter[str], program: str) -> list[str]:
    """Guards that never fired, in words."""
    return [f"guard {guard!r} never fired" for guard in guards_of(program) if not guards[guard]]


LIES_MAX: Final = 3
"""Claims on which a party agrees: all of its machines make them together."""
ALONE_SHARE: Final = 0.3
"""Share of machines that lie once more, each for itself: in any field."""
BESIDE_SHARE: Final = 0.25
"""Share of these runs in which the faults of the seed happen, too; in the others any harm to others is the liars'."""


def lying(seed: int, program: str = DEFAULT) -> Shape:
    """The run of a seed, in which a minority of those who brought machines lie, each from all of its machines at once:
    one by an invitation for several, or two of five."""
    rng = random.Random(f"isthmus {seed} liars")
    shape, trial = shape_of(seed, program), trial_of(program)
    liars = rng.choice((1, 1, 2))
    parties = [rng.choice((1, 2, 3) if liars == 2 else (2, 3)) for _ in range(liars)]
    honest = rng.choice((2, 3)) if liars == 1 else 3
    learners = sum(parties) + honest
    slots = rng.sample(range(learners), learners)
    brought: list[tuple[str, str]] = []
    faults: list[Fault] = []
    for party, count in enumerate(parties):
        own, slots = slots[:count], slots[count:]
        moment, lasts = moment_of(rng, shape.steps, shape.step_ms), rng.choice((5.0, 25.0))
        agreed = [rng.choice(tuple(CLAIMS)) for _ in range(rng.randint(1, LIES_MAX))]
        for slot in own:
            machine = machine_of(Replica(LEARNER, slot))
            brought.append((machine, f"invitation {party}"))
            faults += [Lie(machine, claim, 0, lasts, **moment) for claim in agreed]
            alone = lie(rng, [Replica(LEARNER, slot)], moment_of(rng, shape.steps, shape.step_ms))
            faults += [alone] if rng.random() < ALONE_SHARE else []
    is_alone = rng.random() >= BESIDE_SHARE
    beside = [each for each in shape.faults if not isinstance(each, Join)]  # Their slots are taken.
    return replace(
        shape,
        learners=learners,
        speeds=tuple(rng.choice((1.0, 1.0, 0.8, 0.5)) for _ in range(learners)),
        task=shape.task if shape.task == toy_task.UNEVEN else trial.task(learners),
        faults=(*(() if is_alone else beside), *faults),
        storms=() if is_alone else shape.storms,
        parties=tuple(brought),
    )


def run_lying(seed: int, program: str = DEFAULT) -> Outcome:
    """The outcome of one seed."""
    return outcome_of(lying(seed, program))


PROCESSES_MAX: Final = 4
HOME_SHARE: Final = 0.3
"""Of notices, beside its turn among all machines."""
ELASTIC_SHARE: Final = 0.5
"""Share of elastic islands among those of several processes."""
FAULTS_MAX: Final = 5
WORDS: Final = ("gang-member-lost", "process-lost", "process-back", "process-missing", "reformed", "too-few-processes")
"""Tags of incidents and verdicts about islands; a search that is long enough sees all of them."""


def check(program: str) -> None:
    """ConfigError for a program whose learners always have one process."""
    plans = lower(toy_task.graph_of(Program(program), learners=2, steps=1, seed=0, task=trial_of(program).task(2)))
    if followed(plans.get(LEARNER)) is None:
        do = "Leave out --gangs, or choose a program that exchanges fragments."
        doing = "Reading the options of `isthmus simulate world`"
        raise ConfigError(doing, "--gangs of a program whose learners may be of several processes", program, do)


def ganged(seed: int, program: str = DEFAULT, learners: int | None = None) -> Shape:
    """The run of a seed, with islands of several processes and their faults."""
    shape, rng = shape_of(seed, program, learners), random.Random(f"isthmus {seed} gangs")
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
    faults: Sequence[Fault] = (
        Kill(host, **moment),
        Kill(host, **moment),
        Pause(host, lasts, **moment),
        Hang(host, lasts, **moment),
        KillDaemon(machine, lasts, rng.choice((0, 1, 3, 10)), **moment),
        Blackout(machine, lasts, **moment),
        Cut(machine, None, lasts, **moment),
        SlowStarts(machine, 3.0, **moment),
    )
    return rng.choice(faults)


def run_ganged(seed: int, program: str = DEFAULT, learners: int | None = None) -> Outcome:
    """The outcome of one seed."""
    return outcome_of(ganged(seed, program, learners))


NOTICES_MAX: Final = 4


def noticed(seed: int, program: str = DEFAULT, learners: int | None = None) -> Shape:
    """The run of a seed, in which machines are told to leave, too, the home among them, and are started again."""
    shape, rng = shape_of(seed, program, learners), random.Random(f"isthmus {seed} notices")
    machines = sorted({HOME, *map(machine_of, hosts_of(shape.program, shape.learners))})
    notices = [
        PreemptionNotice(
            HOME if rng.random() < HOME_SHARE else rng.choice(machines),
            rng.choice((1.0, 5.0, 14.0)),
            rng.choice((0.5, 3.0, 10.0, 25.0)),
            **moment_of(rng, shape.steps, shape.step_ms),
        )
        for _ in range(rng.randint(1, NOTICES_MAX))
    ]
    return replace(shape, faults=(*shape.faults, *notices))


def run_noticed(seed: int, program: str = DEFAULT, learners: int | None = None) -> Outcome:
    """The outcome of one seed."""
    return outcome_of(noticed(seed, program, learners))


def unseen(guards: Counter[str]) -> list[str]:
    """The tags of islands that never occurred, in words."""
    return [f"of islands {word!r} never happened" for word in WORDS if not guards[f"island: {word}"]]


APART_MIN: Final = 40
"""Fewer seeds are over before other processes have started."""

Run: TypeAlias = Callable[[int], Outcome]


def outcomes(run: Run, seeds: range, *, apart_min: int = APART_MIN) -> Generator[Outcome]:
    """The outcomes of `run` for each seed: few seeds in this process, in order; more in a process per core, unordered.

    `run` must be importable, or a partial of an importable function.

    A process that dies takes one seed with it, which is reported. Outcomes come as they are ready. To close the
    iterator before its end kills the processes, with the seeds that they run.
    """
    if len(seeds) < apart_min:
        yield from map(run, seeds)
    else:
        yield from _apart(run, seeds, len(os.sched_getaffinity(0)))


def _apart(run: Run, seeds: range, workers: int) -> Generator[Outcome]:
    waiting = iter(seeds)
    busy: dict[Future[Outcome], tuple[int, ProcessPoolExecutor]] = {}
    pools = {_pool() for _ in range(workers)}

    def give(pool: ProcessPoolExecutor) -> None:
        seed = next(waiting, None)
        if seed is not None:
            busy[pool.submit(run, seed)] = seed, pool

    try:
        for pool in list(pools):
            give(pool)
        while busy:
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                seed, pool = busy.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = Outcome(seed, f"the process that ran seed {seed} died, without a word")
                    pools.remove(pool)
                    pool = _pool()
                    pools.add(pool)
                yield outcome
                give(pool)
    finally:
        for pool in pools:
            if busy:  # It was ended: nobody waits for what is under way.
                _kill(pool)
            pool.shutdown(cancel_futures=True)


def _pool() -> ProcessPoolExecutor:
    """A process of its own. It ignores Ctrl-C, which a terminal sends to all processes: its parent ends it."""
    ignoring = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=ignoring)


def _kill(pool: ProcessPoolExecutor) -> None:
    """End the process of a pool: `kill_workers` of Python 3.14."""
    for process in list((pool._processes or {}).values()):
        process.kill()
