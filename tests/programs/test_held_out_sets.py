"""Named held-out sets are evaluated during a run beside its held-out part, and told by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import Result

from isthmus import Task, train
from isthmus.ops.data.batches import At
from isthmus.programs.command import config
from isthmus.programs.engine.request.batch_checks import check_sets
from isthmus.programs.engine.results.reading import load
from isthmus.programs.evaluations import SHARE, RunSize
from isthmus.programs.language_model import chosen
from isthmus.programs.language_model import task as language_model
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError

CODE, LAW = "loss/code", "loss/law of \u00fc"


def _init(key: Any) -> Any:
    return {"w": jnp.zeros((4, 1))}


def _loss(params: Any, batch: Any) -> Any:
    loss = jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)
    return loss, {"twice": 2 * loss}


def _batch(at: At) -> Any:
    x = at.rng().normal(size=(8, 4)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


def _set(scale: float, rows: int, count: int = 3) -> Callable[[], list[Any]]:
    def batches() -> list[Any]:
        rng = np.random.default_rng(1)
        xs = [(scale * rng.normal(size=(rows, 4))).astype(np.float32) for _ in range(count)]
        return [{"x": x, "y": x.sum(1, keepdims=True)} for x in xs]

    return batches


def task_with(**sets: Any) -> Task:
    return Task(_init, _loss, _batch, optimizer=optax.sgd(0.02), tokens_per_batch=8, sets=sets)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["decoupled-diloco", "data-parallel"])
def test_a_task_of_ones_own_has_the_losses_of_its_sets_in_lines_summary_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sets = {"code": _set(1.0, 8), "law of \u00fc": _set(3.0, 5)}
    task = task_with(**sets)
    result = train(program, task, learners=2, tokens=8 * 300, run_dir="here", transport="inproc", quiet=True)
    lines = [json.loads(line) for line in (result.run_dir / "evaluations.jsonl").read_text().splitlines()]
    names = ["twice", CODE, "twice/code", LAW, LAW.replace("loss", "twice")]
    assert [list(line["metrics"]) for line in lines] == [names] * len(lines)
    assert lines[0]["metrics"][CODE] > lines[-1]["metrics"][CODE]
    expected = np.mean([float(_loss(result.parameters, batch)[0]) for batch in sets["law of \u00fc"]()])
    assert lines[-1]["metrics"][LAW] == pytest.approx(expected, rel=1e-4)
    assert result.summary["eval_metrics"] == lines[-1]["metrics"]
    assert {CODE, LAW} <= set(load(result.run_dir).metrics)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_bytes(b"It is a truth universally acknowledged. " * 2000)
    (tmp_path / "code.py").write_bytes(b"for each in range(10):\n    print(each)\n" * 400)
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_bytes(b"hi")
    np.save(tmp_path / "ids.npy", np.arange(5000, dtype=np.uint16) % 300)
    np.save(tmp_path / "high.npy", np.arange(5000, dtype=np.uint16))
    return tmp_path


def test_the_shipped_task_reads_a_set_as_its_data(texts: Path) -> None:
    made = language_model(data=(str(texts / "text.txt"),), sets={"code": str(texts / "code.py")})
    ((name, make),) = made.held_out_sets
    batches = list(make())
    assert name == "code"
    assert {batch["tokens"].dtype.name for batch in batches} == {"uint8"}
    assert all(b"truth" not in bytes(batch["tokens"].ravel()) for batch in batches)
    assert sum(b"print" in bytes(row) for batch in batches for row in batch["tokens"]) == sum(
        len(batch["tokens"]) for batch in batches
    )


@pytest.mark.parametrize(
    ("data", "at", "found"),
    [
        ("text.txt", "nowhere", "nothing there"),
        ("text.txt", "empty", "no file"),
        ("text.txt", "short.txt", "2"),
        ("text.txt", "ids.npy", "token ids"),
        ("ids.npy", "text.txt", "a text"),
        ("ids.npy", "high.npy", "4999"),
    ],
)
def test_a_set_that_cannot_be_evaluated_on_is_refused_by_name_before_the_start(
    texts: Path, data: str, at: str, found: str
) -> None:
    vocabulary = 300 if data.endswith(".npy") else None
    made = language_model(data=(str(texts / data),), vocabulary=vocabulary, sets={"law": str(texts / at)})
    with pytest.raises(ConfigError) as refused:
        check_sets(made, 0)
    assert "'law'" in refused.value.faults[0].action
    assert found in refused.value.faults[0].found
    assert "--data" not in refused.value.faults[0].remedy


def test_what_a_set_raises_is_told_once_by_its_name() -> None:
    def gone() -> list[Any]:
        raise RuntimeError("no such disk")

    with pytest.raises(ConfigError) as refused:
        check_sets(task_with(law=gone), 0)
    [fault] = refused.value.faults
    assert fault.action == "Running task.sets['law']()"
    assert "no such disk" in fault.found
    assert Path(__file__).name in fault.found


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 65, "\x1b[1m"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        language_model(sets={name: "/nowhere"})
    with pytest.raises(ConfigError):
        task_with(**{name: _set(1.0, 8)})


def test_sets_beside_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="paths"):
        language_model(paths=(2,), sets={"code": "/nowhere"})


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (list, "none"),
        (lambda: [{"x": np.zeros((8, 4), np.float64), "y": np.zeros((8, 1), np.float32)}], "float64"),
        (lambda: [{"x": np.zeros((8, 4), np.float32)}], "None"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: 3, "TypeError"),
    ],
)
def test_batches_that_are_not_like_those_of_the_evaluation_are_refused(made: Any, found: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_sets(task_with(odd=made), 0)
    assert found in str(refused.value)


def test_an_evaluation_of_sets_costs_no_more_than_one_without() -> None:
    large = {**Schema.of("task", language_model).read({}), "width": 512, "layers": 4}
    run = RunSize(500_000, 2)
    alone = chosen(large, run)["evaluation_windows"]
    among = chosen({**large, "sets": {"code": "a", "law": "b"}}, run)["evaluation_windows"]
    assert 3 * among <= alone < 3 * (among + 1)
    assert run.share == SHARE


def test_the_tokens_of_sets_are_among_those_that_an_evaluation_predicts() -> None:
    assert task_with(code=_set(1.0, 8, 5)).evaluated_tokens - task_with().evaluated_tokens == 5 * 8


def test_paths_in_a_file_begin_in_its_folder(tmp_path: Path) -> None:
    values = config.absolute({("task", "sets"): {"code": "own/code.py"}}, tmp_path)
    assert values["task", "sets"] == {"code": str(tmp_path / "own" / "code.py")}


def test_a_table_of_sets_is_asked_for_in_words(typed: Callable[..., Result], tmp_path: Path) -> None:
    result = typed(tmp_path, "train", "--set", "task.sets=3")
    assert result.exit_code == 2
    assert "a table" in result.stderr
