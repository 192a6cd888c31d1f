"""Learners that live and hang, or are slow: the one is killed and replaced, the other is called slow and left alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from isthmus.runtime.cores.membership_messages import SlowHost
from isthmus.runtime.supervision.incidents import Condemned, Lingered
from tests.programs.engine.run.process_run import TASK, Run

pytestmark = [pytest.mark.process, pytest.mark.soak]

SLOW_AT = 300
HANGS_AT = 1500
BATCH = f"""
def batch(at):
    mark = Path(__file__).with_name("has-hung")
    if at.slot == 1 and at.position >= {HANGS_AT} and not mark.exists():
        mark.touch()
        threading.Event().wait()
    time.sleep(0.04 if at.slot == 2 and at.position >= {SLOW_AT} else 0.004)
"""
ODD = "import threading\nfrom pathlib import Path\n" + TASK.replace("\ndef batch(at):\n    time.sleep(0.004)\n", BATCH)
"""Learner 1 hangs once, after some seconds of steps; learner 2 becomes ten times slower before."""


IDLE = "run.loop_idle_seconds"


def lingered(run: Run) -> list[Lingered]:
    """Why the first life of learner 1 was killed."""
    told = [each.verdict for each in run.incidents("learner/1#1") if isinstance(each, Condemned)]
    return [verdict for verdict in told if isinstance(verdict, Lingered)]


def test_who_hangs_is_replaced_and_who_is_slow_is_not(start: Callable[..., Run]) -> None:
    run = start("--set", f"{IDLE}=12", learners=3, task=ODD)
    run.wait_for_merges(20)
    run.wait_for(lambda: run.host("learner/2").get("state") == "slow", 40)
    told = run.incident("learner/2")
    assert isinstance(told, SlowHost)
    assert (told.pace.others, told.pace.own_ns >= 3 * told.pace.usual_ns) == (2, True)
    (why,) = run.wait_for(lambda: lingered(run), 60)
    assert why.setting == IDLE
    assert 12 <= why.lasted_ns / 1e9 < 30
    run.wait_for(lambda: run.host("learner/1").get("phase") == "stepping" and run.host("learner/1")["incarnation"] == 2)
    before = run.merges()

    def has_voted() -> bool:
        lines = (run.folder / "merges.jsonl").read_text().splitlines()[before:]
        return any(1 in json.loads(line)["voters"] for line in lines)

    run.wait_for(has_voted)
    assert (run.host("learner/2")["state"], run.host("learner/2")["incarnation"]) == ("slow", 1)
    summary = run.stop()
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 1, 0]
    report = (run.folder / "report.html").read_text()
    assert "learner 2 is slow: " in report
    assert IDLE in report
