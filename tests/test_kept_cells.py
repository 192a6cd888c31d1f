"""Kept cells say where they were made, by which code, and how far places are apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import kept_cells, place, tables
from tests.bench.kept_cells import UNKNOWN, KeptCells, spreads

PLACE = {"cpu": "a", "threads": 2, "python": "3", "jax": "1", "jaxlib": "1", "numpy": "2", "flags": "", "commit": "c"}


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the place of this process another one."""

    def make(cpu: str, code: dict[str, str] | None = None) -> str:
        here = {**PLACE, "cpu": cpu, "code": code or {}}
        monkeypatch.setattr(kept_cells, "place", lambda starts_hosts: here)
        return place.id_of(here)

    return make


def test_a_cell_is_kept_with_its_place_and_one_from_before_has_none(tmp_path: Path, at: Any) -> None:
    file, here = tmp_path / "cells.json", at("a")
    file.write_text(json.dumps({"old": {"loss": 1.0}}))
    cells = KeptCells(file)
    cells.keep("new", {"loss": 2.0})
    again = KeptCells(file)
    assert again == {"old": {"loss": 1.0}, "new": {"loss": 2.0}}
    assert [again.place_of(name) for name in again] == [UNKNOWN, here]
    assert again.places[here]["cpu"] == "a"
    assert list(tmp_path.iterdir()) == [file]


def test_cells_of_one_place_share_it_and_another_place_repeats_a_cell_beside_it(tmp_path: Path, at: Any) -> None:
    file, first = tmp_path / "cells.json", at("a")
    cells = KeptCells(file)
    cells.keep("x", {"loss": 1.0})
    cells.keep("y", {"loss": 2.0})
    assert list(json.loads(file.read_text())["places"]) == [first]
    second = at("b")
    other = KeptCells(file)
    other.repeat("x", {"loss": 1.25})
    other.repeat("z", {"loss": 3.0})
    found = KeptCells(file)
    assert (found["x"], found.repeats["x"]) == ({"loss": 1.0}, {second: {"loss": 1.25}})
    assert (found["z"], found.place_of("z")) == ({"loss": 3.0}, second)
    assert spreads(found, found.repeats, "loss") == {"x": 0.25}
    assert spreads(found, found.repeats, "nothing") == {}
    third = KeptCells(file)
    third.repeat("z", {"loss": 4.0})  # In its own place it is measured anew.
    assert (third["z"], "z" in third.repeats) == ({"loss": 4.0}, False)


def test_places_that_no_cell_is_of_any_more_are_left_out(tmp_path: Path, at: Any) -> None:
    file = tmp_path / "cells.json"
    at("a")
    KeptCells(file).keep("x", {"loss": 1.0})
    second = at("b")
    KeptCells(file).keep("x", {"loss": 2.0})
    assert list(json.loads(file.read_text())["places"]) == [second]


def test_cells_without_a_file_are_kept_in_memory_alone(at: Any) -> None:
    at("a")
    cells = KeptCells(None)
    cells.keep("x", {"loss": 1.0})
    assert cells == {"x": {"loss": 1.0}}


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ('"""Other words."""\n\n\ndef f(a):\n    "Too."\n    # A comment.\n    return (\n        a + 1)\n', False),
        ('"""Other words."""\n\n\ndef f(a):\n    "Too."\n    # A comment.\n    return a + 1\n', True),
        ("def f(a):\n    return a + 2\n", False),
        ("def f(a):\n    return 'x'\n", False),
        ("def f(a):\n  return a + 1\n", True),
    ],
)
def test_a_digest_is_of_what_code_does(other: str, is_equal: bool) -> None:
    assert (place.digest("def f(a):\n    return a + 1\n") == place.digest(other)) is is_equal


def test_a_string_that_something_is_done_with_is_no_docstring() -> None:
    assert place.digest('"a b".split()\n') != place.digest('"a c".split()\n')
    assert place.digest('x = 1\n"""About x."""\n') == place.digest("x = 1\n")


@pytest.mark.further
def test_a_place_says_the_modules_that_are_loaded_and_those_of_hosts_where_a_bench_starts_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "commit", lambda: "c")
    alone, hosts = place.place()["code"], place.place(starts_hosts=True)["code"]
    assert alone["tests/bench/tables.py"] == place.digest(Path(tables.__file__).read_text())
    assert not {"tests/bench/place.py", "tests/bench/kept_cells.py"} & set(hosts)
    assert not any(file.startswith((".venv", "/")) for file in hosts)
    assert alone.items() <= hosts.items()
    assert "runtime/cores/scheduler_core.py" in hosts
    assert place.changed_since(hosts) == []
    assert place.changed_since({"a.py": "1", "b.py": "2"}, {"a.py": "1"}.get) == ["b.py"]


def test_the_list_tells_cells_without_a_place_and_those_whose_code_has_changed(tmp_path: Path, at: Any) -> None:
    file = tmp_path / "cells.json"
    file.write_text(json.dumps({"old": {"loss": 1.0}}))
    at("a", {"tests/bench/tables.py": "other"})
    KeptCells(file).keep("new", {"loss": 2.0})
    cells = KeptCells(file)
    found = tables.standing(cells, "loss")
    assert found["without_place"] == ["old"]
    assert found["changed"] == {"new": ["tests/bench/tables.py"]}
    assert [line for line in tables.shown("carry", cells, found) if "tables.py" in line] != []


def test_every_file_of_cells_has_its_table() -> None:
    files = {path.stem for path in tables.HERE.glob("*.json")} - {"kept"}
    assert files == set(tables.TABLES)
