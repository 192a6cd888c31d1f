"""Faults that belong together: combinations that single faults, drawn one by one, would almost never produce.

Decides which faults, and when; `seeds` decides how often.
"""

from __future__ import annotations

import random
from typing import Any, Final

from isthmus.ops.recovery.hold import HOLDERS
from isthmus.programs.simulation.universe import START_SECONDS
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim import Cut, Fault, Kill, KillDaemon, machine_of

LAST_SECONDS: Final = (1.0, 4.5)
"""Duration of a cut: for some updates, and less than TCP needs to give up."""
RUN_SECONDS_MIN: Final = 2.0
"""A shorter run is over before the storm is."""


def fork(rng: random.Random, hosts: list[Replica], run_seconds: float) -> tuple[Fault, ...]:
    """A shard loses its last versions.

    One learner alone gets them (neither other learners nor evaluator nor recorder), and is away while the shard comes
    back with the versions that the others hold. Empty for a run that is too short, or has no shard or no second
    learner.
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
