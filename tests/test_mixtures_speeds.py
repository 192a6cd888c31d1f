"""Mixed speeds in virtual time: who waits, whose work counts, and what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.long import bench_mixtures


@pytest.mark.long
@pytest.mark.slow
def test_lock_step_waits_for_the_slower_and_grace_keeps_their_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert bench_mixtures.main(["speeds", "--steps", "60", "--json", "--page", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    lock_step, overlapped, alone, carried, grace = told["cases"]
    assert lock_step["goodput"] == pytest.approx(lock_step["published"], abs=0.02)
    assert overlapped["goodput"] == pytest.approx((1 + 1.18) / 2 / 1.18, abs=0.01)
    assert overlapped["published"] is None
    assert min(each["goodput"] for each in (alone, carried, grace)) >= 0.995
    assert alone["goodput_merged"] < 0.6 < 0.95 < min(carried["goodput_merged"], grace["goodput_merged"])
    assert grace["seconds"] < lock_step["seconds"]
    assert page.read_text().count("<circle") == 8


def test_numbers_out_of_range_are_refused_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_mixtures.main(["speeds", "--learners", "1", "--slower", "0", "--steps", "1"]) == 2
    assert capsys.readouterr().err.count("expected") == 3
