"""What a launch refuses whatever its engine, and whether the remedy can be followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.programs.wings.launch import launching
from isthmus.programs.wings.launch.engine import LaunchedMachine, LaunchState
from isthmus.programs.wings.launch.launch_file import LaunchTable
from isthmus.programs.wings.launch.slurm import ENGINE
from isthmus.runtime.errors import ConfigError
from tests.programs.wings.launch.launch_request import launched, request

There = Callable[[LaunchState], None]
HOME = LaunchedMachine("home", "5", "RUNNING", "n0")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    """Sets what the engine has."""
    monkeypatch.setattr(type(ENGINE), "faults", lambda self, request, folder: iter(()))
    return lambda state: monkeypatch.setattr(type(ENGINE), "state", lambda self, launch: state)


@pytest.mark.parametrize("engine", ["slurm", "ray", "kubernetes"])
def test_a_home_goes_on_with_other_files_where_that_is_asked_for(engine: str) -> None:
    for accepts in (False, True):
        table = LaunchTable(image="there/isthmus" if engine == "kubernetes" else "")
        shown = launching.show(engine, request(accepts_changes=accepts, table=table), None)
        assert ("--resume-or-start --accept-changes --until-over" in shown) == accepts
        assert "--resume-or-start" in shown


def test_down_is_the_remedy_unless_it_was_submitted_by_hand(there: There, tmp_path: Path) -> None:
    there(LaunchState([HOME]))
    launched(tmp_path / "here")
    with pytest.raises(ConfigError, match=r"found home \(5\)\.\n.*End it first: isthmus launch down --to .*here"):
        launching.launch("slurm", request(sections={}), tmp_path / "here")
    with pytest.raises(ConfigError, match="It was submitted by hand") as refused:
        launching.launch("slurm", request(), tmp_path / "printed")
    assert "isthmus launch down" not in str(refused.value)
    assert not (tmp_path / "printed").exists()


def test_a_run_that_is_done_is_scaled_by_no_launch_of_its_file(there: There, tmp_path: Path) -> None:
    note = launched(tmp_path / "here")
    there(LaunchState(outcome="done"))
    with pytest.raises(ConfigError, match=r"one that is done\.\n.*another folder, --to"):
        launching.scale(note, 3)
    there(LaunchState(outcome="interrupted"))
    with pytest.raises(ConfigError, match=r"one that is interrupted\.\n.*isthmus launch slurm FILE --islands 3"):
        launching.scale(note, 3)


@pytest.mark.parametrize(
    ("former", "asked", "said"),
    [
        ({"batch": 8}, {"batch": 4}, "expected task.batch = 8, as the run .* found 4"),
        ({}, {"batch": 4}, "expected nothing about task.batch, as the run .* found 4"),
        ({"batch": 8}, {}, "expected task.batch = 8, as the run .* found nothing about it"),
    ],
)
def test_what_was_asked_for_otherwise_is_named(
    there: There, tmp_path: Path, former: dict[str, int], asked: dict[str, int], said: str
) -> None:
    there(LaunchState(outcome="interrupted"))
    launched(tmp_path / "here", **former)
    with pytest.raises(ConfigError, match=said):
        launching.launch("slurm", request(sections={"task": asked}), tmp_path / "here")


def test_a_home_without_a_node_waits_also_for_its_next_life() -> None:
    waiting = LaunchedMachine("home", "5", "PENDING")
    phases = [
        LaunchState(machines, outcome).phase
        for machines in ((), (waiting,), (HOME,))
        for outcome in ("", "interrupted", "done")
    ]
    assert phases == ["", "interrupted", "done", "waiting", "waiting", "done", "running", "running", "done"]
