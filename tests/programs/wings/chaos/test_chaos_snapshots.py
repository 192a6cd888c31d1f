"""How often a program takes snapshots under a plan, by what one costs on a tape and by the deaths of the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus import Program
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.results.reading import load
from isthmus.programs.wings.chaos import chaos_trial
from isthmus.programs.wings.chaos.chaos_page import write_page
from isthmus.programs.wings.chaos.chaos_plan import ChaosPlan, DrawnFaults, Planned, faults_of, seconds_of
from isthmus.programs.wings.chaos.chaos_snapshots import (
    COST_SECONDS_MIN,
    GOES_BACK,
    SnapshotPace,
    StepTime,
    costs,
    deaths,
    pace,
    step_times,
)
from isthmus.programs.wings.chaos.chaos_trial import TrainingOrder, TrialFigures, Tried, as_data, paces, try_program
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.cores.scheduler_events import FiringEnded, HostRecord, ItemsEmitted, Output, RunBody
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import LEARNER, Handle, Replica
from isthmus.runtime.tape.reading import read
from tests.programs.engine.results.made_up_run import build
from tests.programs.family import ADAM

STEP = 3
NODE = SimpleNamespace(
    name="inner-step",
    index=STEP,
    inputs=[SimpleNamespace(name="mean"), SimpleNamespace(name="batch")],
    outputs=[SimpleNamespace(name=name) for name in ("part", "hello", "model", "state")],
)
PLAN: Any = SimpleNamespace(node_named=lambda name: {"inner-step": NODE}[name])
BATCH = ((1, ((Replica("learner", 0), None, Handle(1)),)),)
PART, STATE = Output(0, Handle(5)), Output(3, Handle(6))
HOSTS = ("learner/0", "learner/1", "learner/2", "learner/3", "syncer/0", "recorder/0")


def tape(*steps: tuple[float, float, Sequence[Output]]) -> list[HostRecord]:
    """Steps that begin and end at these milliseconds, and send this."""
    records = []
    for begun, ended, outputs in steps:
        run = RunBody(STEP, 0, BATCH)
        records.append(HostRecord(Instant(milliseconds(begun)), ItemsEmitted(0, (STATE,)), [run]))
        records.append(HostRecord(Instant(milliseconds(ended)), FiringEnded(STEP, tuple(outputs)), []))
    return records


def test_steps_of_a_tape_have_their_times_and_the_snapshots_that_left() -> None:
    records = tape((0, 5, [PART]), (10, 17, [STATE, PART]), (20, 25, []))
    records += [HostRecord(Instant(milliseconds(30)), ItemsEmitted(0, ()), [RunBody(STEP, 0, BATCH)])]
    found = step_times(PLAN, records)
    assert [(each.begun / 1e6, each.ended and each.ended / 1e6, each.has_state) for each in found] == [
        (0, 5, False),
        (10, 17, True),
        (20, 25, False),
        (30, None, False),
    ]
    idle = [HostRecord(Instant(0), ItemsEmitted(0, ()), [RunBody(STEP, 0, ((0, BATCH[0][1]),))])]
    assert step_times(PLAN, idle) == []


def test_a_snapshot_costs_what_its_step_and_the_next_take_longer_than_others() -> None:
    begun = [0, 10, 20, 37, 50, 60, 70, 80]
    steps = [StepTime(at * 1_000_000, None, number in (2, 7)) for number, at in enumerate(begun)]
    assert costs(steps) == pytest.approx([0.010])  # 17 and 13 ms in place of 10; after the last one nothing is known.
    assert costs(steps[:3]) == []
    assert costs([]) == []


def test_an_interval_is_the_square_root_of_twice_the_cost_times_the_time_between_deaths() -> None:
    found = pace([0.01, 0.03, 0.02], 3, 75.0)
    assert found == SnapshotPace(3, 0.02, 25.0)
    assert found.interval == 1.0
    assert pace([-0.01, 0.0, 0.0002], 1, 20.0) == SnapshotPace(3, COST_SECONDS_MIN, 20.0)
    assert pace([], 3, 75.0) is None
    assert pace([0.02], 0, 75.0) is None


@pytest.mark.parametrize(
    ("program", "host", "machines", "count"),
    [
        ("data-parallel", "learner/2", 1, 1),
        ("data-parallel", "machine/1", 2, 1),
        ("data-parallel", "syncer/0", 1, 0),
        ("data-parallel", "daemon", 1, 0),
        ("elastic-data-parallel", "syncer/0", 1, 1),
        ("elastic-data-parallel", "learner/2", 1, 0),
        ("elastic-data-parallel", "machine/0", 2, 1),
        ("elastic-data-parallel", "machine/1", 2, 0),
        ("decoupled-diloco", "learner/2", 1, 0),
    ],
)
def test_deaths_are_kills_that_send_all_learners_back(program: str, host: str, machines: int, count: int) -> None:
    faults = [Planned(kind="kill", host=host, at=1.0), Planned(kind="pause", host="learner/0", at=2.0)]
    assert deaths(program, faults, machines) == count


def test_deaths_of_an_endless_plan_are_counted_over_all_of_its_faults() -> None:
    drawn = DrawnFaults(seed=3, mean_seconds=5.0, kinds=("kill",), hosts=HOSTS[:4])
    faults = faults_of(ChaosPlan(drawn=drawn), HOSTS, 100.0)
    assert seconds_of(ChaosPlan(drawn=drawn), faults, 100.0) / len(faults) == pytest.approx(5.0, rel=0.2)
    built_in = faults_of(ChaosPlan(), HOSTS, 100.0)
    assert seconds_of(ChaosPlan(), built_in, 100.0) == 100.0
    assert deaths("data-parallel", built_in, 2) == 2


@pytest.fixture
def ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainingOrder]:
    """The orders of runs, none of which is made: each leaves a made-up folder, and a snapshot costs 20 ms."""
    orders = list[TrainingOrder]()

    def run(order: TrainingOrder, folder: Path, *_: object, **__: object) -> TrialFigures:
        orders.append(order)
        build(folder, learners=2, fragments=2, steps=60)
        return TrialFigures(load(folder), (), (), 0, 0.0)

    monkeypatch.setattr(chaos_trial, "run", run)
    monkeypatch.setattr(chaos_trial, "snapshot_costs", lambda folder: [0.02])
    return orders


def tried(program: str, plan: ChaosPlan, folder: Path, said: list[str]) -> Tried:
    return try_program(TrainingOrder(program, None, (), machines=2, learners=4), HOSTS, plan, folder, (), said.append)


def test_only_the_run_under_the_plan_has_the_interval_and_the_page_says_why(
    tmp_path: Path, ordered: list[TrainingOrder]
) -> None:
    said = list[str]()
    other, own = (tried(name, ChaosPlan(), tmp_path, said) for name in ("decoupled-diloco", "data-parallel"))
    seconds = own.calm.record.number("wall_seconds")
    assert seconds is not None
    interval = round(math.sqrt(2 * 0.02 * seconds / 2), 3)
    assert [each.sets for each in ordered] == [(), (), (), (f"program.snapshot_seconds={interval}",)]
    assert own.pace is not None
    line = own.pace.line("data-parallel")
    assert line in said
    assert paces([other, own]) == [line]
    assert line in (write_page(tmp_path, [other, own]).parts[0].notes)
    data = as_data([other, own])
    assert data["runs"][0]["snapshots"] is None
    assert data["runs"][1]["snapshots"]["snapshot_seconds"] == interval
    assert [run["kept"] for run in data["runs"]] == [other.ratio, own.ratio]
    assert other.ratio is not None
    assert own.ratio is not None
    assert data["verdict"] == {"data-parallel": other.ratio / own.ratio}


def test_an_interval_of_the_plan_is_left_as_it_is(tmp_path: Path, ordered: list[TrainingOrder]) -> None:
    plan = ChaosPlan(program={"data-parallel": {"snapshot_seconds": 15}})
    assert tried("data-parallel", plan, tmp_path, []).pace is None
    assert [each.sets for each in ordered] == [(), ()]


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(GOES_BACK))
def test_the_tapes_of_a_run_show_its_snapshots(world: Worlds, program: str) -> None:
    ran = world.run(Program(program, snapshot_seconds=0.1), task=ADAM, learners=2, steps=60)
    other = prepare(Program(program), ADAM, run={"learners": 2, "tokens": 960}, run_dir=ran.folder.parent / "other")
    steps = step_times(lower(other.graph)[LEARNER], read(ran.tapes["learner/0"], HostRecord).records)
    assert len(steps) >= 60
    assert sum(step.has_state for step in steps) >= 3
    begins = [step.begun for step in steps if step.has_state]
    assert all(after - before >= 1e8 for before, after in pairwise(begins))
    assert all(abs(cost) < 0.01 for cost in costs(steps)), "in virtual time a snapshot costs nothing"
