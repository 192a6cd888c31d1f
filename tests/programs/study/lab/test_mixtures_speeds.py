"""Mixed speeds in virtual time: who waits, whose work counts, and what the command tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isthmus.programs.command.main import app


@pytest.mark.long
@pytest.mark.slow
def test_lock_step_waits_for_the_slower_and_grace_keeps_their_work(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = json.loads(command("--slower", "0.5", "--steps", "60", "--json", "--page", str(page)).stdout)
    lock_step, alone, grace = told["cases"]
    assert lock_step["goodput"] == pytest.approx(0.75, abs=0.04)
    assert min(alone["goodput"], grace["goodput"]) >= 0.99
    assert alone["goodput_merged"] < 0.6 < 0.95 < grace["goodput_merged"]
    assert grace["seconds"] < lock_step["seconds"]
    assert page.read_text().count("<circle") == 6


def test_numbers_out_of_range_are_refused_together() -> None:
    done = command("--learners", "1", "--slower", "0", "--steps", "1")
    assert done.exit_code == 2
    assert done.stderr.count("expected") == 3


def command(*options: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "speeds", *options], catch_exceptions=False, prog_name="isthmus")
