"""The command: what is wrong is told in one message and with status 2, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isthmus.programs import settings, training
from isthmus.programs.command.config import MODELS
from isthmus.programs.engine.request import reference
from isthmus.programs.settings import Schema
from isthmus.programs.wing_table import WINGS
from isthmus.runtime.errors import RunError
from tests.command_line import app

RING = """
from isthmus.runtime.graph.template import Graph, Latest, Queue

def step(own, neighbour=None):
    return own

def build(job, *, interval: int = 24, blocks: bool = False):
    graph = Graph("ring")
    learner = graph.role("learner", replicas=(2, 64))
    node = learner.node("step", step, never_waits=True)
    graph.edge(node["result"], node["own"], Queue(capacity=interval, initial=(1,)))
    policy = Queue(capacity=1) if blocks else Latest()
    graph.edge(node["result"], node["neighbour"], policy, to=learner.next)
    return graph

def raises(job):
    raise ValueError("out of ideas")

def nothing(job):
    pass

number = 3
"""

MINE = """
import jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}
def loss(params, batch): return jnp.mean((batch @ params["w"] + params["b"]) ** 2)
def batch(at): return at.rng().normal(size=(8, 4)).astype(np.float32)
def changing(at): return np.zeros((8 + at.position, 4), np.float32)

task = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))
several = Task(init, lambda params, batch: batch @ params["w"], batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))
uneven = Task(init, loss, changing, tokens_per_batch=8, optimizer=optax.sgd(0.1))
"""

CONFIG = """
[run]
program = "../ring.py:build"
task = "../mine.py:task"
learners = 3

[program]
interval = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with programs, tasks, data and a run in it; imports and environment are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(reference, "_loaded", {})
    (tmp_path / "ring.py").write_text(RING)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ring.toml").write_text(CONFIG)
    (tmp_path / "configs" / "broken.toml").write_text("[run\n")
    (tmp_path / "configs" / "other.toml").write_text("runs = 3\n[programs]\ninterval = 3\n[task]\n[run]\nprogram = 3\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.toml").write_text("")
    yield tmp_path
    for name in ("ring", "mine"):
        sys.modules.pop(name, None)


def isthmus(*arguments: str) -> Result:
    """`isthmus` with arguments, in this process."""
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, prog_name="isthmus")


WRONG: list[tuple[str, str, str, str]] = [
    # The command line itself.
    ("trian", "a command", "'trian'", "Did you mean 'train'?"),
    ("--verson", "one of its options", "--verson", "Did you mean --version?"),
    ("train --lerners 3", "one of its options", "--lerners", "Did you mean --learners?"),
    ("train a b", "options and arguments", "got unexpected extra argument", "isthmus train --help"),
    ("graph --format dot", "one of text, mermaid, json", "'dot'", "There is:"),
    # Programs.
    ("train decoupled", "a shipped program", "'decoupled'", "Did you mean 'decoupled-diloco'?"),
    ("train rin.py:build", "a Python file", "nothing there", "Did you mean 'ring.py'?"),
    ("train no_such_module:build", "a module 'no_such_module'", "no module", "no_such_module.py:build"),
    ("train ring.py:bild", "'bild' in", "no such name", "Did you mean 'build'?"),
    ("train ring.py:number", "a function", "int 3", "Name the function"),
    ("train ring.py:nothing --task mine.py:task", "a Graph", "None", "Return the graph"),
    ("train ring.py:raises --task mine.py:task", "a graph", "ValueError: out of ideas", "Correct the code"),
    ("train ring.py:build --task mine.py:task --set program.blocks=true", "", "", "never_waits"),
    # Keys and values.
    ("train --set program.intervall=3", "a key of section [program]", "'intervall'", "Did you mean 'interval'?"),
    ("train --set task.widht=3", "a key of section [task]", "'widht'", "Did you mean 'width'?"),
    ("train --set run.token=3", "a key of section [run]", "'token'", "Did you mean 'tokens'?"),
    ("train --set rum.tokens=3", "one of the sections run, program, task", "'rum'", "Did you mean 'run'?"),
    ("train --set interval=3", "section.key=value", "'interval=3'", "--set program.interval=3"),
    ("train --set program.interval=x", "an integer", "'x'", "or leave it out."),
    ("train --learners four", "an integer", "'four'", "leave it out for 4"),
    ("train --learners 2 --set run.learners=3", "one value", "2 from --learners and 3 from --set", "Leave one"),
    ("train --learners 0", "from 1 to 16", "0", "run.learners"),
    ("train --tokens 0", "at least 1", "0", "tokens"),
    ("train --seed -1", "from 0 to", "-1", "seed"),
    ("train --set program.quorum=5", "4", "5", "quorum"),
    ("train --set program.quorum=0", "1", "0", "quorum"),
    ("train --set program.overlap=25", "24", "25", "overlap"),
    ("train --set program.fragments=0", "1 to", "0", "Choose one"),
    ("train --set program.fragments=10000", "rows", "10000", "Choose one"),
    ("train --set program.gamma=1", "below 1", "1.0", "0.8"),
    ("train --set task.layers=0", "at least 1", "0", "task.layers"),
    ("train --set task.width=0 --set task.optimizer=adamw", "at least 1", "0", "task.width"),
    ("train --set task.context=0", "at least 1", "0", "task.context"),
    ("train --set task.stages=0", "at least 1", "0", "task.stages"),
    ("train --set task.evaluation_windows=0", "at least 1", "0", "task.evaluation_windows"),
    ("train --set run.evaluate_share=0", "a share above 0", "0.0", "run.evaluate_share"),
    ("train --set run.evaluate=some", "one of", "some", "run.evaluate"),
    ("train --model ./none", "a model folder at", "no such folder", "save_pretrained"),
    ("train --model nan", "a size of the shipped task, or a folder", "'nan'", "Did you mean 'nano'?"),
    ("train --transport zmk", "'zmq' or 'inproc'", "'zmk'", "Did you mean 'zmq'?"),
    # Files.
    ("train --config configs/no.toml", "a file", "nothing there", "--config"),
    ("train --config configs/broken.toml", "TOML", "line 1", "Correct the file"),
    ("train --run-dir old", "a folder without another run", "config.toml of another run", "--run-dir"),
    ("train --run-dir mine.py", "a folder, or nothing yet", "a file", "--run-dir"),
    # Data and tasks.
    ("train --data nowhere", "a file or a folder at", "nothing there", "--data"),
    ("train --data empty", "text or tokens in", "no file", "--data"),
    ("train --data short.txt", "at least 520 tokens", "9", "--data"),
    ("train --task mine.py", "FILE.py:NAME", "mine.py'", "Add a colon"),
    ("train --task mine.py:tusk", "'tusk' in", "no such name", "Did you mean 'task'?"),
    ("train --task mine.py:loss", "a Task", "function loss", "Name a Task"),
    ("train --task mine.py:task --data short.txt", "no settings beside a task", "task.data", "--task"),
    ("train --task mine.py:task --set task.layers=3", "no settings beside a task", "task.layers", "--task"),
    ("train --task mine.py:task --model nano", "no model beside a task", "'nano'", "--model"),
    ("train --task mine.py:several", "one scalar", "float32[8, 2]", "Return the mean"),
    ("train --task mine.py:uneven", "float32[8, 4]", "float32[9, 4]", "same shapes"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "expected", "found", "do"), WRONG)
def test_what_is_wrong_is_told_and_nothing_is_left_behind(
    folder: Path, line: str, expected: str, found: str, do: str
) -> None:
    before = sorted(folder.rglob("*"))
    result = isthmus(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    message = result.stderr
    assert message.startswith("isthmus: ")
    assert "Traceback" not in message
    assert message.index(": expected ") < message.index(", found ") < message.index(".\n  ")
    assert expected in message
    assert found in message
    assert do in message
    assert sorted(folder.rglob("*")) == before


def test_everything_that_is_wrong_is_in_one_message(folder: Path) -> None:
    line = (
        "train --set program.intervall=3 --set bad --set task.heads=x --learners 0 --data nowhere --transport zmk "
        "--config configs/other.toml --run-dir old"
    )
    result = isthmus(*line.split())
    assert result.exit_code == 2
    head, *rest = result.stderr.splitlines()
    assert head == "isthmus: 9 things are wrong with this request."
    assert [row.partition(":")[0] for row in rest[::2]] == [
        "Reading --set",
        "Reading configs/other.toml",
        "Reading the configuration configs/other.toml",
        "Reading configs/other.toml",
        "Choosing the transport",
        "Reading run.learners",
        "Reading program.intervall",
        "Reading task.heads",
        f"Choosing the run folder {folder}/old",
    ]


@pytest.mark.long
@pytest.mark.process
def test_the_installed_command_refuses_as_well(folder: Path) -> None:
    command = [str(Path(sys.executable).parent / "isthmus"), "train", "--tokens", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("isthmus: Reading run.tokens: expected at least 1, found 0.")
    for shell in ("exec {} graph >&-", "set -o pipefail; {} graph | head -1 > head.txt", "exec {} graph >&- 2>&- <&-"):
        done = subprocess.run(["bash", "-c", shell.format(command[0])], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), shell


# -- what is right -----------------------------------------------------------------------------------------------------


def test_version_and_help() -> None:
    result = isthmus("--version")
    assert (result.exit_code, result.stdout) == (0, f"isthmus {metadata.version('isthmus')}\n")
    first = isthmus()
    assert first.exit_code == 0
    assert first.stdout == isthmus("--help").stdout
    lines = first.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    screen = "\n".join(lines[:23])  # Of a terminal of 24 lines; commands about machines may be on the next.
    of_wings = {"why", "doctor"} & {name for wing in WINGS for name in wing.commands}
    assert all(f"\n  {name} " in screen for name in ("train", "graph", "status", "stop", "join", *of_wings))
    assert "--version" in screen


def shown(*arguments: str) -> dict[str, Any]:
    """What `isthmus graph --format json` says."""
    result = isthmus("graph", *arguments, "--format", "json")
    assert result.stderr == ""
    assert result.exit_code == 0
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.mark.slow
def test_the_graph_of_a_file_is_shown_in_every_form(folder: Path) -> None:
    arguments = ("ring.py:build", "--task", "mine.py:task")
    as_json = shown(*arguments)
    assert as_json["program"] == "ring"
    assert len(as_json["fingerprint"]) == 32
    assert [role["name"] for role in as_json["roles"]] == ["learner", "recorder"]
    assert set(as_json["placement"]) == {"step", "record"}
    assert json.loads(isthmus("graph", *arguments, "--json").stdout) == as_json
    for form in ("text", "mermaid"):
        result = isthmus("graph", *arguments, "--format", form)
        assert result.exit_code == 0
        assert "step" in result.stdout
    assert len(isthmus("graph", *arguments, "--plans").stdout) > len(isthmus("graph", *arguments).stdout)
    assert not (folder / "runs").exists()


def test_file_options_and_set_speak_of_the_same_keys(folder: Path) -> None:
    by_file = shown("--config", "configs/ring.toml")
    by_options = shown("ring.py:build", "--task", "mine.py:task", "--learners", "3", "--set", "program.interval=7")
    by_set = shown(
        *("--set", "run.program=ring.py:build", "--set", "run.task=mine.py:task"),
        *("--set", "run.learners=3", "--set", "program.interval=7"),
    )
    assert by_file == by_options == by_set
    capacities = [edge["capacity"] for edge in by_file["edges"] if edge["policy"].lower().startswith("queue")]
    assert capacities == [7]


def test_an_option_is_above_the_file_and_a_preset_between(folder: Path) -> None:
    over = shown("--config", "configs/ring.toml", "--set", "program.interval=9", "--learners", "5")
    assert over == shown("ring.py:build", "--task", "mine.py:task", "--learners", "5", "--set", "program.interval=9")


def test_every_preset_is_made_of_settings_of_the_shipped_task() -> None:
    from isthmus.programs import language_model

    known = Schema.of("task", language_model.task)
    for model in MODELS.values():
        assert known.read(model).items() >= model.items()
    assert MODELS["nano"].items() <= known.read({}).items()


# -- training ----------------------------------------------------------------------------------------------------------


class Started:
    """Stands for a run: keeps the request, and ends as it is told."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.requests: list[Any] = []
        self.error = error

    def __call__(self, request: Any, watch: Any) -> None:
        self.requests.append(request)
        if self.error is not None:
            raise self.error


@pytest.mark.slow
def test_train_starts_what_was_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started()
    monkeypatch.setattr(training, "start", started)
    line = "train --model micro --set task.layers=1 --data ring.py --tokens 1e6 --seed 3 --run-dir new --quiet"
    (folder / "ring.py").write_text(RING * 20)
    result = isthmus(*line.split(), "--set", "task.context=16", "--transport", "inproc")
    assert (result.exit_code, result.stderr) == (0, "")
    (request,) = started.requests
    assert request.config["run"] == {
        "program": "decoupled-diloco",
        "tokens": 1_000_000,
        "seed": 3,
        "learners": 4,
        "slots_max": 16,
        "local_batch": "same",
        "evaluate_on": "cpu",
        "evaluate": "all",
        "evaluate_share": 0.1,
        "snapshot_every_seconds": 15.0,
        "tape_bytes": 64 << 20,
        "shared_memory": True,
        "home_away_seconds": 600.0,
        "devices_min": 0,
        "keep_to_go_on": True,
        "spare": True,
        "moments_every": 0.0,
        "loop_idle_seconds": 1800.0,
        "first_beat_seconds": 60.0,
        "silent_seconds": 20.0,
        "stuck_seconds": 14.0,
        "end_seconds": 10.0,
        "loop_over_seconds": 60.0,
        "rank_seconds": 600.0,
    }
    task = request.config["task"]
    assert (task["layers"], task["width"], task["context"]) == (1, 128, 16)
    assert task["data"] == (f"{folder}/ring.py",)
    assert request.run_dir == folder / "new"
    assert settings.document(request.config).count("\n[") == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunError("learner/2: it broke"), "isthmus: the run failed: learner/2: it broke\n"),
        (KeyboardInterrupt(), "isthmus: ended by Ctrl-C.\n"),
    ],
)
def test_a_run_that_fails_is_status_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str
) -> None:
    monkeypatch.setattr(training, "start", Started(error))
    result = isthmus("train", "--task", "mine.py:task", "--transport", "inproc")
    assert (result.exit_code, result.stderr) == (1, message)
