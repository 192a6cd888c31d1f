"""What is recorded reaches a function of the user's, each line once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboardX import SummaryWriter

from isthmus.programs.study.terminal import hook
from isthmus.programs.study.terminal.hook import HookedView, tensorboard
from isthmus.runtime.errors import ConfigError

REPORT = {"time": 1.0, "learner": 1, "tokens": 64, "loss": 2.5, "metrics": {"accuracy": 0.5}, "staleness": 3}


class View:
    """What an inner view was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def update(self, status: dict[str, Any]) -> None:
        self.told.append(status)

    def close(self, summary: dict[str, Any]) -> None:
        self.told.append(summary)


def write(folder: Path, name: str, **fields: Any) -> None:
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(fields) + "\n")


def test_each_line_is_handed_over_once_and_none_of_before(tmp_path: Path) -> None:
    write(tmp_path, "metrics", **{**REPORT, "time": 0.5})
    inner, records = View(), list[dict[str, Any]]()
    view = HookedView(inner, tmp_path, records.append)
    view.update({"tokens": 1})
    assert records == []
    write(tmp_path, "metrics", **REPORT)
    write(tmp_path, "evaluations", time=0.9, tokens=60, eval_loss=3.0, kind="during")
    view.update({"tokens": 2})
    write(tmp_path, "merges", time=2.0, fragment=0, round=3, kind="merge", version=[1, 1], voters=[0, 1], merges=4)
    view.close({"outcome": "done"})
    assert [record["file"] for record in records] == ["evaluations", "metrics", "merges"]
    assert (records[1]["loss"], records[1]["learner"], records[2]["voters"]) == (2.5, 1, [0, 1])
    assert inner.told == [{"tokens": 1}, {"tokens": 2}, {"outcome": "done"}]


def test_tensorboard_has_losses_over_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []
    add = SummaryWriter.add_scalar

    def note(self: SummaryWriter, name: str, value: float, at: int) -> None:
        written.append((name, value, at))
        add(self, name, value, at)

    monkeypatch.setattr(SummaryWriter, "add_scalar", note)
    write_record = tensorboard(tmp_path / "tb")
    write_record({"file": "metrics", **REPORT})
    write_record({"file": "metrics", **REPORT, "loss": None, "staleness": None})
    write_record({"file": "merges", "version": [1, 1], "voters": [0, 1], "merges": 4})
    write_record({"file": "merges", "version": None, "voters": [], "merges": 4})
    write_record({"file": "changes"})
    write_record({"file": "evaluations", "tokens": 60, "eval_loss": 3.0, "metrics": {}})
    assert written == [
        ("loss/learner-1", 2.5, 64),
        ("accuracy/learner-1", 0.5, 64),
        ("staleness/learner-1", 3, 64),
        ("accuracy/learner-1", 0.5, 64),
        ("merge/learners", 2, 4),
        ("loss/global", 3.0, 60),
    ]
    (file,) = (tmp_path / "tb").glob("events.out.tfevents*")
    assert file.stat().st_size > 0


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hook, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isthmus\[tensorboard\]"):
        tensorboard(tmp_path)
