"""Universes whose links change, with settings that follow them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from isthmus import Program
from isthmus.ops.exchange.adaptive import KEEP
from isthmus.programs.wings.simulation.places import machine_of
from isthmus.programs.wings.simulation.seeds import shape_of
from isthmus.programs.wings.simulation.toy_task import EVEN, WIDE, Toy
from isthmus.programs.wings.simulation.universe import Outcome, Shape, hosts_of, outcome_of
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import Member
from isthmus.runtime.sim.faults import Clog, Fault, Kill, Throttle
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.network import Climate
from tests.effort import soaked
from tests.programs.wings.simulation.scenarios import Witness, assert_exact

AUTO: Mapping[str, Any] = dict.fromkeys(("push", "update", "interval", "overlap"), "auto")
LEARNERS, INTERVAL, STEP = 4, 24, 0.1
TURN = INTERVAL * STEP
"""Seconds of an interval."""
KBITS = 4000.0
"""What links carry: 3.7 times what float32 needs, 8 fragments of 40 kB an interval."""
WINDOW_BYTES = 64 << 10
"""One fragment and a half, as the window of a real run is to fragments of a real model."""
BEGIN = 8.0
END = BEGIN + 8 * TURN


class Changes(Witness):
    """Notes, beside the rest, the changes, as (seconds, change), what rounds asked for last, and what a learner said of
    its links last."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[float, Any]] = []
        self.last: Any = None
        self.links: list[Any] = []

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        super().sent(life, target, edge, item)
        if edge.source_port == "changed":
            self.changes.append((life.true_now() / 1e9, item))
        elif edge.source_port == "pull" and "asked" in item:
            self.last = item["asked"]
        elif edge.source_port == "progress" and item.get("links"):
            self.links = item["links"]

    def voted(self, slot: int, begin: float, end: float) -> float:
        """In which share of the merges of a span of time a learner had a vote."""
        merges = [item for at, item in self.merges.values() if begin <= at < end and item["kind"] == "merge"]
        return sum(slot in item["voters"] for item in merges) / len(merges)


def run(
    witness: Witness,
    *faults: Fault,
    steps: int = 430,
    task: Toy = EVEN,
    seed: int = 1,
    window_bytes: int | None = WINDOW_BYTES,
    **settings: Any,
) -> Outcome:
    program = Program("decoupled-diloco", **{"fragments": 8, **AUTO, **settings})
    climate, speeds = Climate(), (1.0,) * LEARNERS
    shape = Shape(
        seed, LEARNERS, steps, STEP * 1e3, program, climate, speeds, faults, task=task, window_bytes=window_bytes
    )
    outcome = outcome_of(shape, witness)
    assert outcome.violation is None
    assert outcome.missed == []
    return outcome


def links(kbits: float = KBITS) -> list[Throttle]:
    return [Throttle(f"learner-{slot}", kbits=kbits, seconds=9e3, at=0.1) for slot in range(LEARNERS)]


def cut(machine: str) -> Throttle:
    return Throttle(machine, kbits=KBITS / 10, seconds=END - BEGIN, at=BEGIN)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("where", ["learner-3", soaked("syncer-0")])
def test_links_cut_to_a_tenth_in_mid_run(where: str) -> None:
    """Nobody waits; within six intervals every learner is merged again; and afterwards all is as before."""
    witness = Changes()
    outcome = run(witness, *links(), cut(where))
    for slot in range(LEARNERS):
        assert witness.steps_between(f"learner/{slot}#1", BEGIN, END) > 0.97 * (END - BEGIN) / STEP
        assert outcome.status["learners"][slot]["waited"] == 0
        assert witness.voted(slot, BEGIN + 5 * TURN, END) > 0.6
        assert witness.voted(slot, END + 3 * TURN, END + 7 * TURN) > 0.9
    formats = [(at, change) for at, change in witness.changes if change["setting"] in ("push", "update")]
    given_up = [(change["setting"], change["slot"]) for at, change in formats if at < END]
    slots = [3] if where == "learner-3" else range(LEARNERS)
    assert sorted(given_up, key=str) == sorted([*(("push", slot) for slot in slots), ("update", None)], key=str)
    assert all((change["before"], change["after"]) == ("float32", "int4") for at, change in formats if at < END)
    # A format is given up at a load above KEEP; a mean over sweeps, some of them before the cut, is not far above.
    assert all(change["needed"] > KEEP * change["goodput"] for at, change in formats if at < END)
    assert max(at for at, _ in formats) < END + 4 * TURN
    assert {name for _, name in witness.last["push"]} == {"float32"}
    assert witness.last["update"] == "float32"
    assert witness.last["interval"] == INTERVAL
    told = outcome.status["changes"]
    assert told["count"] == len(witness.changes)
    assert told["last"][-1]["after"] == witness.changes[-1][1]["after"]
    assert_exact(outcome)


@pytest.mark.soak
def test_the_same_cut_with_settings_that_are_numbers_leaves_the_learner_behind() -> None:
    witness = Changes()
    run(witness, *links(), cut("learner-3"), push="float32", update="float32", interval=INTERVAL, overlap=2)
    assert witness.changes == []
    assert witness.voted(3, BEGIN + 5 * TURN, END) < 0.5
    assert witness.steps_between("learner/3#1", BEGIN, END) > 0.97 * (END - BEGIN) / STEP


@pytest.mark.slow
def test_links_that_carry_everything_are_given_every_bit() -> None:
    """They are known, and nothing changes (what comes of that: tests/programs/test_identities.py)."""
    witness = Changes()
    outcome = run(witness, steps=100, overlap=2)
    assert outcome.status["changes"]["count"] == 0
    assert {format_name for _, format_name in witness.last["push"]} == {witness.last["update"]} == {"float32"}
    assert [role for role, _, mean, _ in witness.links if mean > 1e6 and role == "syncer"]


def merged_share(outcome: Outcome, slot: int) -> float:
    """The share of a learner's tokens that is merged."""
    report = outcome.status["learners"][slot]
    return sum(account[0] for account in report["accounts"]) / sum(map(sum, report["accounts"]))


@pytest.mark.long
@pytest.mark.slow
def test_links_that_are_long_are_given_a_long_interval() -> None:
    """As through a bucket: the way there and back takes 18 steps, and no format shortens it."""
    witness, delay = Changes(), 0.9
    far = [Clog(f"learner-{slot}", latency=delay, seconds=9e3, at=0.0) for slot in (2, 3)]
    outcome = run(witness, *far, steps=1000, window_bytes=None)
    assert min(merged_share(outcome, slot) for slot in range(LEARNERS)) > 0.8
    assert all(report["waited"] == 0 for report in outcome.status["learners"].values())
    round_trip = 2 * delay / STEP
    assert 8 * round_trip < witness.last["interval"] < 10 * round_trip
    assert outcome.status["changes"]["last"][-1]["reason"] == "slow rounds"
    assert_exact(outcome)


@pytest.mark.soak
def test_a_shard_that_comes_back_learns_its_links_anew() -> None:
    """It begins with float32, and knows within three intervals that the link carries less; nobody else is disturbed."""
    witness = Changes()
    outcome = run(witness, *links(), cut("learner-3"), Kill("syncer/0", at=BEGIN + 4 * TURN))
    assert "syncer/0#2" in outcome.lives
    again = [(at, item) for at, item in witness.changes if item["epoch"] == 2 and item["setting"] == "push"]
    assert (again[0][1]["slot"], again[0][1]["after"]) == (3, "int4")
    assert again[0][0] < BEGIN + 8 * TURN
    assert {name for _, name in witness.last["push"]} == {"float32"}
    for slot in range(LEARNERS):
        assert witness.steps_between(f"learner/{slot}#1", BEGIN, END) > 0.95 * (END - BEGIN) / STEP
    assert_exact(outcome)


def changing(seed: int) -> tuple[Outcome, Changes]:
    """The universe of a seed, its faults included, with everything left to links that change again and again."""
    shape, rng = shape_of(seed), random.Random(f"links {seed}")
    hosts = hosts_of(shape.program, shape.learners)
    machines = [machine_of(host) for host in hosts if host.role in ("learner", "syncer")]
    ways = [
        Throttle(
            rng.choice(machines), rng.choice((30.0, 150.0, 1000.0)), rng.choice((1.0, 4.0)), at=rng.uniform(0.5, 12.0)
        )
        for _ in range(6)
    ]
    kept = {name: shape.program.settings[name] for name in ("fragments", "shards", "quorum")}
    interval = rng.choice((shape.program.settings["interval"], "auto"))
    program = Program("decoupled-diloco", **{**kept, **AUTO, "interval": interval})
    witness = Changes()
    more = replace(shape, program=program, task=WIDE, steps=2 * shape.steps, faults=(*shape.faults, *ways))
    return outcome_of(more, witness), witness


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", [soaked(0), 5])
def test_universes_with_faults_and_links_that_change(seed: int) -> None:
    outcome, _ = changing(seed)
    assert outcome.violation is None


@pytest.mark.soak
def test_many_universes_with_faults_and_links_that_change() -> None:
    """Whatever dies, joins or comes back: equal versions have equal bits, books add up, runs end; settings change."""
    found = Counter[str]()
    for seed in range(100):
        outcome, witness = changing(seed)
        assert outcome.violation is None, (seed, outcome.violation)
        found.update(change["setting"] for _, change in witness.changes)
    assert all(found[name] > 5 for name in ("push", "update", "overlap")), found
