"""How often a program that goes back to snapshots takes them under a plan: at Young's interval.

A program that takes its snapshots too seldom loses work with every death, and one that takes them too often spends its
time on them. Comparing what programs keep of their goodput is fair only at the best interval of each,

    T = sqrt(2 * cost * M)                      (Young, 1974)

with M the mean time between the deaths that send it back, which the plan says, and the cost of one snapshot in seconds
of training, which is measured in the undisturbed run of the same program. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.results.tapes import BATCH, STEP, WAIT_NS_MIN
from isthmus.programs.engine.results.words import seconds
from isthmus.programs.program_graph import SYNCER
from isthmus.programs.wings.chaos.chaos_plan import MACHINE, Planned, machine_number
from isthmus.runtime.cores.scheduler_events import FiringEnded, HostRecord, ItemsEmitted, RunBody
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.ids import LEARNER

SETTING: Final = "snapshot_seconds"
GOES_BACK: Final[Mapping[str, str]] = {"data-parallel": LEARNER, "elastic-data-parallel": SYNCER}
"""Program -> the role of which any death sends all learners back to the last snapshot."""
STATE: Final = "state"
"""The port of inner-step that a snapshot leaves by."""
STEPS_LATE: Final = 2
"""Steps that a snapshot may make longer: the one that takes it, and the next, beside which it is sent and written."""
COST_SECONDS_MIN: Final = WAIT_NS_MIN / 1e9
"""A difference of two medians of step times is not known better than hops of a loop are."""


@dataclass(frozen=True, slots=True)
class SnapshotPace:
    """`count` snapshots of the undisturbed run cost `cost` seconds each, by their median; deaths are `mean` seconds
    apart."""

    count: int
    cost: float
    mean: float

    @property
    def interval(self) -> float:
        """Seconds between two snapshots."""
        return round(math.sqrt(2 * self.cost * self.mean), 3)

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        return {
            "snapshot_seconds": self.interval,
            "cost_seconds": round(self.cost, 6),
            "costs_measured": self.count,
            "between_deaths_seconds": round(self.mean, 3),
        }

    def line(self, program: str) -> str:
        """What the interval is made of, in words."""
        return (
            f"{program} takes a snapshot every {seconds(self.interval)} under the plan: the square root of 2 * "
            f"{seconds(self.cost)} * {seconds(self.mean)}, what one of {self.count} cost in the undisturbed run, and "
            "the time between deaths that send it back."
        )


def deaths(program: str, faults: Iterable[Planned], machines: int) -> int:
    """The number of faults that send all learners of `program` back to the last snapshot.

    With several machines the home, number 0, has every host that is no learner, and learners are on all.
    """
    role = GOES_BACK.get(program)

    def is_death(fault: Planned) -> bool:
        if fault.role == MACHINE:
            return role == LEARNER or (machines > 1 and machine_number(fault.host) == 0)
        return fault.role == role

    return 0 if role is None else sum(fault.kind == "kill" and is_death(fault) for fault in faults)


class StepTime(NamedTuple):
    """A step with a batch, in nanoseconds of the run's clock; `ended` is None of the last one on a tape that breaks
    off; `has_state`: a snapshot left with it."""

    begun: int
    ended: int | None
    has_state: bool


def step_times(plan: Plan, records: Sequence[HostRecord]) -> list[StepTime]:
    """The inner steps on the tape of a learner of `plan`."""
    node = plan.node_named(STEP)
    batch = [port.name for port in node.inputs].index(BATCH)
    ports = [port.name for port in node.outputs]
    steps, begun, has_state = list[StepTime](), None, False
    for record in records:
        event = record.event
        if isinstance(event, FiringEnded | ItemsEmitted) and event.node == node.index and begun is not None:
            has_state |= any(ports[output.port] == STATE for output in event.outputs)
            if isinstance(event, FiringEnded):
                steps.append(StepTime(begun, record.at, has_state))
                begun, has_state = None, False
        for command in record.commands:
            if isinstance(command, RunBody) and command.node == node.index and batch in dict(command.inputs):
                begun = record.at
    return [*steps, *([StepTime(begun, None, has_state)] if begun is not None else [])]


def costs(steps: Sequence[StepTime]) -> list[float]:
    """The seconds by which each snapshot made its step and the next take longer than steps without one, by medians.

    Steps are counted from the begin of one to that of the next, so that a wait for others that a snapshot makes late
    is in them. Differences may be negative: they have the jitter of STEPS_LATE steps.
    """
    took = [(after.begun - before.begun) / 1e9 for before, after in pairwise(steps)]
    with_state = [number for number, step in enumerate(steps) if step.has_state]
    late = {number + more for number in with_state for more in range(STEPS_LATE)}
    plain = [each for number, each in enumerate(took) if number not in late]
    if not plain:
        return []
    usual = STEPS_LATE * median(plain)
    return [sum(took[n : n + STEPS_LATE]) - usual for n in with_state if n + STEPS_LATE <= len(took)]


def pace(measured: Sequence[float], count: int, over_seconds: float) -> SnapshotPace | None:
    """The pace for `count` deaths in `over_seconds`, by the `measured` costs; None without deaths, or costs."""
    if not count or not measured:
        return None
    return SnapshotPace(len(measured), max(COST_SECONDS_MIN, median(measured)), over_seconds / count)
