"""A machine for which XLA makes several CPU devices: how they are divided, and what each process has of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.islands.claims import LOCKS, claim
from isthmus.programs.engine.islands.environment import divided_here, islands_of, learner_environment
from isthmus.programs.engine.islands.kept_programs import read_compiled
from isthmus.programs.engine.request.spec import Here
from isthmus.programs.engine.run.host_process import cores_apart
from isthmus.programs.engine.run.seats import Seat, note_seat, ranges, read_seats
from isthmus.runtime.system.processes import XLA_FLAGS
from tests.programs.engine.run.process_run import Run

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def learners_see(count: int, **more: str) -> list[dict[str, str]]:
    variables = {**EIGHT, **more}
    islands = islands_of(Here("127.0.0.1", count), divided_here(variables))
    return [
        learner_environment(islands, each, 8, has_evaluator=False, environment=variables)
        for each in range(len(islands.ids))
    ]


def test_devices_that_xla_makes_are_divided_as_accelerators_are() -> None:
    one = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": XLA_FLAGS}
    assert learners_see(8) == [one] * 8
    assert learners_see(3) == [{**one, "JAX_NUM_CPU_DEVICES": "2"}] * 3
    assert learners_see(16) == [one] * 16
    own = f"--xla_a=b {EIGHT['XLA_FLAGS']} --xla_c=d"
    assert {each["XLA_FLAGS"] for each in learners_see(8, XLA_FLAGS=own)} == {"--xla_a=b --xla_c=d"}


@pytest.mark.parametrize("more", [{"JAX_NUM_CPU_DEVICES": "2"}, {"JAX_PLATFORMS": "rocm"}, {"XLA_FLAGS": "--xla_a=8"}])
def test_what_is_said_of_each_process_or_of_another_platform_is_left_as_it_is(more: dict[str, str]) -> None:
    assert divided_here({**EIGHT, **more}) is None
    assert learners_see(2, **more) == [{}] * 2


def test_a_machine_that_was_declared_has_what_was_declared() -> None:
    declared = Here("127.0.0.1", 2, devices=4, kinds=("CPU",))
    assert islands_of(declared, divided_here(EIGHT)).ids == ((), ())


def test_a_seat_is_what_a_process_has_now(tmp_path: Path) -> None:
    held = claim([["cpu-0", "cpu-1"]], tmp_path / LOCKS)
    note_seat(tmp_path, "learner/0", 1, held.names)
    held.close()
    (seat,) = read_seats(tmp_path)
    assert seat == Seat("learner/0", 1, ["cpu-0", "cpu-1"], sorted(os.sched_getaffinity(0)))
    assert list(map(ranges, ([], [3], [2, 0, 1], [8, 0, 1, 3, 9]))) == ["", "3", "0-2", "0-1, 3, 8-9"]


Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    monkeypatch.setenv("XLA_FLAGS", EIGHT["XLA_FLAGS"])
    runs: list[Run] = []

    def begin(*more: str, **how: Any) -> Run:
        runs.append(Run(tmp_path, *more, **how))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.mark.long
@pytest.mark.process
def test_a_run_by_its_defaults_on_eight_devices_has_eight_islands_each_with_its_own(begin: Begin) -> None:
    run = begin("--model", "nano", learners=None, tokens=20_000)
    assert run.finish("done")["learners"] == 8
    seats = {each.process: each for each in read_seats(run.folder)}
    learners = [f"learner/{slot}" for slot in range(8)]
    assert sorted(tuple(seats[name].devices) for name in learners) == [(f"cpu-{number}",) for number in range(8)]
    assert {each.process: each.device for each in read_compiled(run.folder)} == dict.fromkeys(learners, "1 x cpu")
    others = [seats[name] for name in ("syncer/0", "recorder/0", "evaluator/0")]
    assert not [each for each in others if each.devices]
    of_islands, of_others = cores_apart(os.sched_getaffinity(0), 8)
    for name in learners:
        own = set(seats[name].cores)
        assert own == of_islands if of_islands != of_others else len(own) == 1 or len(of_islands) >= 8
    assert {frozenset(each.cores) for each in others[:2]} == {of_others}


@pytest.mark.long
@pytest.mark.process
def test_the_next_life_of_a_learner_has_the_devices_of_its_last_one(begin: Begin) -> None:
    run = begin(learners=2)
    run.wait_for_merges(2)
    run.kill("learner/0")
    run.wait_for(lambda: [each for each in read_seats(run.folder) if each.life == 2])
    run.wait_for_merges(4)
    run.stop()
    seats = [each for each in read_seats(run.folder) if each.process.startswith("learner/")]
    held = {(each.process, each.life): set(each.devices) for each in seats}
    assert held["learner/0", 2] == held["learner/0", 1]
    assert held["learner/0", 1] | held["learner/1", 1] == {f"cpu-{number}" for number in range(8)}
    assert {each.device for each in read_compiled(run.folder)} == {"4 x cpu"}
