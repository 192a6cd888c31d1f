"""The evaluation of a final model that its run has left out, made later: as the run would have made it, and once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus import data_parallel, decoupled_diloco, train
from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.results.run_files import SUMMARY

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
LINES = "evaluations.jsonl"
OF_EVALUATION = ("eval_loss_final", "eval_loss_last", "eval_tokens_last", "eval_metrics")


def trained(folder: Path, task: str, program: Any) -> Path:
    train(program, task, learners=2, tokens=64 * 40, run_dir=folder, transport="inproc", quiet=True)
    return folder


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / SUMMARY).read_text())
    return found


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / LINES).read_text().splitlines()]


def without_evaluation(run: Path, *, keeps_line: bool = False) -> None:
    """Make a run one that has left out the evaluation of its final model."""
    left_out = dict.fromkeys(OF_EVALUATION) | {"eval_metrics": {}, "final_evaluation": "left_out"}
    (run / SUMMARY).write_text(json.dumps(summary_of(run) | left_out))
    if not keeps_line:
        kept = [line for line in lines_of(run) if line["kind"] != "final"]
        (run / LINES).write_text("".join(json.dumps(line) + "\n" for line in kept))
        (run / "recorder.state").unlink()  # It would know.


@pytest.fixture(scope="module")
def of_numpy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = decoupled_diloco(interval=4, fragments=2)
    return trained(tmp_path_factory.mktemp("runs") / "run", f"{EXAMPLES / 'numpy_task.py'}:task", program)


@pytest.fixture
def run(of_numpy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(of_numpy, tmp_path / "run"))


def test_it_is_the_one_that_the_run_would_have_made(run: Path, typed: Callable[..., Any]) -> None:
    before, last = summary_of(run), lines_of(run)[-1]
    without_evaluation(run)
    shown = typed(run.parent, "evaluate", "run", "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == {
        "loss": before["eval_loss_final"],
        "metrics": {},
        "written": True,
        "figures": {},
        "figures_fault": None,
        **dict.fromkeys(("perplexity", "bits_per_byte", "tokens", "windows")),
    }
    after = summary_of(run)
    for name in ("eval_loss_final", "eval_loss_last", "eval_metrics"):
        assert after[name] == before[name]
    assert after["eval_tokens_last"] == after["tokens_total"]  # Here none are under way that the model was not told of.
    assert (before["final_evaluation"], after["final_evaluation"]) == ("made", "later")
    own = {
        **last,
        "seconds": None,
        "queued_seconds": None,
        "time": after["wall_seconds"],
        "tokens": after["tokens_total"],
    }
    assert lines_of(run)[-1] == own
    assert (run / "report.html").stat().st_mtime_ns >= (run / SUMMARY).stat().st_mtime_ns
    text = (run / SUMMARY).read_text(), (run / LINES).read_text()
    assert typed(run.parent, "evaluate", "run").exit_code == 2  # As ever: it is no language model.
    assert ((run / SUMMARY).read_text(), (run / LINES).read_text()) == text


@pytest.mark.slow
def test_that_of_a_program_without_a_global_model_is_of_the_mean(tmp_path: Path, typed: Callable[..., Any]) -> None:
    run = trained(tmp_path / "run", f"{EXAMPLES / 'mine.py'}:task", data_parallel())
    before = summary_of(run)
    without_evaluation(run)
    assert typed(tmp_path, "evaluate", "run").exit_code == 0
    assert summary_of(run)["eval_loss_final"] == pytest.approx(before["eval_loss_final"], rel=1e-6)


@pytest.mark.further
@pytest.mark.parametrize("is_of_paths", [False, True])
@pytest.mark.slow
def test_that_of_a_language_model_has_its_tokens_and_windows(
    is_of_paths: bool, tmp_path: Path, typed: Callable[..., Any]
) -> None:
    words = ["train", *(["dipaco"] if is_of_paths else []), "--learners", "2", "--tokens", "3000"]
    settings = ["task.width=16", "task.layers=2", "task.heads=2", "task.context=16", "task.batch=4"]
    settings += ["task.paths=[2]"] if is_of_paths else []
    words += [word for each in settings for word in ("--set", each)]
    assert typed(tmp_path, *words, "--data", str(EXAMPLES), "--run-dir", "run", "--transport", "inproc").exit_code == 0
    run = tmp_path / "run"
    before = summary_of(run)
    without_evaluation(run)
    shown = typed(tmp_path, "evaluate", "run", "--json")
    assert shown.exit_code == 0, shown.output
    found, after = json.loads(shown.stdout), summary_of(run)
    assert after["eval_loss_final"] == pytest.approx(before["eval_loss_final"], rel=1e-6)
    assert after["eval_metrics"].keys() == before["eval_metrics"].keys()
    assert found["tokens"] == 16 * found["windows"] > 0
    assert (
        json.loads(typed(tmp_path, "evaluate", "run", *(["--path", "0"] if is_of_paths else []), "--json").stdout)[
            "written"
        ]
        is False
    )


def test_a_call_that_ended_before_the_summary_goes_on_with_the_line(run: Path, typed: Callable[..., Any]) -> None:
    before, lines = summary_of(run), lines_of(run)
    without_evaluation(run, keeps_line=True)
    assert typed(run.parent, "evaluate", "run").exit_code == 0
    assert summary_of(run)["eval_loss_final"] == before["eval_loss_final"]
    assert lines_of(run) == lines


def test_a_run_that_was_to_evaluate_nothing_is_evaluated_when_asked(run: Path, typed: Callable[..., Any]) -> None:
    loss = summary_of(run)["eval_loss_final"]
    without_evaluation(run)
    nothing = {"time": 0.0, "tokens": 2560, "eval_loss": None, "kind": "final", "metrics": {}}
    (run / LINES).write_text(json.dumps(nothing) + "\n")
    none = dict.fromkeys(("final_evaluation", "eval_loss_initial", "eval_loss_last"))
    (run / SUMMARY).write_text(json.dumps(summary_of(run) | none))
    assert json.loads(typed(run.parent, "evaluate", "run", "--json").stdout)["loss"] == loss
    assert (summary_of(run)["eval_loss_final"], summary_of(run)["final_evaluation"]) == (loss, "later")


def test_a_run_that_another_process_has_is_left_alone(run: Path, typed: Callable[..., Any]) -> None:
    without_evaluation(run)
    text = (run / SUMMARY).read_text()
    with RunLock(run):
        refused = typed(run.parent, "evaluate", "run")
    assert refused.exit_code == 2
    assert (run / SUMMARY).read_text() == text


def test_a_model_that_is_not_whole_is_refused(run: Path, typed: Callable[..., Any]) -> None:
    without_evaluation(run)
    (run / "snapshots" / "final" / "fragment-1.safetensors").unlink()
    text = (run / LINES).read_text()
    assert typed(run.parent, "evaluate", "run").exit_code == 2
    assert ((run / LINES).read_text(), summary_of(run)["final_evaluation"]) == (text, "left_out")
