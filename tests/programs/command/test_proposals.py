"""What is proposed for a name that is none of the command's: options and settings that exist."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from isthmus.programs import SHIPPED
from isthmus.programs.command import proposals
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.run_settings import SCHEMA
from tests.command_line import app


def typed(*words: str) -> str:
    result = CliRunner().invoke(app, ["train", *words])
    assert result.exit_code == 2
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        (("--lr", "1e-3"), "--set task.lr="),
        (("--lr=1e-3",), "--set task.lr="),
        (("--learning-rate", "1e-3"), "--set task.lr="),
        (("--per_device_train_batch_size", "4"), "--set task.batch="),
        (("--lora_r", "8"), "--set task.lora_rank="),
        (("--fragments", "4"), "--set program.fragments="),
        (("--snapshots", "4"), "--set run.snapshots="),
        (("--epochs", "3"), "--tokens"),
        (("--learnres", "3"), "--learners"),
        (("--set", "lr=1"), "--set task.lr="),
        (("--set", "batch_size=1"), "--set task.batch="),
    ],
)
def test_what_is_proposed(words: tuple[str, ...], proposed: str) -> None:
    assert f"Did you mean {proposed}" in typed(*words)


def test_what_is_like_nothing_is_told_the_form() -> None:
    assert "program.interval=12" in typed("--set", "xyzzy=1")
    assert proposals.meant_by("xyzzy") == ""


def test_each_proposal_is_there() -> None:
    settings = {f"run.{key}" for key in SCHEMA.keys}
    settings |= {f"program.{key}" for name in SHIPPED for key in Program(name).schema().keys}
    shown = CliRunner().invoke(app, ["train", "--help"]).stdout
    for key, names in proposals.MEANT.items():
        assert key in settings if key.startswith(("run.", "program.")) else key.startswith("task.") or key in shown
        for name in names:
            assert key in proposals.meant_by(f"--{name.replace('_', '-')}")


def test_a_script_in_the_place_of_a_program(tmp_path: object) -> None:
    path = f"{tmp_path}/train.py"
    with open(path, "w") as file:
        file.write("from isthmus import Task\n\ndef task():\n    return Task(1, 2)\n\nmine = Task(1, 2)\nother = 1\n")
    told = typed(path)
    assert f"--loop {path}, a task in it by --task {path}:task or --task {path}:mine." in told
    with open(path, "w") as file:
        file.write("raise SystemExit(\n")
    assert f"--loop {path}, a task in it by --task {path}:NAME" in typed(path)
