"""Requests of `--loop` that are refused: one message, exit status 2, and nothing is left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import Result

from isthmus.programs.engine.machine.own_daemon import check_told
from isthmus.programs.engine.request import request
from isthmus.programs.loop_script import LOOP, LoopScript
from isthmus.programs.loop_task import LoopTask, ModelFound, loop
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError

FOUND = ModelFound((ModelLeaf("w", (4, 3), "float32", "rda"),), (("**", "rda"),), 8, 64, 96)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--loop", "none.py"), "nothing there"),
        (("--loop", "."), "a folder"),
        (("--loop", "train.py", "--task", "mine.py:task"), "--task beside it"),
        (("--loop", "train.py", "--transport", "inproc"), "--transport inproc beside it"),
        (("--", "--rate", "1"), "--loop FILE.py, whose script gets it"),
    ],
)
def test_what_cannot_be_is_refused(
    typed: Callable[..., Result], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "train.py").write_text("")
    result = typed(tmp_path, "train", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.process
def test_a_script_without_a_step_is_refused(typed: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(*sys.argv[1:])")
    result = typed(tmp_path, "train", "--loop", "train.py", "--learners", "2", "--", "--learners", "3 or 4")
    assert result.exit_code == 2
    assert "its end, with '--learners 3 or 4' as its last line" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_a_request_has_the_layout_that_the_script_has_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("isthmus.programs.loop_task.asked_of", lambda script: FOUND)
    text = f'{LOOP}(script = "/x/train.py", arguments = ["--rate", "1"], folder = "/x")'
    prepared = request.prepare(
        "decoupled-diloco", text, run={"tokens": 100_000, "learners": 2}, run_dir=tmp_path / "run"
    )
    assert [(tensor.name, tensor.shape, tensor.merge) for tensor in prepared.job.layout] == [("w", (4, 3), "rda")]
    assert (prepared.job.tokens_per_batch, prepared.job.tokens_at_most) == (8, 64)
    assert prepared.config["run"]["task"] == text
    assert isinstance(prepared.task, LoopTask)
    assert prepared.task.origin == LoopScript("/x/train.py", ("--rate", "1"), "/x")
    moved = text.replace("/x", "/y")
    again = request.prepare(
        "decoupled-diloco", moved, run={"tokens": 100_000, "learners": 2}, run_dir=tmp_path / "again"
    )
    assert again.fingerprint == prepared.fingerprint  # It may lie elsewhere on another machine.
    with pytest.raises(ConfigError, match="others in this program"):
        request.prepare("streaming-diloco", text, run={"tokens": 100_000, "learners": 2}, run_dir=tmp_path / "run")


def test_an_answer_is_read_as_it_was_written() -> None:
    assert ModelFound.read(FOUND.answer()) == FOUND
    task = loop("/x/train.py", [], "/x")
    assert task.evaluator(0).metrics({}) == {}


LEAF: Final = ["w", [4, 3], "float32", "rda", False]


def test_a_loop_hears_of_a_model_that_no_message_can_have() -> None:
    check_told(FOUND)
    leaves = tuple(ModelLeaf(f"{'w' * 100}/{number}", (4,), "float32", "rda") for number in range(40_000))
    with pytest.raises(ConfigError, match="40000 leaves"):
        check_told(FOUND._replace(leaves=leaves))
    with pytest.raises(ConfigError, match="not printable"):
        check_told(FOUND._replace(leaves=(ModelLeaf("w\n", (4,), "float32", "rda"),)))


@pytest.mark.parametrize(
    "lie",
    [
        {"leaves": [LEAF] * 500_000},
        {"leaves": [["w", [-1], "float32", "rda", False]]},
        {"leaves": [["w", [1] * 100, "float32", "rda", False]]},
        {"leaves": [["w" * 100_000, [4], "float32", "rda", False]]},
        {"leaves": [["w\x1b[2J", [4], "float32", "rda", False]]},
        {"leaves": [["w", [4], "f" * 100_000, "rda", False]]},
        {"leaves": [["w", [4], "float32", "evil", False]]},
        {"leaves": [["w", [4], "float32", "frozen", False]]},
        {"leaves": [["w", [4], "float32", "rda"]]},
        {"leaves": {"w": LEAF}},
        {"merge": [["**", "rda"]] * 10_000},
        {"merge": [["**", "evil"]]},
        {"frozen": [["w", "0" * 32]]},
        {"tokens": 0},
        {"tokens": 1 << 70},
        {"tokens": "8"},
        {"tokens_most": 8.5},
        {"more": 1},
    ],
    ids=lambda lie: repr(next(iter(lie.items())))[:40],
)
def test_a_model_that_no_loop_has_is_refused(lie: dict[str, Any]) -> None:
    answer = json.loads(json.dumps(FOUND.answer()))
    assert ModelFound.checked(answer) == FOUND
    began = time.process_time()
    with pytest.raises((KeyError, TypeError, ValueError)) as error:
        ModelFound.checked(answer | lie)
    assert len(str(error.value)) < 2000
    assert time.process_time() - began < 1  # The daemon that asks has other runs.
