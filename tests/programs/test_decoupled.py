"""Decoupled DiLoCo's builder: its defaults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from isthmus import Program
from isthmus.programs.sweeps import OUTER_DECOUPLED, outer_default
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.patience import PATIENCE
from tests.programs.family import ADAM


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [(0.5, (0.7, 0.0)), (14.9, (0.7, 0.0)), (15, (0.7, 0.3)), (59.9, (0.7, 0.3)), (60, (0.4, 0.7)), (83, (0.4, 0.7))],
)
def test_settings_follow_the_number_of_sweeps(sweeps: float, expected: tuple[float, float]) -> None:
    assert outer_default(sweeps, OUTER_DECOUPLED) == expected


@pytest.mark.process
def test_building_the_graph_needs_neither_jax_nor_numba() -> None:
    script = """
import sys
from isthmus.programs.decoupled import build
from isthmus.programs.job import Job, TensorSpec
from isthmus.runtime.graph.template import Reference
build(Job("decoupled-diloco", Reference("a:b"), (TensorSpec("w", (8, 8), "float32"),), 64, 10_000, 2))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "numba", "optax"}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.further
@pytest.mark.slow
def test_tensors_are_cut_where_there_are_more_fragments_than_units(world: Worlds) -> None:
    settings = {"fragments": 20, "shards": 7, "interval": 20}
    result = world.run(Program("decoupled-diloco", **settings), task=ADAM, learners=2, steps=40, jitter=0.0)
    assert result.summary["books"]["differences"] == []
    assert (result.summary["fragments"], result.summary["syncer_shards"]) == (20, 7)
    assert result.summary["tokens_lost"] == 0
    assert result.eval_loss < result.summary["eval_loss_initial"]
