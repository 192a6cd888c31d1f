"""What the benches of curves compute from their cells: seeds of kills, the model's figures, and break-even shares."""

from __future__ import annotations

from argparse import Namespace
from itertools import pairwise
from typing import Any

import pytest

from tests.bench.long import bench_equal_time, bench_faults
from tests.bench.long.bench_equal_time import DECOUPLED, PARALLEL, SHARES

ASKED = Namespace(learners=4, failures=11.0, kills=10, seed=0, step_seconds=0.25)


@pytest.mark.parametrize("mean", bench_faults.MEANS)
def test_a_seed_has_ten_kills_and_no_six_lives_in_a_row_that_end_soon(mean: float) -> None:
    kills = bench_faults.drawn(ASKED, mean, bench_faults.seed_of(ASKED, mean))
    assert 10 <= len(kills) <= 13
    assert {fault.kind for fault in kills} == {"kill"}
    least = bench_faults.HEALTHY_IF_KILLED / 1e9 + bench_faults.RESTART_SECONDS
    soon = [after.at - before.at < least for before, after in pairwise(kills)]
    assert all(sum(soon[first : first + 5]) < 5 for first in range(len(soon)))


def cell(program: str, kills: list[tuple[int, float]], **more: Any) -> dict[str, Any]:
    snapshots = {"snapshot_seconds": 4.0, "cost_seconds": 0.0} if program == bench_faults.PARALLEL else None
    base = {"kills": kills, "step_seconds": 0.5, "seconds": 100.0, "learners": 4, "snapshots": snapshots}
    return {**base, "absences": [(5.0, 1), (5.5, 2)], "stalls": [(1.0, 0.0), (3.0, 0.0)], **more}


def test_the_model_is_given_the_moments_of_failure_and_what_a_failure_takes() -> None:
    kills = [(0, 20.3), (1, 60.3)]
    own = {program: cell(program, kills) for program in bench_faults.PROGRAMS}
    kept = {program: bench_faults.predicted(each, program, each) for program, each in own.items()}
    # All stall twice for 5 s; work since the last snapshot is half a second of 20.5, and 3 of 35.
    assert kept["data-parallel"] == pytest.approx(1 - (2 * 5.0 + 0.5 + 3.0) / 100)
    # Two of four learners are away once, and lose half an interval of 12 s.
    assert kept["decoupled-diloco"] == pytest.approx(1 - 2 * (5.0 + 6.0) / 4 / 100)
    # All stall twice for 2 s; then a fourth is away until 5 s after the failure.
    assert kept["elastic-data-parallel"] == pytest.approx(1 - (2 * 2.0 + 2 * 3.0 / 4) / 100, abs=0.005)


def test_failures_that_meet_lives_that_have_just_begun_stall_for_longer() -> None:
    once, often = ([(0, at) for at in times] for times in ([20.0], [20.0, 26.0, 33.0]))
    parallel = bench_faults.PARALLEL
    first, more = (
        bench_faults.predicted(cell(parallel, kills), parallel, cell(parallel, kills)) for kills in (once, often)
    )
    assert first - more > 3 * 5.0 / 100 - 0.05


def test_break_even_is_where_the_line_crosses() -> None:
    losses = [1.0, 1.1, 1.3, 1.6, 2.0]
    assert bench_equal_time.break_even(losses, 1.2) == pytest.approx(0.225)
    assert bench_equal_time.break_even(losses, 1.0) == 0.0
    assert bench_equal_time.break_even(losses, 0.9) is None
    assert bench_equal_time.break_even(losses, 2.1) is None


def test_the_figures_are_of_complete_seeds_with_an_interval() -> None:
    cells = {}
    for seed in range(3):
        for program, tokens, share, _ in bench_equal_time.wanted(1000, seed):
            loss = 1.2 + 0.01 * seed if program == DECOUPLED else 1.0 + share
            name = bench_equal_time.name(program, tokens, share, seed)
            cells[name] = {"loss": loss, "seconds": 2.0, "took": 10.0}
    found = bench_equal_time.figures(cells, 1000)
    assert found["seeds"] == [0, 1, 2]
    assert found["break_even"][0] == pytest.approx(0.21)
    assert found["break_even"][1] < 0.21 < found["break_even"][2]
    assert [row["share"] for row in found["rows"]] == list(SHARES)
    del cells[bench_equal_time.name(PARALLEL, 1000, 0.3, 2)]
    assert bench_equal_time.figures(cells, 1000)["seeds"] == [0, 1]


@pytest.mark.parametrize("share", SHARES[1:])
@pytest.mark.parametrize("variant", [bench_equal_time.AS_DECOUPLED, bench_equal_time.Variant(4.0, "bf16")])
def test_a_transfer_takes_what_makes_a_step_wait_for_the_share(share: float, variant: bench_equal_time.Variant) -> None:
    waits = bench_equal_time.TRANSFERS * variant.delay_ms(share)
    waits += bench_equal_time.EXCHANGES * variant.step_ms() / bench_equal_time.PARTS
    less = variant.batch * bench_equal_time.FORMS[variant.form]  # Of exchanges, or of their bytes.
    assert waits / (waits + variant.step_ms() / less) == pytest.approx(share)
    assert variant.tokens_share(share) == pytest.approx(variant.step_ms() / (waits + variant.step_ms()))


def test_data_parallel_chooses_with_seed_0_what_the_other_seeds_have() -> None:
    cells: dict[str, Any] = {}
    for _ in range(2):  # The second time all choices are there.
        for each in bench_equal_time.wanted_free(cells, 1000, range(2)):
            program, _, share, seed, variant = each
            gain = 0.1 * (variant.batch == 2.0) + 0.05 * (variant.form == "int8")
            loss = 1.2 if program == DECOUPLED else 1.0 + share - gain + 0.01 * seed
            cells[bench_equal_time.name(*each)] = {"loss": loss, "seconds": 2.0, "took": 10.0}
    choices = [bench_equal_time.chosen(cells, 1000, share) for share in SHARES]
    assert choices == [(2.0, "float32"), *[(2.0, "int8")] * 4]
    own = [name for name in cells if name.startswith(PARALLEL) and "seed 1" in name]
    assert len(own) == len(SHARES)
    found = bench_equal_time.figures(cells, 1000, is_free=True)
    assert found["seeds"] == [0, 1]
    assert found["break_even"][0] == pytest.approx(0.345)
    assert bench_equal_time.figures(cells, 1000)["seeds"] == [0]
