"""The shipped task with experts: that islands learn it together, in every program that merges or averages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus import Program, train
from isthmus.programs.language_model import task

PROGRAMS = [Program("decoupled-diloco", interval=12, fragments=4), Program("data-parallel")]


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS)
def test_experts_learn_and_the_balance_is_told_beside_the_loss(program: Program, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"It is a truth universally acknowledged. " * 500)
    sparse = task(layers=1, width=16, heads=2, context=32, batch=8, experts=4, lr=0.02, data=(str(text),))
    run = tmp_path / "run"
    result = train(program, sparse, learners=2, tokens=160 * 256, run_dir=run, transport="inproc", quiet=True)
    assert result.eval_loss < 0.5 * result.summary["eval_loss_initial"]
    assert 0.9 < result.summary["eval_metrics"]["balance"] < 2.0
    assert result.parameters["layers"]["0"]["feedforward"]["gate"].shape == (4, 16, 44)
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [report["metrics"]["balance"] for report in reports if "metrics" in report]
    assert told
    assert all(0.9 < balance < 2.5 for balance in told)
