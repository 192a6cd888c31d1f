"""The programs of the documentation; what its pages tell readers to type is in `test_documents`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

from isthmus.programs.job import Job
from isthmus.runtime.clock import milliseconds
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.graph.verify import verify
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.world import World
from tests.command_line import app
from tests.effort import soaked
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ISTHMUS = Path(sys.executable).with_name("isthmus")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples, in which commands are typed."""
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


def typed(*arguments: str) -> Result:
    """`isthmus` with arguments, in this process."""
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, prog_name="isthmus")


def call(here: Path, *command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [
        ("gossip.py:build", "--transport", "inproc"),
        soaked(("gossip.py:build",)),
        soaked(()),
        soaked(("ring.py:build",)),
    ],
)
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
    finals = [load_file(path) for path in (here / "run" / "snapshots" / "final").glob("*.safetensors")]
    assert {name for tensors in finals for name in tensors} == {"w", "b"}
    if program:
        assert summary["tokens_pending"] == summary["tokens_total"]
        assert summary["outer_steps"] == summary["contributors_mean"] == 0


@pytest.mark.soak
def test_the_command_trains_a_task_that_brings_its_step(here: Path) -> None:
    command = [ISTHMUS, "train", "--task", "batch_norm.py:task", "--learners", 2, "--tokens", 300_000]
    done = call(here, *command, "--run-dir", here / "run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["eval_loss_final"] < 0.7 * summary["eval_loss_initial"]
    assert min(summary["metrics"]["accuracy"], summary["eval_metrics"]["accuracy"]) > 0.7
    assert f"eval accuracy {summary['eval_metrics']['accuracy']:.3f}" in done.stdout
    finals = [load_file(path) for path in (here / "run" / "snapshots" / "final").glob("*.safetensors")]
    assert {name for tensors in finals for name in tensors} >= {"params/hidden", "stats/mean", "stats/variance"}
    assert not any("average" in name or "moments" in name for tensors in finals for name in tensors)
    refused = call(here, ISTHMUS, "train", "data-parallel", "--task", "batch_norm.py:task")
    assert refused.returncode == 2
    assert "a step of its own" in refused.stderr


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["gossip", "ring", "pipeline", "early_stop", "parameter_server", "actor_learner"])
def test_the_command_shows_the_graph_of_every_example(name: str) -> None:
    done = typed("graph", f"{name}.py:build", "--format", "json")
    assert done.exit_code == 0, done.stderr
    shape = json.loads(done.stdout)
    proofs = {node["name"]: node["free_running"] for node in shape["nodes"]}
    assert proofs.get("inner-step", False) == (name in ("gossip", "early_stop"))


def test_a_graph_of_ones_own_takes_twelve_lines(here: Path) -> None:
    lines = (here / "gossip.py").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("def build"))
    last = next(number for number, line in enumerate(lines) if line.strip() == "return graph")
    assert last - first + 1 <= 12
    assert all(line.strip() for line in lines[first : last + 1])


def test_gossip_that_waits_for_its_neighbour_is_refused_with_the_chain(here: Path) -> None:
    text = (here / "gossip.py").read_text()
    text = text.replace("neighbour=None", "neighbour").replace(
        'mean["neighbour"], Latest()', 'mean["neighbour"], Queue(capacity=1, initial=(0,))'
    )
    (here / "gossip.py").write_text(text)
    done = typed("train", "gossip.py:build", "--task", "mine.py:task")
    assert done.exit_code == 2
    assert "inner-step" in done.stderr
    assert "average" in done.stderr
    assert "never_waits" in done.stderr
    assert not (here / "runs").exists()


def test_a_program_that_declares_no_reports_is_not_trained(here: Path) -> None:
    text = (here / "pipeline.py").read_text().replace('    graph.train(reports=second["progress"])\n', "")
    (here / "pipeline.py").write_text(text)
    done = typed("train", "pipeline.py:build")
    assert done.exit_code == 2
    assert "graph.train(reports=" in done.stderr
    assert not (here / "runs").exists()


@pytest.mark.soak
def test_actors_and_one_learner_train_in_processes(here: Path) -> None:
    told = ["--task", "mine.py:task", "--tokens", 60_000, "--set", "program.actors=2"]
    done = call(here, ISTHMUS, "train", "actor_learner.py:build", *told, "--run-dir", here / "run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["outcome"] == "done"
    assert summary["eval_loss_final"] < 0.7 * summary["eval_loss_initial"]
    assert summary["tokens_total"] >= 60_000
    assert list((here / "run" / "snapshots" / "final").glob("*.safetensors"))


@pytest.mark.long
def test_a_program_that_asks_for_the_end_is_stopped_in_this_process(here: Path) -> None:
    told = ["--task", "mine.py:task", "--learners", 2, "--tokens", 100_000_000, "--set", "program.below=100.0"]
    done = call(
        here, ISTHMUS, "train", "early_stop.py:build", *told, "--run-dir", here / "run", "--transport", "inproc"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["outcome"] == "stopped"
    assert summary["tokens_total"] < 100_000_000


def test_the_pipeline_keeps_both_stages_busy_and_learns(here: Path) -> None:
    names: dict[str, object] = {"__name__": "pipeline"}
    exec((here / "pipeline.py").read_text(), names)
    job = Job("pipeline.py:build", Reference("none:task"), (), 1, 1)
    graph = names["build"](job)  # type: ignore[operator]
    verify(graph.freeze())
    world = World(
        lower(graph.freeze()),
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
