"""The blocking programs in real processes, with real deaths: who waits, who goes on, and who gives up and says why."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import Run

pytestmark = [pytest.mark.process, pytest.mark.soak]


def _has_come_back(run: Run, name: str) -> bool:
    host = run.host(name)
    return host.get("incarnation") == 2 and host["phase"] == "stepping"


def test_a_learner_of_streaming_diloco_takes_part_again_and_a_syncer_takes_over(start: Callable[..., Run]) -> None:
    run = start("streaming-diloco", "--set", "program.interval=8")
    run.wait_for_merges(10)
    run.kill("learner/1")
    run.wait_for(lambda: _has_come_back(run, "learner/1"))
    run.wait_for(lambda: run.voters()[-1] == [0, 1])
    run.kill("syncer/0")
    run.wait_for(lambda: run.epochs()[-1:] == [2])
    run.wait_for_merges(10)
    assert run.voters()[-1] == [0, 1]
    run.stop()


def test_elastic_data_parallel_goes_on_with_those_that_are_left(start: Callable[..., Run]) -> None:
    run = start("elastic-data-parallel", learners=3)
    run.wait_for(lambda: run.steps().get("learner/2", 0) > 20)
    run.kill("learner/0")  # The donor of whoever comes.
    run.wait_for(lambda: _has_come_back(run, "learner/0"))
    before = run.steps()
    run.wait_for(lambda: all(step > before[name] + 20 for name, step in run.steps().items()))
    run.command.send_signal(signal.SIGINT)
    run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 0, run.story()
    summary = run.summary()
    assert [row["restarts"] for row in summary["per_learner"]] == [1, 0, 0]
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]


def test_data_parallel_fails_with_its_learner_and_says_why(start: Callable[..., Run]) -> None:
    run = start("data-parallel", learners=3)
    run.wait_for(lambda: run.steps().get("learner/2", 0) > 20)
    run.kill("learner/1")
    _, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 1
    assert "learner 1 died, and data-parallel cannot go on without it" in error
    assert run.summary()["outcome"] == "failed"
    survivor = run.folder / "logs" / "learner-0.log"
    assert "Error" not in survivor.read_text()  # It waited.
