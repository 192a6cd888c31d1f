"""What a run takes over from the one whose model it begins from, and when one learner goes on alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.programs import FOLDER_TASK, SHIPPED_TASK, folder_task, language_model
from isthmus.programs.command import beginning
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.new_folder import document
from isthmus.programs.engine.results import words
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError

SIZES = {"layers": 3, "width": 32, "heads": 2, "context": 32}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the shipped task of other sizes than the usual ones."""
    (tmp_path / "run").mkdir()
    task = {**SIZES, "lr": 0.5, "batch": 7, "data": ["/theirs"]}
    text = document({"run": {"program": "diloco", "tokens": 9}, "program": {"interval": 3}, "task": task})
    (tmp_path / "run" / "config.toml").write_text(text)
    return tmp_path / "run"


def sections(origin: Path | None, **options: Any) -> Any:
    found, faults = Options(goes_on_from=origin, **options).sections()
    assert not faults
    return found


def test_sizes_are_those_of_the_run_and_nothing_else_is(run: Path) -> None:
    found = sections(run, run={"learners": "4"})
    assert found.task == SIZES
    assert (found.program_reference, found.program) == (None, {})
    assert "tokens" not in found.run
    assert sections(None).task == {}


def test_those_that_are_given_count(run: Path) -> None:
    assert sections(run, sets=["task.layers=5"]).task == {**SIZES, "layers": "5"}
    assert sections(run, model="micro").task["width"] == 128
    assert sections(run, task=["mine.py:task"]).task == {}


def test_a_folder_that_is_of_no_run_has_none(tmp_path: Path) -> None:
    assert beginning.of_model(tmp_path) == {}
    (tmp_path / "config.toml").write_text("[[[")
    with pytest.raises(ConfigError):
        beginning.of_model(tmp_path)


def test_those_of_a_task_that_is_named_are_read_where_they_stand(run: Path) -> None:
    text = reference.called(FOLDER_TASK, {"folder": "/model", "lora_rank": 4, "lr": 0.1, "data": ["/ours"]})
    (run / "config.toml").write_text(document({"run": {"task": text}, "program": {}, "task": {}}))
    assert beginning.of_model(run) == {("task", "folder"): "/model", ("task", "lora_rank"): 4}
    (run / "config.toml").write_text(document({"run": {"task": "mine.py:task"}, "program": {}, "task": {}}))
    assert beginning.of_model(run) == {}


def test_every_setting_that_is_taken_over_is_one_of_its_task() -> None:
    for task, kind in ((SHIPPED_TASK, language_model.task), (FOLDER_TASK, folder_task.task)):
        assert set(beginning._OF_MODEL[task]) <= Schema.of("task", kind).keys.keys()


@pytest.mark.parametrize(
    "options", [{"run": {"learners": "1"}}, {"sets": ["run.learners=1"]}, {"run": {"learners": "1", "tokens": "1e6"}}]
)
def test_one_learner_goes_on_alone(run: Path, options: dict[str, Any]) -> None:
    found = sections(run, **options)
    assert (found.program_reference, found.program) == (beginning.ALONE_BY, dict(beginning.ALONE))
    assert sections(None, **options).program == {}


@pytest.mark.parametrize(
    "options",
    [
        {"run": {"learners": "2"}},
        {},
        {"run": {"learners": "1"}, "program": "diloco"},
        {"run": {"learners": "1"}, "sets": ["program.outer_lr=0.7"]},
    ],
)
def test_several_do_not_nor_does_one_whose_program_is_chosen(run: Path, options: dict[str, Any]) -> None:
    assert sections(run, **options).program.keys() <= {"outer_lr"}
    assert sections(run, **options).program_reference in (None, "diloco")


def test_both_losses_are_told() -> None:
    summary = {"begins_from": "/run", "eval_loss_initial": 2.5, "eval_loss_final": 2.25}
    assert all(
        each in words.begun_from(summary) for each in ("/run", words.decimal(2.5), f"{words.decimal(0.25)} less")
    )
    assert "more" in words.begun_from({**summary, "eval_loss_final": 2.75})
    assert words.begun_from({**summary, "eval_loss_final": None}).endswith("/run")
    assert words.begun_from({**summary, "begins_from": None}) == ""
