"""A task that processes would import differently is refused before the start; one made of the arguments is the same."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import optax
import pytest

from isthmus import Task
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.task_in_hand import check_importable, differences
from isthmus.runtime.errors import ConfigError
from tests.patience import PATIENCE

MADE = """
import dataclasses, sys
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task, decoupled_diloco, train

def make(lr=0.01, width=8, shift=0.0):
    offset = np.full(width, shift, np.float32)
    def init(key): return {"w": jax.random.normal(key, (width, 1))}
    def loss(params, batch): return jnp.mean(((batch["x"] + offset) @ params["w"] - batch["y"]) ** 2)
    def batch(at):
        x = at.rng().normal(size=(32, width)).astype(np.float32)
        return {"x": x, "y": x.sum(1, keepdims=True)}
    return Task(init, loss, batch, tokens_per_batch=32, optimizer=optax.adamw(lr))

def go(task, tokens=480):
    result = train(decoupled_diloco(interval=6, fragments=1), task, learners=1, tokens=tokens, quiet=True)
    print("outcome", result.summary["outcome"])
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """The module of a user's file that makes tasks, with one of them at its top level."""
    (tmp_path / "of_a_user.py").write_text(f"{MADE}\ntask = make()\n")
    before = list(sys.path)
    yield reference.load_in_child(f"{tmp_path / 'of_a_user.py'}:make", "Loading it", "").__globals__
    sys.path[:] = before


def script(tmp_path: Path, lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a user's script does who runs it."""
    (tmp_path / "script.py").write_text(f"{MADE}\n{lines}\n")
    there = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "script.py", *arguments]
    return subprocess.run(
        command, cwd=tmp_path, env=there, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"lr": 0.02}, "optimizer"),
        ({"shift": 1.0}, "loss"),
        ({"width": 9}, "init"),
    ],
)
def test_what_differs_in_two_tasks_is_named(made: Any, changed: dict[str, Any], name: str) -> None:
    """A learning rate is a number in a traced program, a shift an array that one closes over."""
    assert name in list(differences(made["make"](), made["make"](**changed), 0))


def test_batches_and_plain_settings_are_compared(made: Any) -> None:
    one = made["make"]()
    assert list(differences(one, replace(one, tokens_per_batch=64, merge={"w": "average"}), 0)) == [
        "tokens_per_batch",
        "merge",
    ]
    assert list(differences(one, replace(one, batch=lambda at: one.batch(replace(at, seed=at.seed + 1))), 0)) == [
        "batch"
    ]


def test_the_same_code_makes_the_same_task(made: Any) -> None:
    assert list(differences(made["make"](), made["make"](), 0)) == []


def test_a_task_is_compared_with_what_its_file_gives(made: Any, tmp_path: Path) -> None:
    """Not with what the name means in this process, where a script may have bound it anew."""
    text = f"{tmp_path / 'of_a_user.py'}:task"
    check_importable(made["make"](), text, 0)
    assert "of_a_user" not in sys.modules
    other: Task = replace(made["make"](), optimizer=optax.sgd(0.1))
    with pytest.raises(ConfigError, match="another optimizer"):
        check_importable(other, text, 0)
    with pytest.raises(ConfigError, match=r"make\(lr = 0.1\)"):
        check_importable(other, f"{tmp_path / 'of_a_user.py'}:absent", 0)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("def main():\n    go(make())\nmain()", "top level of mine.py"),
        ("if __name__ == '__main__':\n    for lr in (0.1, 0.2):\n        task = make(lr)\n        go(task)", "'task'"),
        ("task = make()\ngo(task)", 'if __name__ == "__main__":'),
        ("task = make()\nif __name__ == '__main__':\n    task = make(0.5)\n    go(task)", "another optimizer"),
    ],
)
def test_a_script_whose_task_cannot_be_imported_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, told: str
) -> None:
    (tmp_path / "script.py").write_text(f"{MADE}\n{lines}\n")
    monkeypatch.chdir(tmp_path)
    jax.devices()  # With a backend a request is prepared here, and not in a child.
    with pytest.raises(ConfigError, match=re.escape(told)):
        runpy.run_path("script.py", run_name="__main__")
    assert not (tmp_path / "runs").exists()


SLOW = """
import time
made = make(float(sys.argv[1]))

def batch(at):
    if at.split == "train" and at.position > 1: time.sleep(0.25)
    return made.batch(at)

task = dataclasses.replace(made, batch=batch)
if __name__ == "__main__":
    go(task, tokens=2560)  # 80 batches take 20 s, which are three of the windows that a host judges
"""


@pytest.mark.soak
@pytest.mark.process
def test_a_task_made_of_the_arguments_is_the_same_in_every_process_and_its_slow_data_are_named(tmp_path: Path) -> None:
    """Without its arguments the file cannot be imported at all."""
    ended = script(tmp_path, SLOW, "0.125")
    assert "outcome done" in ended.stdout, ended.stderr
    lines = (tmp_path / "runs" / "latest" / "events.jsonl").read_text().splitlines()
    (starved,) = (line for line in map(json.loads, lines) if line["kind"] == "starved")
    assert (starved["host"], starved["node"], starved["source"]) == ("learner/0", "inner-step", "data")
    assert starved["made_ns"] >= 250_000_000 > starved["rest_ns"]
    assert_starts_again_from_its_configuration(tmp_path / "runs" / "latest" / "config.toml")


def assert_starts_again_from_its_configuration(config: Path) -> None:
    """The arguments of the script are in it, because the command has others."""
    isthmus = [str(Path(sys.executable).with_name("isthmus")), "graph", "--config"]
    again = subprocess.run([*isthmus, str(config)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert again.returncode == 0, again.stderr
    lines = config.read_text().splitlines()
    bare = config.with_name("bare.toml")
    bare.write_text("\n".join(line for line in lines if not line.startswith("argv = ")))
    assert len(bare.read_text().splitlines()) == len(lines) - 1
    without = subprocess.run([*isthmus, str(bare)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert without.returncode == 2
    assert "could not convert string to float" in without.stderr
