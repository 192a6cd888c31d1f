"""A real run that SIGTERM sets aside, and that goes on hours later: its end lists no failure and says how to go on, and
the hours are no time of it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from copy import copy as shallow
from itertools import pairwise
from typing import Any, Final

import pytest
from typer.testing import Result

from isthmus.programs.engine.results.reading import load, read_absences
from isthmus.runtime.supervision.incidents import Departed, Ended, HomeSetAside, WentOn
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import Run, resume
from tests.programs.engine.run.test_standstill import HOUR, pass_time

pytestmark = [pytest.mark.process, pytest.mark.further]

HOURS: Final = 3
END_SECONDS: Final = 30.0
"""For what a run does behind its last merge, of hours between its lives."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that was told to leave after some merges, as a scheduler tells it: all of its processes."""
    run = Run(tmp_path_factory.mktemp("interrupted"), "--set", "run.snapshot_every_seconds=0.5")
    try:
        run.wait_for_merges(20)
        run.signal(signal.SIGTERM)
        out, error = run.command.communicate(timeout=PATIENCE)
        assert run.command.returncode == 75, (out, error, run.story())
        assert "isthmus train --resume run\n" in error
        run.wait_until_gone()
        yield run
    finally:
        run.close()


@pytest.fixture(scope="module")
def later(run: Run) -> Iterator[tuple[dict[str, Any], Run]]:
    """The summary at its first end, and a copy of it that has gone on some hours later, and was stopped."""
    copy = shallow(run)
    copy.folder = run.here / "later"
    shutil.copytree(run.folder, copy.folder)
    pass_time(copy.folder, HOURS * HOUR)
    copy.command = resume(copy, folder="later")
    try:
        copy.wait_for_merges(20)
        copy.stop()
        yield run.summary(), copy
    finally:
        copy.close()


def test_its_hosts_have_left_in_order(run: Run) -> None:
    told = run.incidents()
    ends = [incident for incident in told if isinstance(incident, Ended)]
    assert HomeSetAside() in told
    assert len(ends) == 5
    assert all(isinstance(incident.end, Departed) and not incident.end.machine for incident in ends)
    assert read_absences(run.folder) == ()
    assert load(run.folder).absences == ()


def test_its_status_says_how_to_go_on_and_of_which_tokens_the_last_evaluation_is(
    run: Run, typed: Callable[..., Result]
) -> None:
    status = json.loads(typed(run.here, "status", "run", "--json").stdout)
    assert (status["outcome"], status["summary"]["paused_seconds"]) == ("interrupted", 0.0)
    assert status["go_on"]["way"] == "resume"
    assert status["go_on"]["command"].startswith("isthmus train --resume ")
    at, total = status["summary"]["eval_tokens_last"], status["summary"]["tokens_total"]
    assert status["summary"]["eval_loss_final"] is None
    assert 0 <= at <= total


def test_the_hours_until_it_goes_on_are_no_time_of_it(later: tuple[dict[str, Any], Run]) -> None:
    before, copy = later
    summary = copy.summary()
    (went_on,) = [incident for incident in copy.incidents() if isinstance(incident, WentOn)]
    assert went_on.paused_ns / 1e9 == pytest.approx(summary["paused_seconds"], abs=0.001)
    assert summary["paused_seconds"] > HOURS * 3600
    # Both lives, and the start of the second, for which a busy machine may take a while.
    assert before["wall_seconds"] < summary["wall_seconds"] < before["wall_seconds"] + PATIENCE
    # What the first life alone has stepped is this share of it; with the hours it would be a thousandth of that.
    assert summary["goodput"] > 0.5 * before["goodput"] * before["wall_seconds"] / summary["wall_seconds"] > 0
    assert summary["uptime"] > 0.01


def test_what_is_written_of_both_lives_is_on_one_axis_without_a_gap(later: tuple[dict[str, Any], Run]) -> None:
    first, copy = later
    times = [json.loads(line)["time"] for line in (copy.folder / "metrics.jsonl").read_text().splitlines()]
    # The run is as long as until its last merge; its hosts have a little to say after that.
    assert max(times) <= copy.summary()["wall_seconds"] + END_SECONDS
    assert max(after - before for before, after in pairwise(times)) < PATIENCE
    record = load(copy.folder)
    assert [remark.topic for remark in record.remarks].count("pause") == 1
    assert all(-PATIENCE < remark.at <= record.wall_seconds + END_SECONDS for remark in record.remarks)
    assert record.timeline is not None
    ends = [firing.ended for spans in record.timeline.firings.values() for firing in spans]
    assert max(ends) <= record.wall_seconds + END_SECONDS
    assert min(ends) < first["wall_seconds"]
    assert record.absences == ()


def test_a_spec_and_an_events_file_of_both_lives_agree_on_the_instant_of_the_submission(
    later: tuple[dict[str, Any], Run],
) -> None:
    _, copy = later
    (went_on,) = [incident for incident in copy.incidents() if isinstance(incident, WentOn)]
    assert json.loads((copy.folder / "spec.json").read_text())["zero_ns"] == went_on.zero_ns
