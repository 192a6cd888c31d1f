"""Borrowed learners in virtual time: they shorten a run by nearly what they add."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isthmus.programs.command.main import app


@pytest.mark.soak
def test_borrowed_learners_shorten_a_run_by_nearly_what_they_add(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ["simulate", "borrowed", "--steps", "80", "--json", "--page", str(page)]
    told = json.loads(CliRunner().invoke(app, options, catch_exceptions=False, prog_name="isthmus").stdout)
    assert [case["joined"] for case in told["cases"]] == [1, 2, 4, 12]
    assert all(case["limit"] <= case["time"] < case["limit"] + 0.08 for case in told["cases"])
    assert page.read_text().count("<circle") == 12


def test_learners_of_which_a_quarter_is_no_number_are_refused() -> None:
    done = CliRunner().invoke(app, ["simulate", "borrowed", "--learners", "5"], prog_name="isthmus")
    assert done.exit_code == 2
    assert "multiple of 4" in done.stderr
