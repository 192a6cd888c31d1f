"""Borrowed learners in virtual time: they shorten a run by nearly what they add."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.long import bench_mixtures


@pytest.mark.soak
def test_borrowed_learners_shorten_a_run_by_nearly_what_they_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert bench_mixtures.main(["borrowed", "--steps", "80", "--json", "--page", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [case["joined"] for case in told["cases"]] == [1, 2, 4, 12]
    assert all(case["limit"] <= case["time"] < case["limit"] + 0.08 for case in told["cases"])
    assert page.read_text().count("<circle") == 12


def test_learners_of_which_a_quarter_is_no_number_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_mixtures.main(["borrowed", "--learners", "5"]) == 2
    assert "multiple of 4" in capsys.readouterr().err
