"""Universes whose disk fills up, fails, or loses its power: training goes on, and what is said to be written is."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from isthmus import Program, Task
from isthmus.programs.engine.recorder import node as recorder
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.sim.faults import Blackout, BreakDisk, DieAll, Fault, FillDisk
from isthmus.runtime.sim.machine import Mount, SimulatedFile
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.system import files
from isthmus.runtime.system import files as store
from tests.effort import long, soaked
from tests.programs.wings.simulation.test_world import LINEAR

HOME = "home"


def survive(*faults: Fault, learners: int = 2, seed: int = 1, late: float = 1.0) -> Outcome:
    return outcome_of(
        Shape(
            seed=seed,
            learners=learners,
            steps=40,
            step_ms=100.0,
            program=Program("decoupled-diloco", fragments=2, interval=8),
            climate=Climate(),
            speeds=(1.0,) * learners,
            faults=faults,
            late=late,
        )
    )


def kept(outcome: Outcome, name: str) -> int:
    return sum(counts[name] for counts in outcome.status["files"].values())


@pytest.mark.parametrize("room", [0, long(100), 1000])
def test_a_disk_that_is_full_for_a_while_costs_nothing(room: int) -> None:
    outcome = survive(FillDisk(HOME, room, 1.5, at=2.0))
    assert (outcome.violation, outcome.missed) == (None, [])
    assert outcome.phases == {("full disk", "stepping"): 1}
    assert (kept(outcome, "lost"), kept(outcome, "waiting"), kept(outcome, "torn")) == (0, 0, 0)
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, long(1.0)])
def test_a_disk_that_is_broken_for_a_while_costs_nothing(share: float) -> None:
    outcome = survive(BreakDisk(HOME, share, 1.5, at=2.0))
    assert (outcome.violation, outcome.missed) == (None, [])
    assert (kept(outcome, "lost"), kept(outcome, "waiting")) == (0, 0)


def test_what_does_not_find_room_to_wait_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAITING_BYTES_MAX", 500)
    outcome = survive(FillDisk(HOME, 0, 2.0, at=2.0))
    assert outcome.violation is None
    assert kept(outcome, "lost") > 3
    assert {counts["error"] for counts in outcome.status["files"].values()} == {None, "No space left on device"}


@pytest.mark.parametrize("made", [partial(FillDisk, HOME, 0), partial(BreakDisk, HOME, 1.0)])
def test_the_final_model_is_written_as_soon_as_the_disk_takes_it(made: Any) -> None:
    fault = made(3.0, at_phase="final")
    outcome = survive(fault)
    assert (outcome.violation, outcome.missed) == (None, [])
    assert outcome.phases[fault.kind, "final"] == 1
    assert outcome.status["phase"] == "done"
    assert outcome.status["unsaved"] == {"fragments": 0, "error": None}


@pytest.mark.slow
def test_a_model_that_is_never_written_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "SAVE_TRIES_MAX", 4)
    outcome = survive(BreakDisk(HOME, 1.0, 100.0, at_phase="final"), late=10.0)
    told = "the final model could not be written into /run/snapshots/final: Input/output error"
    assert outcome.status["error"].startswith(told)
    assert outcome.outcome == "failed"
    assert outcome.violation is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, long(1), soaked(2), soaked(3)])
@pytest.mark.parametrize("moment", [{"at": 0.3}, {"at": 2.5}, {"at_phase": "final", "later": 0.1}])
def test_a_machine_loses_power(moment: dict[str, Any], seed: int) -> None:
    outcome = survive(*(Blackout(machine, 1.0, **moment) for machine in (HOME, "learner-1")), seed=seed)
    assert (outcome.violation, outcome.missed) == (None, [])
    assert outcome.faults == {"blackout": 2}
    assert {"learner/1#2", "recorder/0#2"} & set(outcome.lives)


def test_a_fault_of_a_disk_to_which_nobody_writes_has_not_happened() -> None:
    outcome = survive(FillDisk("learner-1", 0, 5.0, at=1.0), FillDisk(HOME, 1 << 20, 5.0, at=1.0))
    assert outcome.violation is None
    assert outcome.faults == {}
    assert len(outcome.missed) == 2


def unsynced(patch: pytest.MonkeyPatch) -> None:
    """Files are renamed before the disk has what is in them."""
    patch.setattr(SimulatedFile, "sync", lambda self: None)


def nameless(patch: pytest.MonkeyPatch) -> None:
    """The disk has a file, and not its name."""
    patch.setattr(Mount, "sync_folder", lambda self, path: None)


def unmarked(patch: pytest.MonkeyPatch) -> None:
    """The next life goes on in the line that was torn."""
    made = files.Growing
    patch.setattr(store, "Growing", lambda path, disk, **more: made(path, disk, bytes_max=None))


def uncounted(patch: pytest.MonkeyPatch) -> None:
    """A line that the disk did not take is said to be written."""
    write = files.Growing._write

    def broken(self: Any, file: Any) -> None:
        try:
            write(self, file)
        except OSError:
            self._pieces.popleft()
            self.written += 1

    patch.setattr(files.Growing, "_write", broken)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "faults", "told"),
    [
        (unsynced, (), "is not what was sent"),
        (nameless, (), "lost with the power"),
        pytest.param(
            unmarked,
            (FillDisk(HOME, 900, 1.0, at=2.0), Blackout(HOME, 0.5, at=2.5)),
            "does not end in the",
            marks=pytest.mark.soak,
        ),
        (uncounted, (BreakDisk(HOME, 1.0, 1.0, at=2.0),), "lines were written"),
    ],
)
def test_what_is_broken_is_caught(
    monkeypatch: pytest.MonkeyPatch, broken: Any, faults: tuple[Fault, ...], told: str
) -> None:
    with monkeypatch.context() as patch:
        broken(patch)
        violations = [violation for seed in range(6) if (violation := survive(*faults, seed=seed).violation)]
    assert any(told in violation for violation in violations), violations
    assert survive(*faults, seed=0).violation is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("keeps_power", [False, True])
@pytest.mark.parametrize("name", ["manifest.json", "recorder.state"])
def test_a_file_that_is_torn_where_it_lies_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, *, keeps_power: bool
) -> None:
    """The snapshot before it, and the lines that books are made of, take its place."""
    rename = Mount.rename
    monkeypatch.setattr(Mount, "beside", lambda self, path: path)
    monkeypatch.setattr(Mount, "rename", lambda self, path, to: None if path == to else rename(self, path, to))
    outcome = survive(DieAll(HOME, "in place", "write", name, 1.0, "", keeps_power, at=2.0))
    assert (outcome.violation, outcome.missed, outcome.outcome) == (None, [], "done")


@pytest.mark.slow
def test_a_users_test_may_fill_a_disk_and_read_what_is_left(world: Worlds) -> None:
    names: dict[str, Task] = {}
    exec(LINEAR, names)
    faults = [FillDisk(HOME, 200, 0.5, at=1.5), Blackout("learner-1", 0.5, at=2.0)]
    result = world.run("decoupled-diloco", task=names["task"], learners=2, steps=60, step_ms=50, faults=faults)
    assert result.faults == {"full disk": 1, "blackout": 1}
    assert result.slots[1].restarts == 1
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["learner"] for line in lines} == {0, 1}
    assert result.summary["lines_lost"] == 0
    assert list((result.folder / "snapshots" / "final").glob("*.safetensors"))
