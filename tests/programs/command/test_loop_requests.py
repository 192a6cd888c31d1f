"""Requests of `--loop` that are refused: one message, exit status 2, and nothing is left."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import Result

from isthmus.programs.command.commands import _with_loop_arguments
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.machine.own_daemon import check_told
from isthmus.programs.engine.request import request
from isthmus.programs.engine.request.reference import called, portable, script_of
from isthmus.programs.loop_script import FILE, LOOP, MODULE, PROGRAM, LoopScript
from isthmus.programs.loop_task import LoopTask, ModelFound, loop, told_in
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
        (("--python", "python3"), "--loop FILE.py, which it runs"),
        (("--loop", "train.py", "--python", "./none"), "none that can be run"),
        (("--loop", "env", "--python", "python3"), "a program"),
        (("--loop", "no-such-program"), "nothing there"),
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


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["train", "--loop", "-m", "lab.train", "--", "-m", "--x"],
         ["train", "--loop=-m lab.train", "--loop-argument=-m", "--loop-argument=--x"]),
        (["train", "--loop", "a.py", "--", "--loop", "-m", "x"],
         ["train", "--loop", "a.py", "--loop-argument=--loop", "--loop-argument=-m", "--loop-argument=x"]),
        (["train", "--loop", "-m"], ["train", "--loop", "-m"]),
        (["status"], ["status"]),
    ],
)  # fmt: skip
def test_what_is_behind_dashes_is_the_scripts_and_a_module_is_one_value(words: list[str], read: list[str]) -> None:
    assert _with_loop_arguments(words) == read


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"loop": "train.py"}, [sys.executable, "HERE/train.py"]),
        ({"loop": "train.py", "loop_arguments": ["-m", "x"]}, [sys.executable, "HERE/train.py", "-m", "x"]),
        ({"loop": "-m lab.train", "loop_arguments": ["--"]}, [sys.executable, "-m", "lab.train", "--"]),
        ({"loop": "-m lab.train", "python": "./python"}, ["HERE/python", "-m", "lab.train"]),
        ({"loop": "train.py", "python": "lab-train"}, ["HERE/bin/lab-train", "HERE/train.py"]),
        ({"loop": "./python", "loop_arguments": ["a"]}, ["HERE/python", "a"]),
        ({"loop": "lab-train"}, ["HERE/bin/lab-train"]),
        ({"loop": "notes", "ranks": 1}, [sys.executable, "HERE/notes"]),
    ],
)
def test_a_loop_is_a_file_a_module_or_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], command: list[str]
) -> None:
    (tmp_path / "bin").mkdir()
    for name, mode in (("train.py", 0o700), ("notes", 0o600), ("python", 0o700), ("bin/lab-train", 0o700)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    text = Options(**options).keys()["run", "task"][1]
    script = script_of(text)
    assert script is not None
    assert script.command == [each.replace("HERE", str(tmp_path)) for each in command]
    assert script_of(called(LOOP, script.keywords)) == script
    assert str(tmp_path) not in portable(text)
    assert LoopTask(script, tokens_per_batch=1).origin == loop(**script.keywords).origin


@pytest.mark.parametrize(
    ("form", "last", "do"),
    [
        (FILE, "ModuleNotFoundError: No module named 'lab'", "Install lab where"),
        (PROGRAM, "ModuleNotFoundError: No module named 'isthmus'", "Install isthmus in its environment"),
        (MODULE, "python: No module named lab.train", "Check the name"),
        (MODULE, "ModuleNotFoundError: No module named 'torch'", "Install torch where"),
        (FILE, "TypeError: Island.step() missing 1 required keyword-only argument: 'tokens'", "tokens=n"),
        (FILE, "ValueError: no data", "Correct what it raises"),
        (FILE, "", "Write `with isthmus.island"),
    ],
)
def test_a_script_that_ends_before_a_step_is_told_by_its_cause(form: str, last: str, do: str) -> None:
    output = io.BytesIO(f"Traceback (most recent call last):\n{last}\n".encode() if last else b"")
    with pytest.raises(ConfigError) as error:
        told_in(io.BytesIO(), output, 1, LoopScript("lab.train", (), "/x", form=form))
    assert error.value.faults[0].remedy.startswith(do) or do in error.value.faults[0].remedy


RAISED: Final = """begins
Traceback (most recent call last):
  File "/x/train.py", line 7, in <module>
    state = step(state, batch)
  File "/env/lib/site-packages/optax/step.py", line 70, in step
    raise TypeError(text)
TypeError: dot_general requires contracting dimensions
to have the same shape, got (4,) and (7,).
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception.
"""
"""As jax ends: with a note behind the message."""


@pytest.mark.parametrize(("text", "place"), [(RAISED, "/x/train.py:7"), (RAISED.replace("(7,)", "x " * 800), "")])
def test_what_a_script_raised_is_told_whole_and_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        told_in(io.BytesIO(), io.BytesIO(text.encode()), 1, LoopScript("/x/train.py", (), "/x"))
    found = error.value.faults[0].found
    assert "TypeError: dot_general requires contracting dimensions to have the same shape, got (4,)" in found
    assert place in found
    assert "JAX" not in found
    assert ("run the script alone" in found) == (not place)


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


HANDLED: Final = f"{RAISED}falls back to another kernel\nepoch 2\ndone\n"
IGNORED: Final = f"""{RAISED}Exception ignored in: <function Old.__del__ at 0x7f>
Traceback (most recent call last):
  File "/x/old.py", line 3, in __del__
AttributeError: of a destructor
"""
BEFORE: Final = f"""Exception ignored in: <function Old.__del__ at 0x7f>
Traceback (most recent call last):
  File "/x/old.py", line 3, in __del__
AttributeError: of a destructor
{RAISED}"""


@pytest.mark.parametrize(
    ("text", "status", "cause"),
    [
        (HANDLED, 0, "'done'"),
        (IGNORED, 1, "TypeError: dot_general"),
        (BEFORE, 1, "TypeError: dot_general"),
        (IGNORED.replace(RAISED, ""), 1, "of a destructor' as its last line"),
    ],
)
def test_an_exception_that_ended_nothing_is_no_cause(text: str, status: int, cause: str) -> None:
    with pytest.raises(ConfigError) as error:
        told_in(io.BytesIO(), io.BytesIO(text.encode()), status, LoopScript("/x/train.py", (), "/x"))
    (fault,) = error.value.faults
    assert cause in fault.found
    assert ("Correct what it raises" in fault.remedy) == cause.startswith("TypeError")
