"""Universes by the hundred: each seed is a run of a small task on several machines, with faults of its own.

Decides the meaning of a seed: the shape of the run, the climate, which faults happen when, which of them belong
together, and which items a learner forges. `universe` runs and judges it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from isthmus.ops.recovery.hold import HOLDERS
from isthmus.programs import DEFAULT
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.places import machine_of
from isthmus.programs.wings.simulation.universe import (
    START_SECONDS,
    Outcome,
    Shape,
    Storm,
    Trial,
    hosts_of,
    outcome_of,
    trial_of,
)
from isthmus.runtime.ids import LEARNER, LEARNERS_MAX, Replica
from isthmus.runtime.sim.faults import (
    Away,
    Blackout,
    BreakDisk,
    Clog,
    Crash,
    Cut,
    DaemonFault,
    End,
    Fault,
    FillDisk,
    Forge,
    Hang,
    Join,
    Kill,
    KillDaemon,
    Lie,
    Lose,
    LoseReports,
    Mute,
    Pause,
    PauseDaemon,
    RefuseStarts,
    RepeatReports,
    Reset,
    Skew,
    Slow,
    SlowStarts,
    Stick,
    Stop,
    Throttle,
)
from isthmus.runtime.sim.lies import ANY, CLAIMS, FIELDS, VALUES
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import HOME

LEARNERS_MIN: Final = 3
"""With two, neither is more than half, so the wrong one cannot be told."""
TRIALS: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("progress", "epochs", None, "drop"),
    ("progress", "step_time", "soon", "set"),
    ("progress", "delay_steps", math.nan, "set"),
    ("progress", "tokens", 10**9, "set"),
    ("progress", "incarnation", 99, "set"),
    ("progress", "phase", "final", "set"),
    ("progress", "totals", ((0, 1, 10**9), (9, 1, 10**9)), "set"),
    ("report", "accounts", ((1, 2),), "set"),
    ("report", "slot", 0, "set"),
    ("answer", "norms", (1.0,), "set"),
    ("answer", "norms", math.nan, "scale"),
    ("answer", "gradient", -1.0, "scale"),
    ("answer", "base", "newest", "set"),
)


def forgery(rng: random.Random, hosts: Sequence[Replica], moment: dict[str, Any]) -> tuple[Fault, ...]:
    """One learner forges one field from a moment on; empty if there are too few learners.

    Forgeries that cannot be distinguished from an honest answer, as values that point the wrong way, are among them:
    they have their cost, and end nothing.
    """
    learners = [host for host in hosts if host.role == LEARNER]
    if len(learners) < LEARNERS_MIN:
        return ()
    port, field, value, how = rng.choice(TRIALS)
    return (Forge(str(rng.choice(learners)), port, field, value, how, **moment),)  # type: ignore[arg-type]


LAST_SECONDS: Final = (1.0, 4.5)
"""Duration of a cut: for some updates, and less than TCP needs to give up."""
RUN_SECONDS_MIN: Final = 2.0
"""A shorter run is over before the storm is."""


def fork_faults(rng: random.Random, hosts: list[Replica], run_seconds: float) -> tuple[Fault, ...]:
    """A shard loses its last versions.

    One learner alone gets them (neither other learners nor other shards, evaluator or recorder), and is away while the
    shard comes back with the versions that the others hold. Empty for a run that is too short, or has no shard or no
    second learner.
    """
    learners = [host for host in hosts if host.role == "learner"]
    shards = [host for host in hosts if host.role == "syncer"]
    if run_seconds < RUN_SECONDS_MIN or not shards or len(learners) < 2:
        return ()
    shard, ahead = rng.choice(shards), rng.choice(learners)
    lasts = min(rng.uniform(*LAST_SECONDS), run_seconds / 2)
    at = round(START_SECONDS + rng.uniform(0.1, 0.9) * (run_seconds - lasts), 3)
    behind = [learner for learner in learners if learner != ahead]
    away = [machine_of(each) for each in behind]
    away += sorted({machine_of(host) for host in hosts if host.role in HOLDERS})
    away += [machine_of(host) for host in shards if host != shard]
    cuts = [Cut(machine_of(shard), machine, lasts + 1.0, is_one_way=True, at=at) for machine in away]
    back = round(at + lasts, 3)
    return (*cuts, Kill(str(shard), at=back), Cut(machine_of(ahead), None, 3.0, at=back))


def orphan(rng: random.Random, hosts: list[Replica], moment: dict[str, Any]) -> tuple[Fault, ...]:
    """A host dies, and the daemon of its machine, at one of the steps in which the next life is begun: before it is
    noted, before its process is, or soon after."""
    host = rng.choice(hosts)
    dying = KillDaemon(machine_of(host), rng.choice((0.3, 1.0, 3.0)), rng.randint(0, 9), **moment)
    return (dying, Kill(str(host), **moment))


def wipe(rng: random.Random, hosts: list[Replica], moment: dict[str, Any]) -> tuple[Fault, ...]:
    """All learners and shards die at once, or all but one; sometimes also evaluator or recorder."""
    dying = [host for host in hosts if host.role in ("learner", "syncer")]
    if rng.random() < 0.3:
        dying.remove(rng.choice(dying))
    dying += [host for host in hosts if host.role in ("evaluator", "recorder") and rng.random() < 0.4]
    return tuple(Kill(str(host), **moment) for host in dying)


KINDS: Final = ("kill", "pause", "slow", "skew", "cut", "one-way cut", "clog", "lose", "throttle", "reset")
DAEMON_KINDS: Final = ("daemon kill", "lost ledger", "daemon pause", "lost report", "repeated report", "no room")
STANDING_KINDS: Final = ("hang", "stick", "crash loop")
DISK_KINDS: Final = ("blackout", "full disk", "broken disk")
STORM_KINDS: Final = ("fork", "orphan", "wipe")
OTHER_KINDS: Final = ("mute", "slow start", "lie", "away")
END_SHARE: Final = 0.06
"""Share of runs that a user ends at once, at any moment; and once more, while learners step or at the end, so that it
happens often enough in each phase."""
WINDOW_BYTES: Final = 64 << 10
"""Window in some runs: at most four messages under way to a peer, so that credit is short."""
STEP_MS_QUICK: Final = 100.0
"""With longer steps an answer on a lost version is still due when the shard is back."""
UNEVEN_SHARE: Final = 0.25
"""Share of runs whose learners have batches of several sizes."""
FILES_SHARE: Final = 0.5
"""Share of runs whose learners leave copies for their next lives."""
KILLS_MAX: Final = 3
"""Kills of one host: in a run of a few dozen steps more would leave nothing else to see."""


def shape_of(seed: int, program: str = DEFAULT, learners: int | None = None) -> Shape:
    """The run of a seed; with `learners` it has so many, of which some die and some join, beside all other faults.

    Swarm style (Groce et al., Swarm testing, ISSTA 2012): each seed allows a random subset of the kinds, so that some
    runs have only one of them, which finds what a mixture of all hides.
    """
    rng = random.Random(f"isthmus {seed}")
    trial = trial_of(program)
    drawn = rng.choice((2, 3, 3, 4))
    learners = drawn if learners is None else learners
    step_ms = rng.choice((20.0, 100.0, 400.0))
    steps = rng.choice((24, 32, 40))
    formats = trial.formats_of(random.Random(f"isthmus {seed} formats"))
    options = trial.options_of(random.Random(f"isthmus {seed} options"))
    chosen = Program(program, **trial.settings(rng), **formats, **options)
    climate = Climate(
        latency=rng.choice((0.0002, 0.005, 0.04)), jitter=rng.choice((0.0, 0.002, 0.03)), gbits=rng.choice((0.001, 1.0))
    )
    speeds = tuple(rng.choice((1.0, 1.0, 0.8, 0.5)) for _ in range(learners))
    hosts = hosts_of(chosen, learners)
    faults = _faults(rng, hosts, steps, step_ms)
    faults += _disk_faults(random.Random(f"isthmus {seed} disks"), hosts, steps, step_ms)
    storms, others = _storms(random.Random(f"isthmus {seed} storms"), hosts, steps, step_ms)
    faults += tuple(fault for storm in storms for fault in storm.faults) + others
    more, others = _later_faults(random.Random(f"isthmus {seed} later"), hosts, steps, step_ms)
    storms, faults = storms + more, faults + tuple(fault for storm in more for fault in storm.faults) + others
    faults += _forgeries(random.Random(f"isthmus {seed} forgeries"), hosts, steps, step_ms)
    faults += _lies(random.Random(f"isthmus {seed} lies"), hosts, steps, step_ms)
    faults += _supervision_faults(random.Random(f"isthmus {seed} supervision"), hosts, steps, step_ms)
    faults += _absences(random.Random(f"isthmus {seed} between-steps"), hosts, steps, step_ms)
    setting = random.Random(f"isthmus {seed} setting")
    if drawn != learners:
        faults += _crowd(random.Random(f"isthmus {seed} crowd"), learners, steps, step_ms)
    return Shape(
        seed=seed,
        learners=learners,
        steps=steps,
        step_ms=step_ms,
        program=chosen,
        climate=climate,
        speeds=speeds,
        faults=tuple(spared for fault in faults if (spared := _spared(fault, trial)) is not None),
        storms=tuple(storm for storm in storms if all(_spared(fault, trial) == fault for fault in storm.faults)),
        window_bytes=setting.choice((None, None, WINDOW_BYTES)),
        apart=setting.choice((False, False, True)),
        task=toy_task.UNEVEN if program == DEFAULT and setting.random() < UNEVEN_SHARE else trial.task(learners),
        leaves_files=random.Random(f"isthmus {seed} files").random() < FILES_SHARE,
    )


def _storms(
    rng: random.Random, hosts: list[Replica], steps: int, step_ms: float
) -> tuple[tuple[Storm, ...], tuple[Fault, ...]]:
    """Faults that belong together, and machines that join, each in one run of four; and now and then a stop."""
    storms, faults = list[Storm](), list[Fault]()
    if rng.random() < 0.25:
        storms.append(Storm("fork", fork_faults(rng, hosts, steps * step_ms / 1e3)))
    if rng.random() < 0.2:
        storms.append(Storm("wipe", wipe(rng, hosts, moment_of(rng, steps, step_ms))))
    if rng.random() < 0.25:
        slot = sum(host.role == "learner" for host in hosts)
        faults.append(Join(f"learner/{slot}", **moment_of(rng, steps, step_ms)))
    if rng.random() < 0.1:
        faults.append(Stop(**moment_of(rng, steps, step_ms)))
    return tuple(storm for storm in storms if storm.faults), tuple(faults)


DYING: Final = 16
"""Of so many learners in a crowd one dies, beside all other faults."""
JOINING: Final = 32
"""For so many learners in a crowd one joins."""


def _crowd(rng: random.Random, learners: int, steps: int, step_ms: float) -> tuple[Fault, ...]:
    """Deaths and joins in proportion to the learners, each at a moment of its own."""
    dying = rng.sample(range(learners), learners // DYING)
    first = learners + 1  # The first free slot is that of the usual faults.
    joining = range(first, min(first + learners // JOINING, LEARNERS_MAX))
    kills = [Kill(f"learner/{slot}", **moment_of(rng, steps, step_ms)) for slot in dying]
    return (*kills, *(Join(f"learner/{slot}", **moment_of(rng, steps, step_ms)) for slot in joining))


def _later_faults(
    rng: random.Random, hosts: list[Replica], steps: int, step_ms: float
) -> tuple[tuple[Storm, ...], tuple[Fault, ...]]:
    """Faults that were added later, from a stream of their own.

    Lives that begin while a daemon dies, starts that are reported late, machines of which only the daemon is heard.
    """
    storms, faults = list[Storm](), list[Fault]()
    if rng.random() < 0.1:
        storms.append(Storm("orphan", orphan(rng, hosts, moment_of(rng, steps, step_ms))))
    if rng.random() < 0.1:
        replica, moment = rng.choice(hosts), moment_of(rng, steps, step_ms)
        faults += [SlowStarts(machine_of(replica), rng.choice((1.0, 3.0)), **moment), Kill(str(replica), **moment)]
    if rng.random() < 0.1 and step_ms > STEP_MS_QUICK:
        storms.append(Storm("fork", fork_faults(rng, hosts, steps * step_ms / 1e3)))
    if rng.random() < 0.08:
        machine = machine_of(rng.choice(hosts))
        faults.append(Mute(machine, rng.choice((3.0, 12.0, 40.0)), **moment_of(rng, steps, step_ms)))
    if rng.random() < END_SHARE:
        faults.append(End(**rng.choice(({"at_step": rng.randint(2, steps // 2)}, {"at_phase": "final"}))))
    return tuple(storm for storm in storms if storm.faults), tuple(faults)


def _forgeries(rng: random.Random, hosts: list[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    """A learner that forges, in one run of eight."""
    return forgery(rng, hosts, moment_of(rng, steps, step_ms)) if rng.random() < 0.125 else ()


LIES_SHARE: Final = 0.125
"""Share of runs in which a machine lies, beside all other faults."""


def lie(rng: random.Random, hosts: Sequence[Replica], moment: dict[str, Any]) -> Lie:
    """The machine of a learner lies from a moment on: a claim, one field, or another one each time."""
    machine = machine_of(rng.choice([host for host in hosts if host.role == LEARNER]))
    lasts, value = rng.choice((1.0, 5.0, 25.0)), rng.randrange(len(VALUES))
    claim = rng.choice((*CLAIMS, *rng.sample(FIELDS, len(CLAIMS)), ANY, ANY))
    return Lie(machine, claim, value if claim in FIELDS else 0, lasts, **moment)


def _lies(rng: random.Random, hosts: Sequence[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    return (lie(rng, hosts, moment_of(rng, steps, step_ms)),) if rng.random() < LIES_SHARE else ()


AWAY_SHARE: Final = 0.125
"""Share of runs in which the user's code keeps a learner from its steps, beside all other faults."""


def _absences(rng: random.Random, hosts: Sequence[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    if rng.random() >= AWAY_SHARE:
        return ()
    learner = rng.choice([host for host in hosts if host.role == LEARNER])
    return (Away(str(learner), rng.choice((3.0, 12.0, 25.0)), rng.random() < 0.5, **moment_of(rng, steps, step_ms)),)


def _spared(fault: Fault, trial: Trial) -> Fault | None:
    """A fault, made so that the program can survive it; None if it cannot be."""
    if isinstance(fault, Join):
        return fault if trial.joins else None
    if isinstance(fault, Kill) and trial.spares(fault.host):
        return None
    if isinstance(fault, Blackout) and trial.spares(fault.machine.replace("-", "/")):
        return None
    if isinstance(fault, Lie):
        is_spared = trial.spares(fault.machine.replace("-", "/")) or not trial.crashes
        return None if is_spared else replace(fault, seconds=min(fault.seconds, trial.lasts_max))
    if isinstance(fault, Crash | Forge) and (trial.spares(fault.host) or not trial.crashes):
        return None
    if isinstance(fault, Kill | Crash | Forge | Reset | Skew | Stop | End | RefuseStarts | DaemonFault):
        return fault
    return replace(fault, seconds=min(fault.seconds, trial.lasts_max))


def _faults(rng: random.Random, hosts: Sequence[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    """Faults of a random subset of the kinds, in a run of `steps` steps."""
    kinds = [kind for kind in KINDS if rng.random() < 0.4] or [rng.choice(KINDS)]
    kills: Counter[Replica] = Counter()
    faults: list[Fault] = []
    comes_together = rng.choice((0.0, 0.7))
    moment = moment_of(rng, steps, step_ms)
    for _ in range(rng.randint(1, 8)):
        kind, replica = rng.choice(kinds), rng.choice(hosts)
        moment = _soon(rng, moment) if rng.random() < comes_together else moment_of(rng, steps, step_ms)
        kills[replica] += kind == "kill"
        if kills[replica] <= KILLS_MAX:
            faults.append(_fault(rng, kind, replica, moment))
    return tuple(faults)


def _disk_faults(rng: random.Random, hosts: Sequence[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    """Faults of disks, in half of the runs, beside the others: they are on the machine that has the run folder."""
    if rng.random() < 0.5:
        return ()
    kinds = [kind for kind in DISK_KINDS if rng.random() < 0.6] or [rng.choice(DISK_KINDS)]
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 3)):
        moment, lasts = moment_of(rng, steps, step_ms), rng.choice((0.3, 1.0, 3.0, 7.0))
        match rng.choice(kinds):
            case "blackout":
                faults.append(Blackout(machine_of(rng.choice(hosts)), lasts, **moment))
            case "full disk":
                faults.append(
                    FillDisk(
                        HOME,
                        0 if moment.get("at", START_SECONDS) < START_SECONDS else rng.choice((0, 50, 1000)),
                        lasts,
                        **moment,
                    )
                )
            case _:
                faults.append(BreakDisk(HOME, rng.choice((0.2, 1.0)), lasts, **moment))
    return tuple(faults)


def _supervision_faults(rng: random.Random, hosts: Sequence[Replica], steps: int, step_ms: float) -> tuple[Fault, ...]:
    """Faults of daemons, of their messages, and of hosts that only a daemon can help, in half of the runs.

    In a share END_SHARE of runs the run is ended at once.
    """
    faults: list[Fault] = [End(**moment_of(rng, steps, step_ms))] if rng.random() < END_SHARE else []
    if rng.random() < 0.5:
        return tuple(faults)
    kinds = [kind for kind in (*DAEMON_KINDS, *STANDING_KINDS) if rng.random() < 0.4] or [rng.choice(DAEMON_KINDS)]
    for _ in range(rng.randint(1, 5)):
        replica, moment = rng.choice(hosts), moment_of(rng, steps, step_ms)
        machine = rng.choice((HOME, HOME, machine_of(replica)))
        lasts = rng.choice((0.3, 1.0, 3.0, 7.0, 25.0))
        match rng.choice(kinds):
            case "daemon kill":
                faults.append(KillDaemon(machine, lasts, rng.choice((0, 0, 1, 3, 10, 40)), **moment))
            case "lost ledger":
                faults.append(KillDaemon(machine, lasts, rng.choice((0, 3)), loses_ledger=True, **moment))
            case "daemon pause":
                faults.append(PauseDaemon(machine, lasts, **moment))
            case "lost report":
                faults.append(LoseReports(machine_of(replica), rng.choice((0.2, 0.9)), lasts, **moment))
            case "repeated report":
                faults.append(RepeatReports(machine_of(replica), rng.choice((0.2, 0.9)), lasts, **moment))
            case "no room":
                faults += [
                    RefuseStarts(machine_of(replica), rng.choice((1, 2)), **moment),
                    Kill(str(replica), **moment),
                ]
            case "hang":
                faults.append(Hang(str(replica), rng.choice((3.0, 30.0)), **moment))
            case "stick":
                faults.append(Stick(str(rng.choice([host for host in hosts if host.role == "learner"])), **moment))
            case _:
                faults.append(Crash(str(replica), rng.choice((1, 2, 4)), **moment))
    return tuple(faults)


def _soon(rng: random.Random, moment: dict[str, Any]) -> dict[str, Any]:
    """A moment at another one, or a little later: faults in combination find what single ones do not."""
    name = "at" if "at" in moment else "later"
    return {**moment, name: round(moment[name] + rng.choice((0.0, 0.01, 0.1, 0.5)), 3)}


def moment_of(rng: random.Random, steps: int, step_ms: float) -> dict[str, Any]:
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
        "clog": lambda: Clog(machine, rng.choice((0.1, 1.0, 6.0)), lasts, **moment),
        "lose": lambda: Lose(machine, rng.choice((0.02, 0.3)), lasts, **moment),
        "throttle": lambda: Throttle(machine, rng.choice((16.0, 200.0)), lasts, **moment),
        "reset": lambda: Reset(machine, **moment),
    }
    return make[kind]()


def run(seed: int, program: str = DEFAULT, learners: int | None = None) -> Outcome:
    """The outcome of one seed. RequestError for an unknown program."""
    return outcome_of(shape_of(seed, program, learners))
