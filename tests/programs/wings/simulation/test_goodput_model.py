"""The event model by hand, and the cells beside those that were published."""

from __future__ import annotations

import json
from collections import Counter
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isthmus.programs.wings.simulation.goodput import (
    DATA_PARALLEL,
    DECOUPLED,
    ELASTIC,
    PUBLISHED,
    PUBLISHED_CHIPS,
    TERMS,
    Cell,
    FailureTerms,
    RestartTerms,
    Work,
    cells,
    goodput_of,
    lived,
    unmerged,
    uptime,
)
from tests.command_line import app

QUICK = FailureTerms(step_seconds=1.0, stall_seconds=10.0, upscale_seconds=5.0, calm_seconds=20.0, repair_seconds=30.0)


def test_a_failure_stalls_at_the_end_of_its_step_and_its_slice_comes_back_in_an_upscale() -> None:
    life = lived([4.5], QUICK, 10, 100.0)
    assert life.stalls == ((5.0, 15.0, 1), (35.0, 40.0, 0))
    assert life.works == (Work(0.0, 5.0, 1.0, 0.0), Work(15.0, 35.0, 0.9, 0.0), Work(40.0, 100.0, 1.0, 0.0))
    assert life.good_seconds() == 5 + 0.9 * 20 + 60


def test_a_failure_during_a_stall_costs_its_slice_only() -> None:
    life = lived([4.5, 8.0], QUICK, 10, 30.0)
    assert life.stalls == ((5.0, 15.0, 1),)
    assert life.works[1].share == 0.8


def test_slices_that_are_repaired_come_back_with_any_stall() -> None:
    life = lived([4.5, 33.2], QUICK, 10, 60.0)
    assert [work.share for work in life.works] == [1.0, 0.9, 0.9]  # The second failed just before the first was back.
    assert lived([4.5, 33.2], FailureTerms(1.0, 10.0, 5.0, 20.0, 20.0), 10, 60.0).works[1].share == 0.9


def test_a_learner_without_slices_waits_for_the_first() -> None:
    assert lived([4.5], QUICK, 1, 60.0).works[1] == Work(34.5, 60.0, 1.0, 0.0)


def test_work_that_is_in_no_merge_dies_where_the_state_does() -> None:
    assert unmerged(0.0, 10.0) == 0.0
    assert unmerged(10.0, 10.0) == unmerged(50.0, 10.0) == 5.0
    assert unmerged(7.0, 0.0) == 0.0
    assert lived([4.5], FailureTerms(1.0, 10.0, interval_seconds=8.0), inf, 20.0).works[0] == Work(
        0.0, 5.0, 1.0, 5 - 25 / 16
    )


def test_uptime_ends_some_steps_after_the_last_learner_stalled() -> None:
    first, second = lived([4.5], QUICK, 10, 41.0), lived([9.5], QUICK, 10, 41.0)
    assert uptime([first, second], QUICK, 41.0) == pytest.approx((12 + 25) / 40)


@pytest.mark.slow
def test_every_published_cell_is_met_and_learners_keep_a_run_up() -> None:
    found = cells([2, 4, 8, 16], [*PUBLISHED_CHIPS, 2_400_000], 2)
    off = [abs(cell.goodput - cell.published) for cell in found if cell.published is not None]
    assert len(off) == sum(map(len, PUBLISHED.values()))
    assert max(off) <= 0.03
    assert sum(off) / len(off) <= 0.012
    assert all(cell.uptime >= 0.99 for cell in found if cell.learners >= 4)
    assert all(0 <= cell.goodput <= 1 for cell in found)
    standings = Counter(cell.standing for cell in found)
    assert standings == {"calibrated": 20, "held out": 7, "held out, new": 3}
    new = [(cell.program, cell.learners, cell.chips) for cell in found if cell.standing == "held out, new"]
    assert new == [(DATA_PARALLEL, 1, 2_400_000), (ELASTIC, 1, 2_400_000), (DECOUPLED, 16, 150_000)]


def test_a_cell_that_nobody_published_has_no_standing() -> None:
    assert Cell(DECOUPLED, 3, 150_000, 0.9, None, 1.0).standing is None
    assert Cell(ELASTIC, 1, 160_000, 0.9, None, 1.0).standing is None


def test_one_of_m_learners_is_one_with_an_mth_of_the_chips() -> None:
    one, four = goodput_of(TERMS[DECOUPLED], 1, 150_000, 0)[0], goodput_of(TERMS[DECOUPLED], 4, 600_000, 0)[0]
    assert one == pytest.approx(four, abs=0.015)


def test_the_command_tells_cells_and_draws_them(tmp_path: Path) -> None:
    options = ["--learners", "1,2", "--chips", "150e3,1.2e6", "--seeds", "2", "--json", "--page"]
    told = json.loads(command(*options, str(tmp_path / "page.html")).stdout)
    assert [(cell["program"], cell["learners"], cell["chips"]) for cell in told["cells"]] == [
        (program, learners, chips)
        for program, learners in (("data-parallel", 1), ("elastic-data-parallel", 1), (DECOUPLED, 1), (DECOUPLED, 2))
        for chips in (150_000, 1_200_000)
    ]
    assert all(cell["goodput_deviation"] > 0 and 0 < cell["uptime"] <= 1 for cell in told["cells"])
    alone = json.loads(command("--learners", "1", "--chips", "150e3", "--seeds", "1", "--json").stdout)
    assert {cell["goodput_deviation"] for cell in alone["cells"]} == {None}
    page = (tmp_path / "page.html").read_text()
    assert page.count("<circle") == 8 + 6
    assert "://" not in page


@pytest.mark.parametrize(
    "options", [["--learners", "0"], ["--chips", "1e9"], ["--chips", "many"], ["--seeds", "0"], ["--chips", "300"]]
)
def test_impossible_numbers_are_refused(options: list[str]) -> None:
    done = command(*options)
    assert done.exit_code == 2
    assert "expected" in done.stderr


def command(*options: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "goodput", *options], catch_exceptions=False, prog_name="isthmus")


ONE = FailureTerms(1.0, 10.0, repair_seconds=inf)


def test_restarted_processes_lose_what_is_after_their_last_snapshot_and_each_of_these_costs() -> None:
    restarts = RestartTerms(snapshot_seconds=2.5, snapshot_cost_seconds=0.25)  # At ends of steps: every 3 s.
    first, second = lived([7.5], ONE, inf, 30.0, restarts).works
    assert (first.begin, first.end, first.lost) == (0.0, 8.0, 2.0 + 2 * 0.25)
    assert (second.begin, second.end, second.lost) == (18.0, 30.0, 4 * 0.25)
    assert lived([7.5], ONE, inf, 30.0, RestartTerms()) == lived([7.5], ONE, inf, 30.0)


def test_failures_in_a_row_stall_longer_and_one_in_a_stall_begins_it_again() -> None:
    restarts = RestartTerms(healthy_seconds=5.0, backoff_seconds=(0.0, 1.0, 4.0))
    stalls = lived([6.5, 20.5, 33.5, 60.5], ONE, inf, 100.0, restarts).stalls
    # After 7, 4, 2 and 13 s of work.
    assert [(stall.begin, stall.end) for stall in stalls] == [(7.0, 17.0), (21.0, 32.0), (34.0, 48.0), (61.0, 71.0)]
    [stall] = lived([6.5, 12.0], ONE, inf, 100.0, restarts).stalls
    assert (stall.begin, stall.end) == (7.0, 12.0 + 10.0 + 1.0)
