"""Universes with a name: how a scenario is made to happen, and a witness that notes what went on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from isthmus import Program
from isthmus.programs.wings.simulation.toy_task import TOY, Toy
from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import Member
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Fault
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import Universe


class Witness(Checker):
    """Objects to nothing. `steps` has (seconds, step) of each life of a learner as it reports them; `intervals` all
    that pulls have said, `opened` when each round was pulled first; `merges` (seconds, shard, merge); `known` when each
    life was first in a roster that a shard was told; `held` (seconds, life, items)."""

    def __init__(self) -> None:
        self.steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.intervals: set[int] = set()
        self.opened: dict[tuple[str, int], float] = {}
        self.merges: dict[tuple[str, int], tuple[float, Any]] = {}
        self.known: dict[str, float] = {}
        self.held: list[tuple[float, str, int]] = []

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        now, who = life.true_now() / 1e9, str(life.member)
        if edge.source_port == "progress" and life.member.replica.role == "learner":
            self.steps[who].append((now, item["step"]))
        elif edge.source_port == "pull":
            self.opened.setdefault((who, item["round"]), now)
            if item["kind"] == "merge":
                self.intervals.add(item["interval"])
        elif edge.source_port == "merged":
            self.merges.setdefault((who, item["round"]), (now, item))

    def rostered(self, life: Life, rows: Sequence[Any]) -> None:
        if life.member.replica.role == "syncer":
            for row in rows:
                self.known.setdefault(f"{row[0]}#{row[1]}", life.true_now() / 1e9)

    def polled(self, universe: Universe) -> None:
        now = universe.clock.now() / 1e9
        self.held += [(now, str(life.member), life.host.payloads_count) for life in universe.living()]

    def steps_between(self, life: str, begin: float, end: float) -> int:
        """How many steps a life has reported in a span of time."""
        found = [step for at, step in self.steps[life] if begin <= at <= end]
        return found[-1] - found[0] if found else 0

    def merges_between(self, shard: str, begin: float, end: float) -> list[Any]:
        """What a life of a shard has merged in a span of time."""
        return [item for (who, _), (at, item) in self.merges.items() if who == shard and begin <= at <= end]


def survive(
    *faults: Fault,
    learners: int = 4,
    shards: int = 1,
    steps: int = 40,
    step_ms: float = 100.0,
    interval: int = 8,
    speeds: Sequence[float] = (),
    task: Toy = TOY,
    window_bytes: int | None = None,
    late: float = 1.0,
    witness: Checker | None = None,
    processes: tuple[int, ...] = (),
    elastic: tuple[tuple[int, ...], ...] = (),
    seed: int = 1,
    program: Program | None = None,
    **settings: Any,
) -> Outcome:
    """What comes of a run with these faults, each of which has to happen."""
    outcome = outcome_of(
        Shape(
            seed=seed,
            learners=learners,
            processes=processes,
            elastic=elastic,
            steps=steps,
            step_ms=step_ms,
            program=program or Program("decoupled-diloco", fragments=2, interval=interval, shards=shards, **settings),
            climate=Climate(),
            speeds=tuple(speeds) or (1.0,) * learners,
            faults=faults,
            task=task,
            window_bytes=window_bytes,
            late=late,
        ),
        *([witness] if witness is not None else []),
    )
    assert outcome.missed == []
    return outcome


def assert_exact(outcome: Outcome) -> None:
    """The books of every learner add up, fragment by fragment; and something was merged."""
    learners = outcome.status["learners"]
    for report in learners.values():
        for account in report["accounts"]:
            assert sum(account) == report["tokens"]
            assert min(account) >= 0
    assert sum(account[0] for report in learners.values() for account in report["accounts"]) > 0
