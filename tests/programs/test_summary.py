"""The figures of a run: token accounts that add up whatever died, and the same figures live and at the end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.accounts import FATES
from isthmus.programs.recorder import Recorder
from isthmus.programs.summary import fragment_accounts, goodput, merged_share, summarise
from isthmus.runtime.disk import DISK, Disk

SECOND = 1_000_000_000
SIZES = [300, 100]


def life(slot: int, incarnation: int, accounts: list[list[int]], **more: Any) -> dict[str, Any]:
    """A learner's life as the summary takes it; `accounts`: [merged, overlapped, refused, lost, pending] a fragment."""
    known = {"bytes_sent": 1, "bytes_received": 2, "step": 4, "device_kind": "cpu", "stepping": 0, "waited": 0}
    return {"slot": slot, "incarnation": incarnation, "accounts": accounts, "tokens": sum(accounts[0]), **known, **more}


FORMER = life(0, 1, [[50, 10, 0, 0, 40], [60, 0, 20, 0, 20]])
PRESENT = [life(0, 2, [[70, 30, 0, 0, 0], [100, 0, 0, 0, 0]]), life(1, 1, [[90, 10, 0, 0, 0], [80, 0, 20, 0, 0]])]


def test_what_a_life_had_pending_when_it_died_is_lost() -> None:
    merged = {0: {0: 120, 1: 90}, 1: {0: 160, 1: 80}}
    accounts = fragment_accounts([FORMER, *PRESENT], merged, 2)
    assert [account["lost"] for account in accounts] == [40, 20]
    assert [account["pending"] for account in accounts] == [0, 0]
    assert merged_share(accounts, SIZES) == pytest.approx((300 * 210 + 100 * 240) / 400 / 300)


def test_what_was_merged_after_the_last_report_is_not_lost() -> None:
    accounts = fragment_accounts([FORMER, *PRESENT], {0: {0: 150, 1: 90}, 1: {0: 160, 1: 80}}, 2)
    assert (accounts[0]["merged"], accounts[0]["lost"]) == (240, 10)


def test_what_another_slot_has_not_heard_of_yet_is_its_own() -> None:
    """Slot 1 has 20 merged tokens pending in its books; they do not make less of what slot 0 lost."""
    late = life(1, 1, [[70, 10, 0, 0, 20], [80, 0, 20, 0, 0]])
    accounts = fragment_accounts([FORMER, PRESENT[0], late], {0: {0: 120, 1: 90}, 1: {0: 160, 1: 80}}, 2)
    assert (accounts[0]["lost"], accounts[0]["pending"]) == (40, 0)


def test_what_a_shard_merged_and_took_with_it_is_not_merged() -> None:
    """The learners were told of a version without these tokens, and booked them as refused."""
    accounts = fragment_accounts([PRESENT[1]], {0: {1: 95}, 1: {1: 100}}, 2)
    assert [account["merged"] for account in accounts] == [90, 80]
    assert [account["pending"] for account in accounts] == [0, 0]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[int, dict[int, int]]]:
    """Lives of up to three slots, and what a shard says that it merged: anything."""
    lives = []
    for slot in range(draw(st.integers(1, 3))):
        for incarnation in range(1, draw(st.integers(1, 3)) + 1):
            tokens = draw(st.integers(0, 100))
            cuts = sorted(draw(st.lists(st.integers(0, tokens), min_size=3, max_size=3)))
            parts = [cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1], 0, tokens - cuts[2]]
            lives.append(life(slot, incarnation, [parts]))
    return lives, {0: {slot: draw(st.integers(0, 400)) for slot in range(3)}}


@given(histories())
def test_accounts_add_up_and_nothing_is_negative(
    history: tuple[list[dict[str, Any]], dict[int, dict[int, int]]],
) -> None:
    (account,) = fragment_accounts(*history, 1)
    assert sum(account[part] for part in FATES) == account["trained"]
    assert min(account.values()) >= 0
    assert 0 <= merged_share([account], [7]) <= 1


def test_goodput_leaves_out_what_was_refused_and_what_was_waited_for() -> None:
    worker = life(0, 1, [[50, 0, 50, 0, 0]], stepping=10 * SECOND, waited=2 * SECOND)
    assert goodput([worker], 16.0) == pytest.approx(0.5 * 8 / 16)
    assert goodput([worker], 0.0) == 0.0


def test_a_row_says_what_died_with_a_learner_and_when_the_run_began() -> None:
    merged = {0: {0: 120, 1: 90}, 1: {0: 160, 1: 80}}
    status = {"learners": {0: PRESENT[0], 1: PRESENT[1]}, "former": [FORMER], "merged_tokens": merged}
    summary = figures({**status, "zero": 3 * SECOND, "stepping_until": 5 * SECOND})
    assert summary["start_seconds"] == 3.0
    assert [row["tokens_lost"] for row in summary["per_learner"]] == [(40 * 300 + 20 * 100) / 400, 0.0]
    assert sum(row["tokens_lost"] for row in summary["per_learner"]) == pytest.approx(summary["tokens_lost"])
    assert [row["restarts"] for row in summary["per_learner"]] == [1, 0]


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
        bytes_sent_by_shards=0,
    )


# -- what the recorder publishes ---------------------------------------------------------------------------------------


class Context:
    """What a recorder is opened with: a clock that the test moves, and what was published last."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.status: dict[str, Any] = {}
        self.disk: Disk = DISK

    def now(self) -> int:
        return round(self.seconds * SECOND)

    def publish(self, status: dict[str, Any]) -> None:
        self.status = status

    def stop_requested(self) -> bool:
        return False

    def members(self) -> frozenset[Any]:
        return frozenset()


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
        "accounts": accounts,
        "versions": [],
        "totals": [[slot, incarnation, tokens]],
        "bytes_sent": 10,
        "bytes_received": 20,
        "waited": SECOND // 4,
        "device_kind": "cpu",
    }


def merging(fragment: int, kind: str, epoch: int, tokens: list[list[int]]) -> dict[str, Any]:
    told = SimpleNamespace(shard=0, epoch=epoch, round=1, fragment=fragment, kind=kind, version=[epoch, 1], voters=[0])
    known = {
        "weights": [1.0],
        "left_out": [],
        "refused": [],
        "shortened": [],
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
    made = Recorder(tmp_path, tokens=1_000, learners=2, sizes=SIZES, has_syncer=True, has_evaluator=False)
    context = Context()
    made.open(context)
    return made, context


def test_figures_while_the_run_goes_on_are_those_of_the_summary(recorder: tuple[Recorder, Context]) -> None:
    record, context = recorder
    context.seconds = 4.0
    record(progress={0: report(0, 1, FORMER["accounts"], 1.0)})
    context.seconds = 8.0
    both = {0: report(0, 2, PRESENT[0]["accounts"], 2.0), 1: report(1, 1, PRESENT[1]["accounts"], 4.5)}
    merges = {0: merging(0, "merge", 1, [[0, 120], [1, 90]]), 1: merging(1, "merge", 1, [[0, 160], [1, 80]])}
    record(progress=both, merged=merges)
    status, summary = context.status, figures(context.status)
    assert status["zero"] == 3 * SECOND
    assert status["merged_share"] == summary["merged_share"] == pytest.approx(0.725)
    assert round(status["goodput"], 6) == summary["goodput"]
    assert 0.1 < status["goodput"] < 0.9
    record.close()


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
        record(evaluation={"kind": kind, "tokens": tokens, "loss": loss})
    record.close()
    lines = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    found = [(line["kind"], line["tokens"], line["eval_loss"]) for line in lines]
    assert found == [("initial", 0, 5.5), ("during", 400, 3.0), ("during", 600, 2.5), ("final", 1000, 2.0)]
    assert context.status["eval_loss_initial"] == 5.5
