"""What is said of those who are left when a host is away is as the graph has it, for every shipped program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.results.absences import Waiting, waiting_in, waiting_of
from tests.command_line import app
from tests.shipped import SETS

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
EXPECTED = {
    "decoupled-diloco": Waiting("go on", False),
    "regional-diloco": Waiting("go on", False),
    "dipaco": Waiting("go on", False),
    "streaming-diloco": Waiting("wait for rounds", True),
    "diloco": Waiting("wait for rounds", True),
    "elastic-data-parallel": Waiting("wait for rounds", True),
    "data-parallel": Waiting("wait", False),
}


def graph_of(program: str, *more: str) -> dict[str, Any]:
    """The graph of a program as graph.json has it."""
    result = CliRunner().invoke(app, ["graph", program, *more, "--format", "json"])
    assert result.exit_code == 0, result.output
    graph: dict[str, Any] = json.loads(result.stdout)
    return graph


def test_every_shipped_program_is_expected_here() -> None:
    assert EXPECTED.keys() == SHIPPED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(EXPECTED))
def test_the_shipped_programs(program: str) -> None:
    sets = [part for each in SETS.get(program, ()) for part in ("--set", each)]
    assert waiting_in(graph_of(program, *sets)) == EXPECTED[program]


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples' folder is the current one; imports and environment are undone."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(reference, "_loaded", {})
    yield
    for name in ("gossip", "ring", "mine"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(("file", "expected"), [("gossip", Waiting("go on", False)), ("ring", Waiting("wait", False))])
def test_the_examples(file: str, expected: Waiting) -> None:
    assert waiting_in(graph_of(f"{file}.py:build", "--task", "mine.py:task")) == expected


def node(name: str, role: str, *blocked_by: str, mode: str = "waiting", firing: str = "AllOf(item)") -> dict[str, Any]:
    return {"name": name, "role": role, "mode": mode, "firing": firing, "blocked_by": list(blocked_by)}


def test_a_node_of_a_learner_that_may_block_is_no_other_learner() -> None:
    nodes = [node("step", "learner", "disk"), node("disk", "learner", mode="may-block")]
    assert waiting_in({"nodes": nodes}) == Waiting("go on", False)


def test_what_a_free_running_step_does_counts_though_nodes_beside_it_wait() -> None:
    nodes = [node("step", "learner", mode="free-running"), node("log", "learner", "merge"), node("merge", "syncer")]
    assert waiting_in({"nodes": nodes}) == Waiting("go on", False)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"nodes": 3}', '{"nodes": [3]}'])
def test_without_a_graph_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "graph.json").write_text(text)
    assert waiting_of(tmp_path) is None


def test_a_graph_with_names_that_are_none_says_what_it_can() -> None:
    nodes = [node("step", "learner", "odd"), {"name": [], "role": "syncer"}, {"name": "odd", "role": []}]
    assert waiting_in({"nodes": nodes}) == Waiting("go on", False)
