"""`train` runs what it is given, in this process, and gives back the model and the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import save_file

from isthmus import Program, Task, decoupled_diloco, train
from isthmus.programs.engine.recorder.summary import LearnerSummary, Summary
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.engine.run.in_processes import submit
from isthmus.programs.engine.run.resume import _files, _other_data
from isthmus.programs.job import TensorSpec
from isthmus.programs.reading.found import find
from isthmus.programs.training import again, read_final
from isthmus.runtime.errors import ConfigError, RunError


def init(key: Any) -> Any:
    return {"w": jax.random.normal(key, (16, 1)), "b": [jnp.zeros(1)]}


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean((batch["x"] @ params["w"] + params["b"][0] - batch["y"]) ** 2)


def batch(at: Any) -> Any:
    x = at.rng().normal(size=(32, 16)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


def failing(at: Any) -> Any:
    if at.position > 5:
        raise ValueError(f"no batch {at.position}")
    return batch(at)


def task(**changed: Any) -> Task:
    given = {"init": init, "loss": loss, "batch": batch, "tokens_per_batch": 32, "optimizer": optax.adamw(1e-2)}
    return Task(**{**given, **changed})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.slow
def test_training_gives_the_model_and_the_figures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = decoupled_diloco(interval=6, fragments=2)
    result = train(program, task(), learners=2, tokens=32 * 400, run_dir="here", transport="inproc", quiet=True)
    assert result.run_dir == tmp_path / "here"
    assert result.summary == json.loads((result.run_dir / "summary.json").read_text())
    assert result.summary["outcome"] == "done"
    assert result.summary["tokens_total"] >= 32 * 400
    assert result.eval_loss == result.summary["eval_loss_final"] < result.summary["eval_loss_initial"]
    assert jax.tree.structure(result.parameters) == jax.tree.structure(init(jax.random.key(0)))
    assert result.parameters["w"].shape == (16, 1)
    losses = [float(loss(result.parameters, made)) for made in task().evaluation_batches(0)]
    assert np.mean(losses) == pytest.approx(result.eval_loss, rel=1e-4)
    out = capfd.readouterr().out
    assert out.splitlines() == [
        line for line in out.splitlines() if line.startswith("decoupled-diloco done, eval loss")
    ]
    assert (tmp_path / "runs" / "latest").resolve() == result.run_dir


def test_a_body_that_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no batch 6") as caught:
        train(
            "decoupled-diloco",
            task(batch=failing),
            learners=2,
            tokens=12800,
            transport="inproc",
            run_dir="here",
            quiet=True,
        )
    assert str(tmp_path / "here") in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "Traceback" in next((tmp_path / "here" / "logs").glob("*.log")).read_text()
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["outcome"] == "failed"


@pytest.mark.soak
@pytest.mark.process
def test_an_error_that_every_learner_meets_ends_a_run_in_processes_at_its_second_time(tmp_path: Path) -> None:
    guarded = "def batch(at):\n    assert at.position < 6, 'no batch after the fifth'\n"
    (tmp_path / "stuck.py").write_text(MINE.replace("def batch(at):\n", guarded))
    with pytest.raises(RunError, match="AssertionError: no batch after the fifth") as caught:
        train("decoupled-diloco", "stuck.py:task", learners=2, tokens=12800, run_dir="here", quiet=True)
    assert str(tmp_path / "here") in str(caught.value)
    assert str(caught.value).count("no batch") == 1
    assert "stuck.py:9" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    lines = [json.loads(line) for line in (tmp_path / "here" / "events.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["kind"] == "failed" and line["host"].startswith("learner/")]
    assert {line["host"] for line in failed} == {"learner/0", "learner/1"}
    assert len(failed) <= 4, "one of them has met it in its second life"
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["outcome"] == "failed"


def test_a_wrong_request_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="or 'inproc'") as caught:
        train("decoupled-diloco", task(), transport="tcp", tokens=1000)
    assert "'zmq'" in str(caught.value)
    with pytest.raises(ConfigError, match="expected a key of section"):
        train(decoupled_diloco(intervall=3), task(), tokens=1000, transport="inproc")
    with pytest.raises(ConfigError, match='transport="inproc"'):
        train("decoupled-diloco", task(), tokens=1000)
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_trains_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "unguarded.py").write_text("from isthmus import train\ntrain('decoupled-diloco', tokens=100)\n")
    with pytest.raises(ConfigError, match="if __name__ ==") as caught:
        train("decoupled-diloco", "unguarded.py:task", tokens=1000)
    assert "unguarded.py:2" in str(caught.value)


MINE = """
import time
import jax.numpy as jnp, numpy as np, optax
from isthmus import Task, decoupled_diloco, train

def init(key): return {"w": jnp.zeros((4, 1))}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)
def batch(at):
    time.sleep(0.004)
    x = at.rng().normal(size=(16, 4)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=16, optimizer=optax.adamw(1e-2))
if __name__ == "__main__":
    result = train(decoupled_diloco(interval=6), task, learners=2, tokens=12000)
    print("result", result.eval_loss > 0, sorted(result.parameters))
"""


@pytest.mark.long
@pytest.mark.process
def test_a_script_trains_and_its_configuration_starts_it_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    script = subprocess.run([sys.executable, "mine.py"], capture_output=True, text=True, check=False)
    assert script.stderr == ""
    assert script.stdout.splitlines()[-1] == "result True ['w']"
    assert "report" in script.stdout
    first = (tmp_path / "runs" / "latest").resolve()
    command = [str(Path(sys.executable).parent / "isthmus"), "train", "--config", str(first / "config.toml"), "--quiet"]
    again = subprocess.run([*command, "--run-dir", "again"], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("decoupled-diloco done, eval loss ")
    assert (tmp_path / "again" / "config.toml").read_text() == (first / "config.toml").read_text()
    graphs = [json.loads((folder / "graph.json").read_text()) for folder in (first, tmp_path / "again")]
    assert graphs[0]["fingerprint"] == graphs[1]["fingerprint"]


# -- the final model ---------------------------------------------------------------------------------------------------


def finished(folder: Path) -> Request:
    """A request whose run is over, as far as its model is concerned."""

    def tree(key: Any) -> Any:
        return {"head": jnp.zeros((6, 2)), "scale": jnp.zeros(())}

    layout = (TensorSpec("head", (6, 2), "float32"), TensorSpec("scale", (), "float32"))
    job = SimpleNamespace(layout=layout, seed=0)
    task = Task(tree, lambda params, batch: params["scale"], dict, tokens_per_batch=1, optimizer=optax.sgd(0.1))
    return cast(Request, SimpleNamespace(job=job, task=task, run_dir=folder))


def test_a_tensor_that_was_split_is_put_together(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "final"
    folder.mkdir(parents=True)
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    save_file({"head[4:6]": values[4:], "scale": np.array(3, np.float32)}, folder / "fragment-0.safetensors")
    save_file({"head[0:4]": values[:4].copy()}, folder / "fragment-1.safetensors")
    model = read_final(finished(tmp_path))
    np.testing.assert_array_equal(model["head"], values)
    assert model["scale"] == 3


def test_a_model_with_a_tensor_missing_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "final"
    folder.mkdir(parents=True)
    save_file({"scale": np.ones(1, np.float32)}, folder / "fragment-0.safetensors")
    with pytest.raises(RunError, match="'head'"):
        read_final(finished(tmp_path))


# -- what the command knows, too ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_key_of_section_run_is_a_keyword(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.learner: .*\n.*Did you mean 'learners'"):
        train(decoupled_diloco(), task(), learner=2, transport="inproc")
    with pytest.raises(ConfigError, match=r"run\.snapshot_every_seconds"):
        train(decoupled_diloco(), task(), snapshot_every_seconds=0, transport="inproc")
    result = train(
        decoupled_diloco(interval=6, fragments=2),
        task(),
        learners=1,
        tokens=1500,
        transport="inproc",
        quiet=True,
        snapshots=str(tmp_path / "store"),
        snapshot_every_seconds=0.5,
    )
    config = tomllib.loads((result.run_dir / "config.toml").read_text())["run"]
    assert (config["snapshots"], config["snapshot_every_seconds"]) == (str(tmp_path / "store"), 0.5)
    assert json.loads((result.run_dir / "summary.json").read_text()).keys() == Summary.__annotations__.keys()
    for learner in result.summary["per_learner"]:
        assert learner.keys() == LearnerSummary.__annotations__.keys()


@pytest.fixture
def begun() -> Path:
    """The folder of a run of the shipped task, whose processes were never started."""
    settings = {"batch": 1, "context": 16, "width": 16, "layers": 1, "heads": 2}
    budget = {"tokens": 40_000, "learners": 2}
    request = prepare(Program("decoupled-diloco", fragments=2), run=budget, task_settings=settings, computes=False)
    return submit(request).run_dir


def test_the_folder_of_a_run_has_the_table_of_its_data(begun: Path) -> None:
    table = json.loads((begun / "data.json").read_text())
    assert table["tokens"] == sum(file.size_bytes for file in find().files)
    assert table["epochs"] == pytest.approx(40_000 / table["tokens"])


def test_a_run_that_goes_on_is_told_of_other_data(begun: Path) -> None:
    was = spec.load(begun)
    assert was.data == {name: json.loads((begun / "data.json").read_text())[name] for name in was.data}
    assert set(was.data) == {"files", "bytes", "tokens"}
    today = again(begun, {}, "Resuming")
    assert not list(_other_data(was, today, "Resuming"))
    assert not list(_other_data(replace(was, data={}), today, "Resuming"))  # Of a run that did not note them.
    (fault,) = _other_data(replace(was, data={**was.data, "files": 1}), today, "Resuming")
    assert fault.expected != fault.found
    files = _files(replace(was, data={}), today, None)
    assert json.loads(json.dumps(files["data.json"])) == json.loads((begun / "data.json").read_text())


def test_a_run_goes_on_by_its_own_configuration(begun: Path) -> None:
    was = spec.load(begun).job
    request = again(begun, {"tokens": 80_000}, "Resuming")
    assert request.job == replace(was, tokens=80_000)
    with pytest.raises(ConfigError, match="expected a snapshot in"):
        train(resume=begun, tokens=80_000)


@pytest.mark.parametrize("wrong", [{"task": "mine.py:task"}, {"program": "diloco"}, {"transport": "inproc"}])
def test_a_run_that_goes_on_takes_no_other_program_or_task(begun: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Resuming {begun}: .* found {next(iter(wrong))}"):
        train(resume=begun, **wrong)
    with pytest.raises(ConfigError, match="run_dir= only for a run that goes on from a store"):
        train(resume=begun, run_dir="elsewhere")
