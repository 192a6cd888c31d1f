"""How long a recorder awaits the evaluation of the final model, and of which runs it is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.ops.island.evaluation_time import STOPPED_NS
from isthmus.ops.island.scores import evaluated
from isthmus.programs.engine.recorder.last_evaluation import SPARE_NS, LastEvaluation
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import RunFlows
from tests.programs.engine.recorder.recorder_story import SECOND, TICK, TickedRecorder

LIMIT = STOPPED_NS + SPARE_NS
LEARNER, EVALUATOR = Replica("learner", 0), Replica("evaluator", 0)


def look(
    last: LastEvaluation, at: int, *, is_due: bool = True, has_come: bool = False, is_stopped: bool = False
) -> None:
    last.look(at, is_due=is_due, has_come=has_come, is_stopped=is_stopped)


def figures(last: LastEvaluation, at: int = 0, *, is_over: bool = False, is_evaluated: bool = False) -> dict[str, Any]:
    return last.figures(at, is_over=is_over, is_evaluated=is_evaluated)


def test_the_wait_is_measured_from_when_nothing_else_is_missing_until_it_comes() -> None:
    last = LastEvaluation()
    look(last, 1 * SECOND, is_due=False)
    assert last.awaited_since is None
    look(last, 2 * SECOND)
    look(last, 200 * SECOND)
    assert (last.awaited_since, last.is_left_out) == (2 * SECOND, False)
    assert figures(last)["evaluated_seconds"] is None
    look(last, 210 * SECOND, has_come=True)
    look(last, 220 * SECOND, has_come=True)
    expected = {"evaluated_seconds": 208.0, "evaluation_left_out": False}
    assert (last.awaited_since, figures(last, is_evaluated=True)) == (None, expected)


def test_one_that_is_given_up_was_awaited_until_the_end() -> None:
    last = LastEvaluation()
    look(last, 2 * SECOND)
    assert figures(last, 32 * SECOND, is_over=True)["evaluated_seconds"] == 30.0


def test_what_is_never_awaited_is_not_measured() -> None:
    last = LastEvaluation()
    look(last, SECOND, is_due=False, is_stopped=True)
    assert figures(last, 9 * SECOND, is_over=True) == {"evaluated_seconds": None, "evaluation_left_out": False}


@pytest.mark.parametrize(("due_at", "stopped_at"), [(10, 0), (0, 10)])
def test_of_a_stopped_run_it_is_left_out_once_it_does_not_come_soon(due_at: int, stopped_at: int) -> None:
    last, begun = LastEvaluation(), 10 * SECOND
    for at in range(0, begun + LIMIT, TICK):
        look(last, at, is_due=at >= due_at * SECOND, is_stopped=at >= stopped_at * SECOND)
        assert not last.is_left_out
    look(last, begun + LIMIT, is_stopped=True)
    assert last.is_left_out
    assert figures(last)["evaluated_seconds"] == (begun + LIMIT) / SECOND - due_at
    assert figures(last)["evaluation_left_out"]
    assert not figures(last, is_evaluated=True)["evaluation_left_out"]  # It has come in the last moment.


def report(phase: str) -> dict[str, Any]:
    return {"slot": 0, "incarnation": 1, "tokens": 64, "step": 1, "phase": phase, "loss": 1.0, "totals": [[0, 1, 64]]}


class Story(TickedRecorder):
    """A recorder of one learner, whose final model comes at 10 s; `at` moves by ticks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (LEARNER, EVALUATOR), has_evaluator=True)
        self.tick(progress={(LEARNER, None): report("stepping")})
        self.tick(evaluation={(EVALUATOR, "0"): {**evaluated("initial", {"loss": 4.5}, 0), "took": 40 * SECOND}})
        final = {"fragment": 0, "version": [1, 0], "tensors": {}}
        self.tick(progress={(LEARNER, None): report("final")}, final={(EVALUATOR, "0"): final})

    def summary(self) -> dict[str, Any]:
        status = json.loads(json.dumps({**self.context.status, "learners": {}}))
        how: dict[str, Any] = {"program": "p", "outcome": "stopped", "learners": 1, "shards": 0, "fragment_sizes": ()}
        flows = RunFlows.of([])
        return summarise(status, [], **how, ended=self.context.at, cpu_seconds=0.0, graph=None, flows=flows)


def test_the_status_says_that_the_evaluation_is_awaited_and_how_long_the_last_one_took(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert story.until_finished(20) == 20
    ending = story.context.status["ending"]
    assert (ending["awaits"], ending["usual_seconds"], ending["is_stopped"]) == ("evaluation", 40.0, False)
    assert ending["seconds"] == pytest.approx(20, abs=1)
    story.tick(evaluation={(EVALUATOR, "1"): {**evaluated("final", {"loss": 4.0}, 64), "took": 21 * SECOND}})
    story.until_finished(5)
    summary = story.summary()
    assert (summary["final_evaluation"], summary["eval_loss_final"]) == ("made", 4.0)
    assert summary["evaluated_seconds"] == pytest.approx(20, abs=0.5)
    whole = (story.context.at - story.context.status["zero"]) / SECOND
    parts = [summary[f"{name}_seconds"] for name in ("trained", "evaluated", "ending")]
    assert sum(parts) == pytest.approx(whole, abs=0.01)
    assert parts[0] < 1


def test_a_stopped_run_ends_soon_and_says_that_the_evaluation_was_left_out(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert story.until_finished(20) == 20
    story.context.is_stopping = True
    assert story.until_finished(60) <= LIMIT / SECOND + 3
    summary = story.summary()
    assert (summary["final_evaluation"], summary["eval_loss_final"]) == ("left_out", None)
    assert story.context.status["error"] is None


def test_an_evaluator_that_leaves_it_out_is_not_awaited(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.context.is_stopping = True
    left_out = {"kind": "final", "loss": float("nan"), "tokens": 64, "left_out": True}
    story.tick(evaluation={(EVALUATOR, "1"): left_out})
    assert story.until_finished(60) <= 3
    assert story.summary()["final_evaluation"] == "left_out"
    written = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["seconds"]) for line in written] == [("initial", 40.0)]


def due(within: int, **more: Any) -> Any:
    """A final evaluation whose figures follow within so many seconds."""
    return {**evaluated("final", {"loss": 4.0}, 64), "figures_within": within * SECOND, **more}


def final_lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "final"]


def test_figures_that_come_are_in_the_one_line_of_the_final_model_and_the_summary(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.tick(evaluation={(EVALUATOR, "1"): due(900)})
    assert story.until_finished(700) == 700, "longer than an evaluation is awaited, if the task says so"
    ending = story.context.status["ending"]
    assert (ending["awaits"], ending["usual_seconds"]) == ("figures", 900.0)
    came = evaluated("final", {"loss": 4.0}, 64)
    came |= {"figures": [["right", 0.5], ["odd", float("nan")]], "better": [["right", "higher"]]}
    came["figures_fault"] = {"kind": "not finite", "detail": "odd"}
    story.tick(evaluation={(EVALUATOR, "2"): came})
    assert story.until_finished(10) < 10
    (line,) = final_lines(tmp_path)
    assert (line["figures"], line["better"]) == ({"right": 0.5, "odd": None}, {"right": "higher"})
    summary = story.summary()
    assert (summary["final_evaluation"], summary["eval_loss_final"]) == ("made", 4.0)
    assert summary["final_figures"] == {"right": 0.5, "odd": None}
    assert summary["final_figures_better"] == {"right": "higher"}
    assert summary["final_figures_fault"] == {"kind": "not finite", "detail": "odd"}


@pytest.mark.parametrize(
    ("kind", "within", "is_stopped", "is_gone", "most"),
    [("late", 20, False, False, 23), ("stopped", 900, True, False, 8), ("ended", 900, False, True, 35)],
)
def test_figures_that_do_not_come_cost_the_run_nothing_but_them(
    tmp_path: Path, kind: str, within: int, is_stopped: bool, is_gone: bool, most: int
) -> None:
    story = Story(tmp_path)
    story.tick(evaluation={(EVALUATOR, "1"): due(within)})
    story.context.is_stopping = is_stopped
    if is_gone:
        story.context.live = {Member(LEARNER, 1)}
    assert story.until_finished(1000) <= most
    summary = story.summary()
    assert (summary["final_evaluation"], summary["eval_loss_final"]) == ("made", 4.0)
    assert (summary["final_figures"], summary["final_figures_fault"]["kind"]) == ({}, kind)
    assert story.context.status["error"] is None
    assert [line["figures_fault"]["kind"] for line in final_lines(tmp_path)] == [kind]


def test_an_evaluator_that_begins_anew_has_no_more_time_for_its_figures(tmp_path: Path) -> None:
    story = Story(tmp_path)
    begun = story.context.at
    for number in range(6):
        story.tick(evaluation={(EVALUATOR, str(number)): due(30)})
        story.until_finished(6)
    assert story.body.is_finished
    assert (story.context.at - begun) / SECOND <= 33
    assert story.summary()["final_figures_fault"]["kind"] == "late"
