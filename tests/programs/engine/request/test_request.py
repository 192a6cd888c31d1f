"""A request is verified whole before anything starts, and what is wrong with it is told together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optax
import pytest

from isthmus import Program, Task
from isthmus.programs import settings
from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.programs.engine.cluster.placing import placed
from isthmus.programs.engine.request import new_folder, new_spec, reference
from isthmus.programs.engine.request import request as request_module
from isthmus.programs.engine.request.environment import prepare_environment
from isthmus.programs.engine.request.request import NAMELESS_TASK, Request, prepare
from isthmus.programs.job import TensorSpec
from isthmus.runtime.errors import ConfigError, GraphError
from isthmus.runtime.ids import LEARNERS_MAX
from isthmus.runtime.system.processes import XLA_FLAGS
from tests.effort import soaked

RING = """
from isthmus.runtime.graph.template import Graph, Latest, Queue

def step(own, neighbour=None):
    return own

def build(job, *, interval: int = 24, blocks: bool = False):
    graph = Graph("ring")
    learner = graph.role("learner", replicas=(2, 8))
    node = learner.node("step", step, never_waits=True)
    graph.edge(node["result"], node["own"], Queue(capacity=interval, initial=(1,)))
    policy = Queue(capacity=1) if blocks else Latest()
    graph.edge(node["result"], node["neighbour"], policy, to=learner.next)
    return graph
"""

MINE = """
import jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}
def loss(params, batch): return jnp.mean((batch @ params["w"] + params["b"]) ** 2)
def batch(at): return at.rng().normal(size=(8, 4)).astype(np.float32)

task = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))
several = Task(init, lambda params, batch: batch @ params["w"], batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with ring.py and mine.py; imports and environment are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(reference, "_loaded", {})
    (tmp_path / "ring.py").write_text(RING)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path
    for name in ("ring", "mine"):
        sys.modules.pop(name, None)


def ring(task: Any = "mine.py:task", **changed: Any) -> Request:
    program = changed.pop("program", Program("ring.py:build"))
    return prepare(program, task, **changed)


def refusal(**changed: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        ring(**changed)
    return caught.value


def test_a_request_is_everything_that_a_run_needs(folder: Path) -> None:
    request = ring(program=Program("ring.py:build", interval=5), run={"learners": 3, "tokens": 1000, "seed": 7})
    job = request.job
    assert (job.program, job.task.text) == (f"{folder}/ring.py:build", f"{folder}/mine.py:task")
    assert (job.learners, job.tokens, job.seed, job.slots_max, job.tokens_per_batch) == (3, 1000, 7, 16, 8)
    assert job.settings == {"interval": 5, "blocks": False}
    assert job.layout == (TensorSpec("b", (2,), "float32", "rda"), TensorSpec("w", (4, 2), "float32", "rda"))
    assert request.program.name == "ring"
    assert isinstance(request.task, Task)
    assert reference.resolve(job.task) is request.task
    assert [role.name for role in request.graph.roles] == ["learner", "recorder"]
    assert request.proof["step"].free_running
    assert set(request.plans) == {"learner", "recorder"}
    assert len(request.fingerprint) == 32


def test_preparing_writes_nothing(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    request = ring()
    assert request.run_dir.parent == folder / "runs"
    assert request.run_dir.name.startswith("ring-2")
    assert sorted(folder.rglob("*")) == before


def test_the_shipped_task_names_itself_in_full(folder: Path) -> None:
    (folder / "text").write_bytes(bytes(range(256)) * 40)
    request = prepare(task_settings={"layers": 1, "width": 16, "heads": 2, "context": 8, "data": ["text"]})
    assert request.config["task"]["data"] == (f"{folder}/text",)
    text = request.job.task.text
    assert text.startswith("isthmus.programs.language_model:task(layers = 1, width = 16, ")
    again = reference.load(text, "Testing")
    assert again.tokens_per_batch == request.task.tokens_per_batch == 64
    assert len(request.job.layout) == 12


def test_the_resolved_configuration_makes_the_same_request_again(folder: Path) -> None:
    first = ring(program=Program("ring.py:build", interval=5), run={"learners": 3, "tokens": 1000})
    config = settings.tomllib.loads(settings.document(first.config))
    run = dict(config["run"])
    assert run == {
        "program": f"{folder}/ring.py:build",
        "task": f"{folder}/mine.py:task",
        "tokens": 1000,
        "seed": 0,
        "learners": 3,
        "slots_max": 16,
        "local_batch": "same",
        "evaluate_on": "cpu",
        "evaluate": "all",
        "evaluate_share": 0.1,
        "snapshot_every_seconds": 15.0,
        "moments_every": 0.0,
        "keep_to_go_on": True,
        "spare": True,
        "tape_bytes": 64 << 20,
        "shared_memory": True,
        "home_away_seconds": 600.0,
        "loop_idle_seconds": 1800.0,
        "first_beat_seconds": 60.0,
        "silent_seconds": 20.0,
        "stuck_seconds": 14.0,
        "end_seconds": 10.0,
        "loop_over_seconds": 60.0,
        "rank_seconds": 600.0,
        "devices_min": 0,
    }
    assert config["program"] == {"interval": 5, "blocks": False}
    second = prepare(Program(run.pop("program"), **config["program"]), run.pop("task"), run=run)
    assert second.fingerprint == first.fingerprint
    assert second.config == first.config


def init(key: Any) -> Any:
    return {"w": np.zeros((4, 2), np.float32)}


def loss(params: Any, batch: Any) -> Any:
    return (batch @ params["w"]).mean()


def batch(at: Any) -> Any:
    return at.rng().normal(size=(8, 4)).astype(np.float32)


named = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))


def test_a_task_may_be_an_object(folder: Path) -> None:
    request = ring(task=named)
    assert request.job.task.text == f"{Path(__file__).resolve()}:named"
    assert reference.resolve(request.job.task) is named
    nameless = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))
    request = ring(task=nameless)
    assert request.job.task.text == NAMELESS_TASK
    assert reference.resolve(request.job.task) is nameless


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_faults_of_all_parts_are_told_together(folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old" / "summary.json").write_text("{}")
    error = refusal(
        program=Program("ring.py:build", intervall=3, blocks=1),
        task="mine.py:tusk",
        run={"learners": "many", "token": 3},
        run_dir="old",
    )
    assert [fault.action for fault in error.faults] == [
        "Reading run.token",
        "Reading run.learners",
        "Reading program.intervall",
        "Reading program.blocks",
        f"Loading the task '{folder}/mine.py:tusk'",
        f"Choosing the run folder {folder}/old",
    ]


@pytest.mark.parametrize(
    ("run", "expected", "found"),
    [
        ({"learners": 0}, "from 1 to 16", "0"),
        ({"learners": -1}, "from 1 to 16", "-1"),
        ({"learners": 17}, "from 1 to 16", "17"),
        ({"tokens": 0}, "at least 1", "0"),
        ({"tokens": -5}, "at least 1", "-5"),
        ({"seed": -1}, "from 0 to 9223372036854775807", "-1"),
        ({"slots_max": 0, "learners": 1}, f"from 1 to {LEARNERS_MAX}, LEARNERS_MAX", "0"),
        ({"slots_max": LEARNERS_MAX + 1}, f"from 1 to {LEARNERS_MAX}, LEARNERS_MAX", f"{LEARNERS_MAX + 1}"),
        ({"learners": LEARNERS_MAX + 1}, f"at most {LEARNERS_MAX} learners, LEARNERS_MAX", f"{LEARNERS_MAX + 1}"),
        ({"slots_max": 3}, "from 1 to 3", "4"),
        ({"learners": 1}, "from 2 to 8 learners, the replicas of role 'learner'", "1"),
        ({"learners": 9}, "from 2 to 8 learners, the replicas of role 'learner'", "9"),
    ],
)
def test_values_out_of_range(folder: Path, run: dict[str, int], expected: str, found: str) -> None:
    (fault,) = refusal(run=run).faults
    assert (fault.expected, fault.found) == (expected, found)


@pytest.mark.parametrize(
    ("bound", "value", "expected", "found"),
    [
        ("HOSTS_MAX", 8, "at most 8 hosts, HOSTS_MAX", "up to 9"),
        ("PEERS_MAX", 7, "at most 7 peers, PEERS_MAX", "up to 8"),
    ],
)
def test_hosts_and_peers_have_a_bound(folder: Path, bound: str, value: int, expected: str, found: str) -> None:
    """Of 8 learners in a ring and a recorder."""
    with mock.patch.object(request_module, bound, value + 1):
        ring()
    with mock.patch.object(request_module, bound, value):
        (fault,) = refusal().faults
    assert (fault.expected, fault.found) == (expected, found)


def test_a_run_may_have_as_many_learners_as_the_bound_says(folder: Path) -> None:
    run = {"learners": LEARNERS_MAX, "slots_max": LEARNERS_MAX}
    job = prepare("decoupled-diloco", "mine.py:task", run=run).job
    assert (job.learners, job.slots_max) == (LEARNERS_MAX, LEARNERS_MAX)


def test_a_run_of_a_cluster_may_begin_with_no_learner(folder: Path) -> None:
    request = prepare("decoupled-diloco", "mine.py:task", run={"learners": 0}, has_cluster=True)
    run_spec = new_spec.of(request.to_train(), zero_ns=0, cpu_seconds=0.0)
    assert (run_spec["roles"]["learner"], run_spec["most"]["learner"]) == (0, 16)
    assert request.job.learners == 1  # What the first merge waits for.
    assert request.run.section()["learners"] == 0
    topology = Topology((Machine("alpha", address="tcp://127.0.0.1:7400"),))
    assert {replica.role for replica in placed(request, topology).machines} == {"syncer", "evaluator", "recorder"}
    (fault,) = refusal(program="data-parallel", run={"learners": 0}, has_cluster=True).faults
    assert (fault.expected, fault.found) == ("1 or more, because none may join 'data-parallel'", "0")


def test_settings_of_the_shipped_task_beside_another_one(folder: Path) -> None:
    (fault,) = refusal(task_settings={"layers": 2, "data": ["x"]}).faults
    assert fault.found == "task.layers, task.data"
    assert "--task" in fault.remedy


def test_a_task_that_is_none_or_cannot_be_trained(folder: Path) -> None:
    (fault,) = refusal(task="mine.py:loss").faults
    assert (fault.expected, fault.found) == ("a Task", "function loss")
    (fault,) = refusal(task="mine.py").faults
    assert fault.expected == "FILE.py:NAME or package.module:NAME"
    (fault,) = refusal(task="mine.py:several").faults
    assert "one scalar" in fault.expected


def test_a_graph_that_breaks_a_rule(folder: Path) -> None:
    with pytest.raises(GraphError, match="never_waits"):
        ring(program=Program("ring.py:build", blocks=True))


@pytest.mark.process
def test_a_wrong_setting_is_found_without_jax(folder: Path) -> None:
    code = (
        "import sys\n"
        "from isthmus.programs.engine.request.request import prepare\n"
        "from isthmus.runtime.errors import ConfigError\n"
        "try:\n    prepare(run={'tokens': 0}, task_settings={'width': 'x'})\n"
        "except ConfigError as error:\n    print(len(error.faults), 'jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == "2 False\n"


# -- the run folder ----------------------------------------------------------------------------------------------------


def test_a_run_folder_must_be_new_or_hold_no_run(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "readme").write_text("")
    assert ring(run_dir="notes").run_dir == folder / "notes"
    assert ring(run_dir=folder / "a" / "b").run_dir == folder / "a" / "b"
    for name in ("config.toml", "graph.json", "metrics.jsonl", "tape", "snapshots", "summary.json"):
        path = folder / name.replace(".", "-")
        path.mkdir()
        (path / name).mkdir()
        (fault,) = refusal(run_dir=path).faults
        assert fault.found == f"{name} of another run"
        assert "--run-dir" in fault.remedy
    (fault,) = refusal(run_dir="mine.py").faults
    assert fault.found == "a file"
    (fault,) = refusal(run_dir="mine.py/below").faults
    assert fault.found == f"{folder}/mine.py, which is a file"


def test_creating_the_folder_writes_the_configuration_and_points_latest_to_it(folder: Path) -> None:
    first, second = ring(), ring(run_dir="elsewhere/a")
    new_folder.create(first.run_dir, first.config_text, latest=first.base)
    assert (folder / "runs" / "latest").resolve() == first.run_dir
    text = (first.run_dir / "config.toml").read_text()
    assert "isthmus train --config" in text.splitlines()[0]
    assert settings.tomllib.loads(text)["run"]["tokens"] == 4_100_000
    new_folder.create(second.run_dir, second.config_text, latest=second.base)
    assert (folder / "runs" / "latest").resolve() == second.run_dir
    assert sorted(path.name for path in second.run_dir.iterdir()) == ["config.toml", "run.lock"]


OUTER_STEP = {"outer_lr": 0.4, "outer_momentum": 0.7}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "chosen"),
    [
        ("decoupled-diloco", {"fragments": 8, "interval": 24, **OUTER_STEP}),
        ("streaming-diloco", {"fragments": 8, "interval": 24, **OUTER_STEP}),
        ("diloco", {"interval": 24, **OUTER_STEP}),
        ("data-parallel", {}),
    ],
)
def test_what_follows_from_the_sweeps_is_chosen_and_stands_in_the_configuration(
    folder: Path, program: str, chosen: dict[str, Any]
) -> None:
    run = {"tokens": 1_020_000, "learners": 4}
    request = prepare(Program(program), run=run)
    written = settings.tomllib.loads(request.config_text)
    of_program = {f"program.{key}": value for key, value in chosen.items()}
    assert dict(request.chosen) == {"task.batch": 2, "task.lr": 0.006, **of_program}
    assert {key: written["program"][key] for key in chosen} == chosen
    assert (written["task"]["batch"], written["task"]["lr"]) == (2, 0.006)
    assert request.warnings == ()

    given = {key: value * 2 for key, value in chosen.items()} | ({"outer_momentum": 0.5} if chosen else {})
    again = prepare(Program(program, **given), run=run, task_settings={"batch": 3, "lr": 0.01})
    assert not again.chosen
    assert (again.config["task"]["batch"], again.config["task"]["lr"]) == (3, 0.01)
    assert {key: again.config["program"][key] for key in given} == given

    # As it stands there it stays, whatever the budget: that is how a run is resumed.
    longer = prepare(
        Program(program, **written["program"]), run={**run, "tokens": 9_000_000}, task_settings=written["task"]
    )
    assert not longer.chosen
    assert {key: longer.config["program"][key] for key in chosen} == chosen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "batch", "interval", "is_warned"),
    [(4_100_000, 8, 24, False), (500_000, 1, 24, False), (255_000, 1, 16, False), (100_000, 1, 8, True)],
)
def test_smaller_batches_come_before_shorter_intervals_and_too_few_sweeps_are_told(
    folder: Path, tokens: int, batch: int, interval: int, is_warned: bool
) -> None:
    request = prepare(run={"tokens": tokens, "learners": 4})
    assert (request.config["task"]["batch"], request.config["program"]["interval"]) == (batch, interval)
    # Where the interval is short, all learners keep what they train over an adoption, which is told.
    assert request.config["program"].get("carry") == request.chosen.get("program.carry") == (interval < 24 or None)
    assert [fault.found.partition(",")[0] for fault in request.warnings] == ["48.8"] * is_warned


@pytest.mark.slow
def test_the_interval_that_is_given_does_not_change_the_batch(folder: Path) -> None:
    request = prepare(Program(interval=6), run={"tokens": 1_020_000, "learners": 4})
    assert request.config["task"]["batch"] == 2
    assert request.config["program"]["interval"] == 6


@pytest.mark.slow
def test_a_default_interval_leaves_room_for_fragments_and_overlap(folder: Path) -> None:
    run = {"tokens": 60_000, "learners": 4}
    assert prepare(Program("streaming-diloco", fragments=12), run=run).config["program"]["interval"] == 12
    assert prepare(Program(overlap=20), run=run).config["program"]["interval"] == 20
    with pytest.raises(ConfigError, match=r"program.overlap of decoupled-diloco: expected 0 to interval = 24"):
        prepare(Program(overlap=25), run=run)


def test_two_runs_of_one_second_have_folders_of_their_own(folder: Path) -> None:
    from datetime import datetime

    now = datetime(2026, 11, 20, 10, 30, 5)
    names = []
    for _ in range(3):
        path = new_folder.choose(None, "ring", now)
        new_folder.create(path, "")
        names.append(path.name)
    assert names == ["ring-20261120-103005", "ring-20261120-103005-2", "ring-20261120-103005-3"]
    assert not (folder / "runs" / "latest").exists()


# -- the environment ---------------------------------------------------------------------------------------------------

SHOW = (
    "import os, sys\n"
    "if sys.argv[1] == 'jax': import jax\n"
    "from isthmus.programs.engine.request.environment import prepare_environment\n"
    "prepare_environment(int(sys.argv[2]))\n"
    "import jax\n"
    "print(os.environ.get('XLA_FLAGS'), os.environ.get('OMP_NUM_THREADS'), jax.config.jax_compilation_cache_dir)\n"
    "print(jax.config.jax_persistent_cache_min_compile_time_secs)\n"
)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("order", "learners", "given", "expected"),
    [
        ("jax", 4, {}, XLA_FLAGS + " 1 {cache}/isthmus/xla\n0.0\n"),
        soaked("later", 4, {}, XLA_FLAGS + " 1 {cache}/isthmus/xla\n0.0\n"),
        soaked("later", 1, {}, "None None {cache}/isthmus/xla\n0.0\n"),
        ("later", 4, {"XLA_FLAGS": "--mine", "OMP_NUM_THREADS": "3"}, "--mine 3 {cache}/isthmus/xla\n0.0\n"),
        ("jax", 1, {"JAX_COMPILATION_CACHE_DIR": "/mine"}, "None None /mine\n1.0\n"),
    ],
)
def test_the_environment_of_learners_that_share_a_process(
    tmp_path: Path, order: str, learners: int, given: dict[str, str], expected: str
) -> None:
    names = ("XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    plain = {name: value for name, value in os.environ.items() if name not in names and not name.startswith("JAX_")}
    environment = {**plain, "XDG_CACHE_HOME": str(tmp_path), **given}
    command = [sys.executable, "-c", SHOW, order, str(learners)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == expected.format(cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    environment: dict[str, str] = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    monkeypatch.setattr(os, "environ", environment)
    prepare_environment(1)
    assert list(environment) == ["XDG_CACHE_HOME"]


@pytest.mark.parametrize(("replicas", "count"), [((1, 1), 1), ((2, 8), 4), ((6, 9), 6)])
def test_where_no_number_is_given_there_are_as_many_learners_as_the_graph_can_have(
    folder: Path, replicas: tuple[int, int], count: int
) -> None:
    text = (folder / "ring.py").read_text()
    (folder / "ring.py").write_text(text.replace("replicas=(2, 8)", f"replicas={replicas}"))
    request = prepare("ring.py:build", "mine.py:task")
    assert (request.job.learners, request.config["run"]["learners"]) == (count, count)
