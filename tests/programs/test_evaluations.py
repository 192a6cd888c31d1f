"""How much a run evaluates follows from its request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import Task, train
from isthmus.ops.data.batches import At
from isthmus.programs.engine.results.words import not_evaluated
from isthmus.programs.evaluations import SMALL, RunSize, times_default, too_much, windows_default
from isthmus.programs.language_model import chosen
from isthmus.programs.language_model import task as language_model
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("run", "windows"),
    [
        (RunSize(4_100_000, 4), 240),
        (RunSize(41_000_000, 4), 256),
        (RunSize(41_000_000, 4, share=0.2), 4804),
        (RunSize(12_288, 2), 8),
        (RunSize(400_000, 2, when="ends"), 234),
        (RunSize(400_000, 2, when="none"), 23),
    ],
)
def test_windows_follow_from_tokens_context_and_how_many_evaluations(run: RunSize, windows: int) -> None:
    assert windows_default(135_000_000, 256, run) == windows
    assert windows_default(SMALL - 1, 256, run) is None


@pytest.mark.parametrize(
    ("run", "evaluated", "times"),
    [
        (RunSize(4_100_000, 4), 240 * 256, 20),
        (RunSize(12_288, 2), 8 * 256, 2),
        (RunSize(60_000, 2), 8 * 256, 8),
        (RunSize(60_000, 2, share=0.2), 8 * 256, 17),
        (RunSize(60_000, 2), None, 20),
        (RunSize(60_000, 2, when="ends"), None, 2),
        (RunSize(60_000, 2, when="none"), 8 * 256, 0),
    ],
)
def test_evaluations_cost_at_most_their_share_but_the_ends_are_made(run: RunSize, evaluated: Any, times: int) -> None:
    assert times_default(run, evaluated) == times
    is_within = not evaluated or times * evaluated <= run.share * 3 * run.tokens
    assert (too_much(run, evaluated, times) is None) == is_within
    assert is_within or times == 2


def test_the_shipped_task_chooses_windows_where_none_are_given() -> None:
    small = Schema.of("task", language_model).read({})
    large = {**small, "width": 512, "layers": 4}
    run = RunSize(50_000, 2)
    assert "evaluation_windows" not in chosen(small, run)
    assert chosen(large, run)["evaluation_windows"] == 11
    assert "evaluation_windows" not in chosen({**large, "evaluation_windows": 9}, run)


def _init(key: Any) -> Any:
    return {"w": jnp.zeros((4, 1))}


def _loss(params: Any, batch: Any) -> Any:
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def _batch(at: At) -> Any:
    x = at.rng().normal(size=(8, 4)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


task = Task(_init, _loss, _batch, optimizer=optax.sgd(0.02), tokens_per_batch=8)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["decoupled-diloco", "streaming-diloco", "data-parallel"])
@pytest.mark.parametrize("evaluate", ["ends", "none"])
def test_evaluations_are_left_out_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, evaluate: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = {"evaluate": evaluate}
    result = train(program, task, learners=2, tokens=8 * 300, run_dir="here", transport="inproc", quiet=True, **run)
    lines = [json.loads(line) for line in (result.run_dir / "evaluations.jsonl").read_text().splitlines()]
    if evaluate == "ends":
        assert [line["kind"] for line in lines] == ["initial", "final"]
        assert lines[1]["eval_loss"] == result.eval_loss == result.summary["eval_loss_final"] < lines[0]["eval_loss"]
        assert lines[1]["eval_loss_error"] == result.summary["eval_loss_error"] > 0
    else:
        assert [(line["kind"], line["eval_loss"], line["eval_loss_error"]) for line in lines] == [("final", None, None)]
        assert result.eval_loss is result.summary["eval_loss_final"] is result.summary["eval_loss_error"] is None
        assert result.summary["final_evaluation"] == "not_asked"
        assert "run.evaluate" in not_evaluated(result.summary)
    assert result.summary["outcome"] == "done"
    assert result.parameters["w"].shape == (4, 1)


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_of_nothing_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"run.evaluate_share"):
        train("decoupled-diloco", task, tokens=800, evaluate_share=share)
