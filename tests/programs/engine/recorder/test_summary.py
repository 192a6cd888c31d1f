"""The figures of a run: token accounts that add up whatever died, and the same figures live and at the end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.programs.engine.recorder import summary
from isthmus.programs.engine.recorder.accounts import allocated_seconds, entries, goodput
from isthmus.programs.engine.recorder.books import Books
from isthmus.programs.engine.recorder.node import Recorder
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.programs.engine.results import words
from isthmus.programs.engine.results.lines import EvaluationLine
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import RunFlows
from isthmus.runtime.system.disk import DISK, Disk

SECOND = 1_000_000_000
SIZES = [300, 100]


def life(slot: int, incarnation: int, accounts: list[list[int]], **more: Any) -> dict[str, Any]:
    """A learner's life as the summary takes it; `accounts`: [merged, overlapped, refused, lost, pending] a fragment."""
    known = {"bytes_sent": 1, "bytes_received": 2, "step": 4, "device_kind": "cpu", "stepping": 0, "waited": 0}
    return {"slot": slot, "incarnation": incarnation, "accounts": accounts, "tokens": sum(accounts[0]), **known, **more}


FORMER = life(0, 1, [[50, 10, 0, 0, 40], [60, 0, 20, 0, 20]])
PRESENT = [life(0, 2, [[70, 30, 0, 0, 0], [100, 0, 0, 0, 0]]), life(1, 1, [[90, 10, 0, 0, 0], [80, 0, 20, 0, 0]])]
MERGED = {0: [[0, 1, 50], [0, 2, 70], [1, 1, 90]], 1: [[0, 1, 60], [0, 2, 100], [1, 1, 80]]}


def test_goodput_leaves_out_what_was_refused_and_what_was_waited_for() -> None:
    worker = life(0, 1, [[50, 0, 50, 0, 0]], stepping=10 * SECOND, waited=2 * SECOND)
    found = entries({"learners": {0: worker}, "merged_tokens": {0: [[0, 1, 50]]}}, 1)
    assert goodput([worker], found, [8], 16.0) == pytest.approx(0.5 * 8 / 16)
    assert goodput([worker], found, [8], 0.0) == 0.0


def test_goodput_leaves_out_what_died_with_a_learner_that_could_not_say_so() -> None:
    former = {**FORMER, "stepping": 10 * SECOND}
    status = {"former": [former], "learners": {0: PRESENT[0]}, "merged_tokens": MERGED}
    died, refused = (40 * 300 + 20 * 100) / 400, 20 * 100 / 400
    assert goodput([former], entries(status, 2), SIZES, 10.0) == pytest.approx(1 - (died + refused) / 100)


def test_a_slot_has_time_from_when_it_joined_to_when_it_left() -> None:
    status = {"zero": 10 * SECOND, "stepping_until": 30 * SECOND, "joined": [[2, 25 * SECOND], [3, 4 * SECOND]]}
    assert allocated_seconds(status, 2) == 20 + 20 + 5 + 20
    gone = {"gone_at": 18 * SECOND}
    assert allocated_seconds({**status, "learners": {1: gone}}, 2) == 65.0, "it may come back"
    assert allocated_seconds({**status, "learners": {1: {**gone, "is_gone": True}}}, 2) == 65.0 - 12
    assert allocated_seconds({**status, "learners": {1: {**gone, "phase": "leaving"}}}, 2) == 65.0 - 12, "it has left"
    assert allocated_seconds({"zero": None, "stepping_until": 0}, 2) == 0.0


def test_a_row_says_what_died_with_a_learner_and_when_the_run_began() -> None:
    merged = {0: [[0, 1, 50], [0, 2, 70], [1, 1, 90]], 1: [[0, 1, 60], [0, 2, 100], [1, 1, 80]]}
    status = {
        "learners": {0: PRESENT[0], 1: PRESENT[1]},
        "former": [FORMER],
        "merged_tokens": merged,
        "merges_whole": {0: True, 1: True},
    }
    summary = figures({**status, "zero": 3 * SECOND, "stepping_until": 5 * SECOND})
    assert summary["start_seconds"] == 3.0
    assert [row["tokens_lost"] for row in summary["per_learner"]] == [(40 * 300 + 20 * 100) / 400, 0.0]
    assert sum(row["tokens_lost"] for row in summary["per_learner"]) == pytest.approx(summary["tokens_lost"])
    assert [row["restarts"] for row in summary["per_learner"]] == [1, 0]


def test_losses_that_are_not_finite_are_counted_over_all_lives_where_all_of_them_count() -> None:
    counted = [{**each, "not_finite": count} for each, count in ((PRESENT[0], 2), (PRESENT[1], 0))]
    status = {"learners": dict(enumerate(counted)), "former": [{**FORMER, "not_finite": 5}]}
    summary = figures(status)
    assert [row["losses_not_finite"] for row in summary["per_learner"]] == [7, 0]
    assert summary["losses_not_finite"] == 7
    summary = figures({**status, "former": [FORMER]})  # Of a folder from before they were counted.
    assert [row["losses_not_finite"] for row in summary["per_learner"]] == [None, 0]
    assert summary["losses_not_finite"] is None
    assert figures({"learners": {}})["losses_not_finite"] is None


def figures(status: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run of two learners."""
    return summarise(
        status,
        [],
        program="ring",
        outcome="done",
        learners=2,
        shards=1,
        fragment_sizes=SIZES,
        ended=9 * SECOND,
        cpu_seconds=1.0,
        graph=None,
        flows=RunFlows(),
    )


# -- what the recorder publishes ---------------------------------------------------------------------------------------


class Context:
    """What a recorder is opened with: a clock that the test moves, and what was published last."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.member = Member(Replica("recorder", 0), 1)
        self.status: dict[str, Any] = {}
        self.disk: Disk = DISK
        self.live: set[Member] = set()

    def now(self) -> int:
        return round(self.seconds * SECOND)

    def publish(self, status: dict[str, Any]) -> None:
        self.status = status

    def leave_requested(self) -> bool:
        return False

    def stop_requested(self) -> bool:
        return False

    def was_on(self, member: Any) -> str:
        return ""

    def members(self) -> frozenset[Any]:
        return frozenset(self.live)


def report(slot: int, incarnation: int, accounts: list[list[int]], stepping: float) -> dict[str, Any]:
    tokens = sum(accounts[0])
    return {
        "slot": slot,
        "incarnation": incarnation,
        "phase": "stepping",
        "step": 5,
        "tokens": tokens,
        "stepping": round(stepping * SECOND),
        "step_time": 1_000_000,
        "loss": 2.0,
        "delay_steps": 0,
        "staleness": 1,
        "sick": False,
        "sick_step": 0,
        "accounts": accounts,
        "versions": [],
        "totals": [[slot, incarnation, tokens]],
        "bytes_sent": 10,
        "bytes_received": 20,
        "waited": SECOND // 4,
        "device_kind": "cpu",
    }


def merging(fragment: int, kind: str, epoch: int, tokens: list[list[int]]) -> dict[str, Any]:
    told = SimpleNamespace(
        shard=0,
        epoch=epoch,
        round=1 + fragment,
        fragment=fragment,
        kind=kind,
        version=[epoch, 1],
        origin=[epoch, 0],
        voters=[0],
    )
    known = {
        "weights": [1.0],
        "left_out": [],
        "refused": [],
        "shortened": [],
        "opposed": [],
        "capped": [],
        "momentum": None,
        "reason": "",
        "merged_tokens": tokens,
        "merges": 1,
    }
    times = {
        "merged_tokens": tokens,
        "merges": 1,
        "opened_at": 0,
        "quorum_at": 0,
        "closed_at": 0,
        "published_at": 0,
        "votes": 1,
    }
    return {**vars(told), **known, **times}


@pytest.fixture
def recorder(tmp_path: Path) -> tuple[Recorder, Context]:
    made = Recorder(tmp_path, tokens=1_000, learners=2, sizes=SIZES, has_model=True, has_evaluator=False)
    context = Context()
    made.open(context)
    return made, context


def _learner(slot: int) -> tuple[Replica, None]:
    return Replica("learner", slot), None


def test_figures_while_the_run_goes_on_are_those_of_the_summary(recorder: tuple[Recorder, Context]) -> None:
    record, context = recorder
    context.seconds = 4.0
    record(progress={_learner(0): report(0, 1, FORMER["accounts"], 1.0)})
    context.seconds = 8.0
    both = {
        _learner(0): report(0, 2, PRESENT[0]["accounts"], 2.0),
        _learner(1): report(1, 1, PRESENT[1]["accounts"], 4.5),
    }
    merges = {
        0: merging(0, "merge", 1, [[0, 1, 50], [0, 2, 70], [1, 1, 90]]),
        1: merging(1, "merge", 1, [[0, 1, 60], [0, 2, 100], [1, 1, 80]]),
    }
    record(progress=both, merged=merges)
    status, summary = context.status, figures(context.status)
    assert status["zero"] == 3 * SECOND
    assert status["merged_share"] == summary["merged_share"] == pytest.approx(0.725)
    assert round(status["goodput"], 6) == summary["goodput"]
    assert 0.1 < status["goodput"] < 0.9
    record.close()


def test_a_slot_that_joins_has_time_from_then_on_whatever_becomes_of_the_recorder(
    recorder: tuple[Recorder, Context], tmp_path: Path
) -> None:
    record, context = recorder
    for seconds, slots in [(1.0, 2), (4.0, 2), (6.0, 3), (8.0, 3)]:
        context.seconds, context.live = seconds, {Member(Replica("learner", slot), 1) for slot in range(slots)}
        record(progress={_learner(0): report(0, 1, FORMER["accounts"], 1.0)} if seconds > 1 else {})
    assert context.status["joined"] == [[2, 6 * SECOND]]
    assert allocated_seconds(context.status, 2) == pytest.approx(5.0 + 5.0 + 2.0)
    record.close()
    context.member = Member(Replica("recorder", 0), 2)
    again = Recorder(tmp_path, tokens=1_000, learners=2, sizes=SIZES, has_model=True, has_evaluator=False)
    again.open(context)
    context.seconds = 9.0
    again(progress={_learner(0): report(0, 1, FORMER["accounts"], 1.0)})
    assert allocated_seconds(context.status, 2) == pytest.approx(6.0 + 6.0 + 3.0)
    again.close()


def test_lives_of_which_only_others_told_are_gone_once_they_are_not_live(
    recorder: tuple[Recorder, Context], tmp_path: Path
) -> None:
    record, context = recorder
    context.live = {Member(Replica("learner", 0), 1), Member(Replica("learner", 1), 1)}
    merged = [[0, 1, 50], [1, 1, 20]]
    for live, gone in [(context.live, []), (context.live - {Member(Replica("learner", 1), 1)}, [[1, 1]])]:
        context.seconds, context.live = context.seconds + 1, live
        record(
            progress={_learner(0): report(0, 1, FORMER["accounts"], 1.0)}, merged={0: merging(0, "merge", 1, merged)}
        )
        assert context.status["gone"] == gone
    record.close()
    assert summary.figures(tmp_path, context.status, sizes=SIZES, learners=2)["gone"] == [[1, 1]]


def test_an_epoch_is_served_when_something_was_merged_in_it(recorder: tuple[Recorder, Context]) -> None:
    record, context = recorder
    rounds = ("initial", 1, {}), ("merge", 1, {0: 1}), ("recover", 2, {0: 1}), ("final", 2, {0: 2})
    for number, (kind, epoch, expected) in enumerate(rounds, 1):
        context.seconds += 1
        record(merged={0: {**merging(0, kind, epoch, []), "round": number}})
        assert context.status["epochs"] == expected
    record.close()


def test_an_evaluator_that_begins_again_goes_on_with_the_curve(
    recorder: tuple[Recorder, Context], tmp_path: Path
) -> None:
    record, context = recorder
    points = [
        ("initial", 0, 5.5),
        ("during", 400, 3.0),
        ("initial", 0, 5.5),
        ("initial", 600, 2.5),
        ("final", 1000, 2.0),
    ]
    for kind, tokens, loss in points:
        context.seconds += 1
        record(evaluation={(Replica("evaluator", 0), tokens): {"kind": kind, "tokens": tokens, "loss": loss}})
    record.close()
    lines = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    found = [(line["kind"], line["tokens"], line["eval_loss"]) for line in lines]
    assert found == [("initial", 0, 5.5), ("during", 400, 3.0), ("during", 600, 2.5), ("final", 1000, 2.0)]
    assert context.status["eval_loss_initial"] == 5.5


def test_of_a_final_model_that_was_not_evaluated_there_is_no_loss_and_a_line_that_says_so() -> None:
    books = Books(sizes=SIZES)
    books.accept(EvaluationLine(kind="initial", eval_loss=5.5, tokens=0), 0)
    books.accept(EvaluationLine(kind="during", eval_loss=4.5, tokens=60, metrics={"accuracy": 0.1}), 0)
    lives = {"learners": {0: PRESENT[0], 1: PRESENT[1]}, "former": [FORMER], "merges_whole": {0: True, 1: True}}
    given_up = figures({**books.figures(2), **lives})
    assert (given_up["eval_loss_initial"], given_up["eval_loss_final"], given_up["eval_metrics"]) == (5.5, None, {})
    assert (given_up["eval_loss_last"], given_up["eval_tokens_last"]) == (4.5, 60)
    assert "not evaluated" in words.not_evaluated(given_up)
    assert words.evaluated_at(given_up) == f"at {words.percent(60 / given_up['tokens_total'])} of the tokens trained"
    books.accept(EvaluationLine(kind="final", eval_loss=2.5, tokens=400), 0)
    evaluated = figures({**books.figures(2), **lives})
    assert (evaluated["eval_loss_final"], words.not_evaluated(evaluated)) == (2.5, "")


def test_tokens_that_a_step_back_lost_are_told_by_learner() -> None:
    """As the last learner that says so has the model: what others trained after the snapshot is not in it."""
    lives = {
        slot: {**PRESENT[slot], "accounts": [], "tokens": tokens, "in_model": [[0, 100], [1, 90]]}
        for slot, tokens in ((0, 120), (1, 80))
    }
    told = summarise(
        {"learners": lives, "former": [], "tokens_final": 190, "zero": SECOND, "stepping_until": 5 * SECOND},
        [],
        program="data-parallel",
        outcome="done",
        learners=2,
        shards=0,
        fragment_sizes=(),
        ended=9 * SECOND,
        cpu_seconds=1.0,
        graph=None,
        flows=RunFlows(),
    )
    assert told["tokens_lost"] == 20.0
    assert [row["tokens_lost"] for row in told["per_learner"]] == [20.0, 0.0]
    assert [row["tokens"] for row in told["per_learner"]] == [120, 90], (
        "more than learner 1 had reported is in the model"
    )
    assert "95" in words.untrained({**told, "tokens_budget": 221})
    assert words.untrained({**told, "tokens_budget": 210}) == words.untrained({**told, "outcome": "stopped"}) == ""


def test_a_pause_of_everything_is_no_time_in_which_a_life_that_ended_could_train(
    recorder: tuple[Recorder, Context],
) -> None:
    record, context = recorder
    context.live = {Member(Replica("learner", 0), 1)}
    context.seconds = 4.0
    record(progress={_learner(0): report(0, 1, FORMER["accounts"], 1.0)})
    context.seconds, context.live = 44.0, set()
    record()
    gone = context.status["learners"][0]
    assert (gone["gone_paused"] - gone["reported_paused"], gone["gone_at"]) == (40 * SECOND, 44 * SECOND)
    assert figures(context.status)["books"]["unreported_estimate"] == 0
    record.close()
