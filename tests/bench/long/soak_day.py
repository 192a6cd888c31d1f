"""A day in virtual time: machines that train by the hour, preemptions, deaths, and a home that moves.

    python -m tests.bench.long.soak_day [--hours 24] [--learners 5] [--seed 0] [--json]

The simulator's clusters (`isthmus simulate world`), whose daemons, hosts, wire and files are those of a real run, for a
day in place of some seconds; its checkers look at every event. Steps take half a minute. The first two machines always
train. Each other one is there for eight hours and gone for sixteen, told ahead by two minutes, as from a queue; its
first hour differs by four from that of the one before. Of those that are there a cloud takes one back every half hour
or so, for some minutes, with half a minute's notice; every hour a process dies somewhere; and twice a day, in the
seventh hour and the nineteenth, the home loses power and another machine becomes the home. All by the seed.

Told are the run's figures at its end, what happened how often, and for each quarter of the day the events and the
seconds of this machine that a virtual hour took: what they grow by says whether something takes longer the older a run
is. The memory is that of the simulator, which keeps all tapes. It ends with 1 on a violation.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Fault, Kill, MoveHome, PreemptionNotice
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import Universe

STEP_SECONDS: Final = 30.0
HOUR: Final = 3600.0
ON_HOURS: Final = 8
DAY_HOURS: Final = 24
APART_HOURS: Final = 4
"""From one machine's first hour to that of the next."""
ALWAYS: Final = 2
"""Machines that are there all day."""
OFF_SECONDS: Final = (DAY_HOURS - ON_HOURS) * HOUR
QUEUE_GRACE, CLOUD_GRACE = 120.0, 30.0
BACK_SECONDS: Final = 120.0
"""After which a machine that is back may be taken again."""
MORTAL: Final = ("learner/0", "learner/1", "syncer/0", "syncer/1", "recorder/0", "evaluator/0")
"""Who dies: hosts of machines that are there all day."""
PREEMPTED_EACH: Final = 1800.0
KILLED_EACH: Final = 3600.0
MOVES_AT: Final = (7, 19)
"""Hours of the day."""
SNAPSHOT_SECONDS: Final = 15.0
FIGURES: Final = ("tokens", "tokens_undone", "merged_share", "outer_steps", "contributors_mean", "goodput")
"""Of the run's last status."""


def faults_of(hours: float, learners: int, seed: int) -> tuple[Fault, ...]:
    """What happens on such a day."""
    rng, end = random.Random(f"day {seed}"), hours * HOUR
    faults = [*_by_the_hour(end, learners), *_preemptions(rng, end, learners), *_deaths(rng, end)]
    faults += [
        MoveHome(f"learner-{number % ALWAYS}", after=20.0, seconds=600.0, at=hour * HOUR)
        for number, hour in enumerate(MOVES_AT)
        if hour < hours
    ]
    return tuple(faults)


def _by_the_hour(end: float, learners: int) -> Iterator[Fault]:
    """Whoever is not there all day is away from its ninth hour on, for sixteen hours."""
    for slot in range(ALWAYS, learners):
        leaves = _first_hour(slot) + ON_HOURS
        while leaves * HOUR < end:
            yield PreemptionNotice(f"learner-{slot}", QUEUE_GRACE, OFF_SECONDS, at=leaves * HOUR)
            leaves += DAY_HOURS


def _first_hour(slot: int) -> int:
    return (slot - ALWAYS) * APART_HOURS % DAY_HOURS


def _is_there(slot: int, at: float) -> bool:
    """Whether the queue has given the machine of a slot, which is there from the start on to the end of its first
    hours, and is not about to take it."""
    if slot < ALWAYS or at < _first_hour(slot) * HOUR:
        return True
    return (at / HOUR - _first_hour(slot)) % DAY_HOURS < ON_HOURS - 1


def _preemptions(rng: random.Random, end: float, learners: int) -> Iterator[Fault]:
    at, back = rng.expovariate(1 / PREEMPTED_EACH), [0.0] * learners
    while at < end:
        there = [slot for slot in range(learners) if _is_there(slot, at) and back[slot] < at]
        if there:
            slot, away = rng.choice(there), rng.uniform(60.0, 900.0)
            back[slot] = at + away + BACK_SECONDS
            yield PreemptionNotice(f"learner-{slot}", CLOUD_GRACE, away, at=round(at, 3))
        at += rng.expovariate(1 / PREEMPTED_EACH)


def _deaths(rng: random.Random, end: float) -> Iterator[Fault]:
    at = rng.expovariate(1 / KILLED_EACH)
    while at < end:
        yield Kill(rng.choice(MORTAL), at=round(at, 3))
        at += rng.expovariate(1 / KILLED_EACH)


class Quarters(Checker):
    """What each quarter of the day cost here. It objects to nothing."""

    def __init__(self, hours: float) -> None:
        self.rows: list[dict[str, float]] = []
        self._each = hours * HOUR / 4
        self._begun = time.process_time()
        self._events = 0

    def polled(self, universe: Universe) -> None:
        """Note a quarter that is over."""
        while universe.clock.now() / 1e9 >= self._each * (len(self.rows) + 1) and len(self.rows) < 4:
            self._end(universe)

    def _end(self, universe: Universe) -> None:
        now, events = time.process_time(), universe.events
        self.rows.append(
            {
                "events": (events - self._events) / self._each * HOUR,
                "cpu_seconds": round((now - self._begun) / self._each * HOUR, 2),
                "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
        self._begun, self._events = now, events
        print(f"quarter {len(self.rows)}: {self.rows[-1]}", file=sys.stderr, flush=True)


def shape_of_day(hours: float, learners: int, seed: int) -> Shape:
    """Its cluster."""
    settings = {"fragments": 4, "interval": 24, "shards": 2}
    return Shape(
        seed=seed,
        learners=learners,
        steps=round(hours * HOUR / STEP_SECONDS),
        step_ms=1e3 * STEP_SECONDS,
        program=Program("decoupled-diloco", **settings),
        climate=Climate(latency=0.02, jitter=0.01, gbits=0.1),
        speeds=(1.0,) * learners,
        faults=faults_of(hours, learners, seed),
        late=600.0,
        leaves_files=True,
        snapshot_seconds=SNAPSHOT_SECONDS,
    )


def told(outcome: Outcome, quarters: Quarters, hours: float) -> dict[str, Any]:
    """The figures of a day."""
    return {
        "seed": outcome.seed,
        "hours": hours,
        "violation": outcome.violation,
        "ended": outcome.outcome,
        "virtual_seconds": round(outcome.seconds, 1),
        "happened": dict(outcome.faults),
        "missed": outcome.missed,
        "lives": len(outcome.lives),
        **{name: outcome.status.get(name) for name in FIGURES},
        "an_hour": quarters.rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--learners", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    quarters = Quarters(asked.hours)
    outcome = outcome_of(shape_of_day(asked.hours, asked.learners, asked.seed), quarters)
    row = told(outcome, quarters, asked.hours)
    print(json.dumps(row) if asked.json else json.dumps(row, indent=2))
    sys.exit(1 if outcome.violation else 0)


if __name__ == "__main__":
    main()
