"""Of many learners a screen has those that are looked for, and quantiles of all."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rich.console

from isthmus.programs.engine.results.crowd import EXTREMES, ROWS_MAX, lost_share
from isthmus.programs.study.terminal import figures, many_learners
from isthmus.programs.study.terminal import status as status_view
from isthmus.programs.study.terminal.many_learners import picked, summary_rows

MANY = 1024
ODD = {7: "compiling", 900: "gone"}


def report(slot: int) -> dict[str, Any]:
    """Of slot n a step takes n + 1 ms, and n of 10,000 tokens are lost, of every second one."""
    accounts = [[10_000 - slot, 0, slot * (slot % 2), 0, 99]]
    return {"incarnation": 1, "phase": "stepping", "step": 100 + slot, "tokens": 6_400, "loss": 2.0 + slot / MANY,
            "step_ms": slot + 1.0, "staleness": 3, "bytes_sent": 1000, "bytes_received": 2000,
            "accounts": accounts}  # fmt: skip


REPORTS = {slot: report(slot) for slot in range(MANY)}
STATES = {slot: ODD.get(slot, "stepping") for slot in range(MANY)}


def test_a_few_are_all_shown_and_need_no_summary() -> None:
    few = dict.fromkeys(range(ROWS_MAX), "stepping")
    assert picked(few, REPORTS) == list(few)
    assert summary_rows(few, REPORTS, "learner", figures.figures, figures.COLUMNS) == []


def test_of_many_the_slowest_those_that_lose_most_and_the_unusual_have_rows() -> None:
    slowest, losing = set(range(MANY - EXTREMES, MANY)), {MANY - 1 - 2 * number for number in range(EXTREMES)}
    assert set(picked(STATES, REPORTS)) == slowest | losing | set(ODD)
    assert picked(dict.fromkeys(STATES, "starting"), {}) == []  # Nothing is known of any, and all are alike.


def test_many_that_are_in_another_state_do_not_fill_the_screen() -> None:
    half = {slot: "gone" if slot % 3 else "stepping" for slot in range(MANY)}
    assert len(picked(half, {})) == EXTREMES


def test_quantiles_stand_for_all() -> None:
    head, *quantiles = summary_rows(STATES, REPORTS, "learner", figures.figures, figures.COLUMNS)
    assert head == {"learner": "1,024 learners", "state": "1,022 stepping"}
    assert [row["step time"] for row in quantiles] == ["103 ms", "512 ms", "922 ms"]
    assert [row["loss"] for row in quantiles] == ["2.100", "2.499", "2.899"]
    assert [row["stale"] for row in quantiles] == ["3"] * 3
    assert [row["lost"] for row in quantiles] == ["0 %", "0 %", "8.2 %"]


@pytest.mark.parametrize(
    ("accounts", "share"), [([], None), ([[0, 0, 0, 0, 9]], None), ([[6, 1, 2, 1, 9], [0] * 5], 0.4)]
)
def test_what_a_learner_loses(accounts: list[list[int]], share: float | None) -> None:
    assert lost_share({"accounts": accounts}) == share


def test_a_loss_that_is_no_number_is_in_no_quantile() -> None:
    wrong = {slot: {**each, "loss": float("nan")} for slot, each in REPORTS.items()}
    rows = summary_rows(STATES, wrong, "learner", figures.figures, figures.COLUMNS)
    assert {row.get("loss", "") for row in rows} <= {"", "-"}


def host(name: str, phase: str) -> dict[str, Any]:
    return {"name": name, "role": name.partition("/")[0], "pid": 4711, "phase": phase, "incarnation": 1,
            "state": "gone" if phase == "gone" else "alive", "reason": None, "machine": "local"}  # fmt: skip


def test_status_of_a_thousand_fits_on_a_screen_and_json_has_all() -> None:
    hosts = [host("syncer/0", "serving"), *(host(f"learner/{slot}", STATES[slot]) for slot in range(MANY))]
    training = {"phase": "training", "zero": 1, "tokens": 5, "tokens_budget": 10, "learners": REPORTS}
    status = {"run": "/runs/one", "outcome": "running", "hosts": hosts, "training": training}
    console = rich.console.Console(width=120)
    with console.capture() as capture:
        console.print(status_view.table(status, [], 120))
    lines = capture.get().splitlines()
    assert len(lines) < 50
    assert sum("syncer/0" in line for line in lines) == 1
    assert all(sum(line.startswith(f"learner/{slot} ") for line in lines) == 1 for slot in (7, 900, 1023))
    assert not any(line.startswith("learner/0 ") for line in lines)
    assert len(json.loads(json.dumps(status_view._complete(status)))["hosts"]) == MANY + 1
    live = figures.learners_table({**training, "hosts": hosts}, 120)
    assert live.row_count < 50
    assert many_learners.kind_of("away 3.2 s") == "away"
