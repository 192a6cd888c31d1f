"""What a long run grows by: a line through what is read after it has settled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.long.soak_minutes import DISK, bytes_in, figures_of, growth, is_within, sample, table


def test_growth_is_that_of_a_line_since_a_moment_as_a_share_of_its_begin() -> None:
    times = [0.0, 60, 120, 180, 240]
    assert growth(times, [1.0, 5, 100, 101, 102], 120) == pytest.approx(0.02)
    assert growth(times, [1.0, 5, 100, 99, 98], 120) == pytest.approx(-0.02)
    assert growth(times, [1.0, 5, 7, 7, 7], 120) == pytest.approx(0, abs=1e-9)
    assert growth(times, [1.0, 5, 100, 101, 102], 180) is None


def test_a_bar_is_for_processes_and_the_disk_has_none() -> None:
    pairs = [(0.0, 100.0), (60.0, 101.0), (120.0, 102.0)]
    rows = figures_of({"learner/0": {"memory": pairs}, DISK: {"bytes": pairs}}, 0.0)
    assert [is_within(row) for row in rows] == [False, None]
    assert [row["last"] for row in rows] == [102.0, 102.0]
    found = {"minutes": 2.0, "settled": 0.0, "rows": rows, "books_differ": 0, "tokens": 5}
    assert table(found).count("+2.00 %") == 2


def test_a_process_is_read_and_one_that_has_ended_is_left_out(tmp_path: Path) -> None:
    found = sample(os.getpid())
    assert found["threads"] >= 1
    assert found["descriptors"] > 2
    assert found["memory"] > 1e6
    assert sample(0) == {}
    (tmp_path / "a").write_bytes(b"12345")
    assert bytes_in(tmp_path) >= 5
