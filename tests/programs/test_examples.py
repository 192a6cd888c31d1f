"""The programs of the documentation, as their readers run them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isthmus.runtime.clock import milliseconds
from isthmus.runtime.graph import Job, Reference
from isthmus.runtime.ids import Replica
from isthmus.runtime.lowering import lower
from isthmus.runtime.sim import World
from isthmus.runtime.store import read_tensors
from isthmus.runtime.verify import verify

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ISTHMUS = Path(sys.executable).with_name("isthmus")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


def call(here: Path, *command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=110, check=False)


def test_mine_py_is_a_script(here: Path) -> None:
    text = (here / "mine.py").read_text().replace("1_000_000", "100_000")
    (here / "mine.py").write_text(text)
    done = call(here, sys.executable, "mine.py")
    assert done.returncode == 0, done.stderr
    loss, goodput = (float(word) for word in done.stdout.splitlines()[-1].split())
    assert loss < 20  # About 60 at the start; how far it comes depends on the clock.
    assert 0 <= goodput <= 1  # A run this short may be over before anything of a learner is merged.


@pytest.mark.parametrize("program", [(), ("gossip.py:build",), ("ring.py:build",)])
def test_the_command_trains_a_task_of_the_users_own(here: Path, program: tuple[str, ...]) -> None:
    command = [ISTHMUS, "train", *program, "--task", "mine.py:task", "--learners", 3, "--tokens", 60_000]
    done = call(here, *command, "--run-dir", here / "run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["outcome"] == "done"
    first = json.loads((here / "run" / "evaluations.jsonl").read_text().splitlines()[0])
    assert (first["kind"], first["tokens"], first["eval_loss"]) == ("initial", 0, summary["eval_loss_initial"])
    assert summary["eval_loss_final"] < 0.7 * summary["eval_loss_initial"]
    assert summary["tokens_total"] >= 60_000
    finals = [read_tensors(path) for path in (here / "run" / "snapshots" / "final").glob("*.safetensors")]
    assert {name for tensors in finals for name in tensors} == {"w", "b"}
    if program:
        assert summary["tokens_pending"] == summary["tokens_total"]
        assert summary["outer_steps"] == summary["contributors_mean"] == 0


@pytest.mark.parametrize("program", ["gossip.py:build", "ring.py:build", "pipeline.py:build"])
def test_the_command_shows_the_graph_of_every_example(here: Path, program: str) -> None:
    done = call(here, ISTHMUS, "graph", program, "--format", "json")
    assert done.returncode == 0, done.stderr
    shape = json.loads(done.stdout)
    proofs = {node["name"]: node["free_running"] for node in shape["nodes"]}
    assert proofs.get("inner-step", False) == (program == "gossip.py:build")


def test_gossip_that_waits_for_its_neighbour_is_refused_with_the_chain(here: Path) -> None:
    text = (here / "gossip.py").read_text()
    text = text.replace("neighbour=None", "neighbour").replace(
        'mean["neighbour"], Latest()', 'mean["neighbour"], Queue(capacity=1, initial=(0,))'
    )
    (here / "gossip.py").write_text(text)
    done = call(here, ISTHMUS, "train", "gossip.py:build", "--task", "mine.py:task")
    assert done.returncode == 2
    assert "inner-step" in done.stderr
    assert "average" in done.stderr
    assert "free" in done.stderr
    assert not (here / "runs").exists()


def test_a_program_that_reports_no_progress_is_not_trained(here: Path) -> None:
    done = call(here, ISTHMUS, "train", "pipeline.py:build")
    assert done.returncode == 2
    assert "`progress`" in done.stderr
    assert not (here / "runs").exists()


def test_the_users_own_test_passes_with_the_world_fixture(here: Path) -> None:
    done = call(here, sys.executable, "-m", "pytest", "-q", "test_mine.py", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pipeline_keeps_both_stages_busy_and_learns(here: Path) -> None:
    names: dict[str, object] = {"__name__": "pipeline"}
    exec((here / "pipeline.py").read_text(), names)
    job = Job("pipeline.py:build", Reference("none:task"), (), 1, 1)
    graph = names["build"](job)  # type: ignore[operator]
    verify(graph)
    world = World(
        lower(graph),
        {"front": 1, "back": 1},
        seed=0,
        resolve=lambda reference: reference,
        duration=lambda replica, node: milliseconds(2),
        delay=lambda edge, size_bytes: milliseconds(1),
    )
    world.run(lambda: world.clock.now() > milliseconds(1500), seconds_max=2.0)
    firings = [world.hosts[Replica(role, 0)].scheduler.statistics()["firings"] for role in ("front", "back")]
    # Three under way in a cycle of 6 ms: both stages fire every 2 ms. With one, they would fire 250 times.
    assert min(firings) > 700
    second = world.hosts[Replica("back", 0)].bodies[1]
    first = world.hosts[Replica("front", 0)].bodies[0]
    x = np.random.default_rng(1).normal(size=(100, 8))
    error = x @ first.weights @ second.weights - x.sum(1, keepdims=True)
    assert float(np.mean(error**2)) < 0.1
