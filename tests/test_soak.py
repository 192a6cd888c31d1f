"""`make soak`: which parts there are, what is recorded of each, and what is left; with small parts in their place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs import DEFAULT
from tests import soak
from tests.patience import PATIENCE
from tests.soak import Found, Part, Search

GOOD: dict[str, Any] = {"seeds": 2, "failures": [], "phases": {}, "guards": {}, "too_rare": []}


def simulated(name: str, **more: Any) -> Part:
    """A part whose command says so of its seeds, and that it was carried out."""
    text = json.dumps({**GOOD, **more})
    code = f"open('done.txt', 'a').write('{name} '); print({text!r}); raise SystemExit({int(bool(more))})"
    return Part(name, name.partition("-")[0], (sys.executable, "-c", code), read=soak._simulated)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    return tmp_path


def done(folder: Path) -> list[str]:
    return (folder / "done.txt").read_text().split()


# -- which parts there are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_long", [False, True])
def test_seeds_of_a_search_are_tried_once_each_and_names_are_of_one_part(is_long: bool) -> None:
    every = soak.parts(is_long=is_long)
    assert len({part.name for part in every}) == len(every)
    for name, search in soak.SEARCHES.items():
        tried = list[int]()
        for part in every:
            if part.kind == name:
                words = part.command
                first, many = (int(words[words.index(option) + 1]) for option in ("--seed", "--seeds"))
                assert part.name == f"{name}-{first}"
                assert set(search.options) <= set(words)
                tried += range(first, first + many)
        assert tried == list(range(search.seeds_long if is_long else search.seeds))
    assert sum(part.kind == "kills" for part in every) * soak.KILLS_IN_PART == (200 if is_long else 50)
    assert sum(part.kind == "changed" for part in every) * soak.CHANGES_IN_PART == soak.CHANGES == 50


def test_every_test_of_the_soak_and_every_mutant_is_in_one_part() -> None:
    from tests.programs.wings.simulation.mutants import MUTANTS

    every = soak.parts()
    named = [word for part in every if part.kind == "mutants" for word in part.command[3:]]
    assert sorted(named) == sorted(broken.__name__ for broken, _ in MUTANTS)
    files = [word for part in every if part.kind == "soak" for word in part.command if word.endswith(".py")]
    assert "tests/programs/engine/machine/test_daemon.py" in files
    assert len(set(files)) == len(files)
    examples = [part for part in every if part.kind == "examples"]
    assert all(part.environment == {"TESTS_EFFORT": "100"} for part in examples)
    tried = {word for part in examples for word in part.command if word.endswith(".py")}
    assert {"tests/runtime/cores/test_quorum_model.py", "tests/test_soak.py"} <= tried


def test_a_longer_soak_begins_with_the_parts_of_the_shorter_one() -> None:
    short, long = soak.parts(), soak.parts(is_long=True)
    assert {part.name: part.command for part in short}.items() <= {part.name: part.command for part in long}.items()


def test_other_code_has_another_file_and_what_python_made_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in soak.CODE:
        (tmp_path / name / "__pycache__").mkdir(parents=True)
        (tmp_path / name / "core.py").write_text("x = 1\n")
    before = soak.state_file(tmp_path)
    assert before.is_relative_to(tmp_path / "state")
    (tmp_path / "ops" / "__pycache__" / "core.pyc").write_text("y")
    (tmp_path / "tests").mkdir()
    assert soak.state_file(tmp_path) == before
    (tmp_path / "ops" / "core.py").write_text("x = 2\n")
    assert soak.state_file(tmp_path) != before


# -- what is recorded --------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_what_is_left_is_carried_out_and_what_was_found_stays(there: Path) -> None:
    bad = {"failures": [{"seed": 4, "violation": "all is lost", "command": "isthmus simulate world --seed 4"}]}
    every = [simulated("world-0"), simulated("world-2", **bad), simulated("deaths-0")]
    file = there / "state" / "of.json"
    assert not soak.soak(every[:2], file)
    found = soak.recorded(file)
    assert (found["world-0"].status, found["world-0"].seeds, found["world-0"].is_good) == (0, 2, True)
    assert (found["world-2"].status, list(found["world-2"].violations)) == (1, ["4"])
    assert not soak.soak(every, file)
    assert done(there) == ["world-0", "world-2", "deaths-0"]
    every[1] = simulated("world-2")
    assert soak.soak(every, file, ["world"])
    assert done(there)[3:] == ["world-0", "world-2"]
    with pytest.raises(ValueError, match="worlds"):
        soak.soak(every, file, ["worlds"])


@pytest.mark.process
def test_a_part_that_says_nothing_has_failed_and_a_file_without_its_tests_has_not(there: Path) -> None:
    silent = Part("world-0", "world", (sys.executable, "-c", ""), read=soak._simulated)
    refused = Part("soak-a", "soak", (sys.executable, "-c", "raise SystemExit(2)"))
    empty = Part("soak-b", "soak", (sys.executable, "-c", "raise SystemExit(5)", "pytest"))
    file = there / "of.json"
    assert not soak.soak([silent, refused, empty], file)
    assert {name: each.status for name, each in soak.recorded(file).items()} == {
        "world-0": 1,
        "soak-a": 2,
        "soak-b": 0,
    }


def test_runs_with_kills_are_read() -> None:
    runs = [{"seed": 7, "wrong": ["a", "b"]}, {"seed": 8, "wrong": []}]
    assert soak._killed(json.dumps(runs)) == {"seeds": 2, "violations": {"7": "a; b"}}


def test_what_is_rare_is_asked_of_all_seeds_of_a_search_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SEARCHES", {"deaths": Search(("--deaths",), 4, 8, 2, 2)})
    from isthmus.programs.wings.simulation.searches import DEATH_KINDS

    once = {kind: {"stepping": 1} for kind in DEATH_KINDS}
    found = {"deaths-0": Found(0, 1.0, seeds=2, phases=once)}
    assert soak.too_rare(found, is_long=False) is None
    found["deaths-2"] = Found(0, 1.0, seeds=2, phases={**once, DEATH_KINDS[0]: {"final": 0}})
    rare = soak.too_rare(found, is_long=False)
    assert rare is not None
    assert len(rare) == 1
    assert rare[0].startswith(DEATH_KINDS[0])


def test_a_guard_may_fire_in_any_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SEARCHES", {"world": Search((), 2, 2, 2, 500), "dipaco": Search((), 2, 2, 2)})
    from isthmus.programs.wings.simulation.invariants_model import guards_of

    first, *others = guards_of(DEFAULT)
    found = {"world-0": Found(0, 1.0, seeds=2, guards=dict.fromkeys(others, 1))}
    assert soak.too_rare(found, is_long=False) is None
    found["dipaco-0"] = Found(0, 1.0, seeds=2)
    assert soak.too_rare(found, is_long=False) == [f"guard {first!r} never fired"]
    found["dipaco-0"] = Found(0, 1.0, seeds=2, guards={first: 1})
    assert soak.too_rare(found, is_long=False) == []


@pytest.mark.process
def test_a_soak_that_is_ended_loses_the_part_under_way_and_ends_it(there: Path) -> None:
    waits = (
        "import os, signal; open('pid.part', 'w').write(str(os.getpid())); os.rename('pid.part', 'pid'); signal.pause()"
    )
    script = f"""
import sys
from pathlib import Path
from isthmus.programs import DEFAULT
from tests import soak
soak.ROOT = Path({str(there)!r})
soak.parts = lambda is_long: [
    soak.Part("world-0", "world", (sys.executable, "-c", "")),
    soak.Part("world-1", "world", (sys.executable, "-c", {waits!r})),
]
sys.exit(soak.main([]))
"""
    environment = os.environ | {"XDG_STATE_HOME": str(there / "state")}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + PATIENCE
    while not (there / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "1 of world" in told
    assert not Path("/proc", (there / "pid").read_text()).exists()
    (file,) = (there / "state" / "isthmus" / "soak").glob("*.json")
    assert list(soak.recorded(file)) == ["world-0"]
