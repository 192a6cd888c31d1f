"""A run with an island of several processes, all of whose processes are killed, goes on from its last snapshot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.effort import soaked
from tests.programs.engine.run.process_run import ISTHMUS, Run
from tests.programs.engine.run.test_gangs import FOLLOWER, is_merged
from tests.programs.engine.run.test_resume import has_cut

pytestmark = [pytest.mark.process, pytest.mark.soak]

PROGRAMS = ("decoupled-diloco", "diloco", "streaming-diloco")


@pytest.mark.parametrize("devices_min", [0, soaked(1)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_islands_of_several_processes_go_on_from_a_snapshot(
    start: Callable[..., Run], program: str, devices_min: int
) -> None:
    settings = ["run.snapshot_every_seconds=0.2", "run.processes=[2]", "program.interval=8"]
    settings += ["program.outer_momentum=0.5"]
    settings += [f"run.devices_min={devices_min}"] * (devices_min > 0)
    run = start(program, *(part for each in settings for part in ("--set", each)))
    run.wait_for(lambda: is_merged(run, 0), 120.0)
    is_in_step = program != "decoupled-diloco"
    kept = [run.folder / "local" / f"learner-{slot}" for slot in range(2)]
    run.wait_for(lambda: has_cut(run.folder) if is_in_step else all(path.exists() for path in kept))
    run.wait_for_merges(8)
    run.kill_all()

    merged = run.merges()
    command, pipe = [str(ISTHMUS), "train", "--resume", "run"], subprocess.PIPE
    run.command = subprocess.Popen(command, cwd=run.here, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    run.wait_for(lambda: run.epochs()[-1:] == [2], 120.0)
    run.wait_for(lambda: is_merged(run, merged + 8), 120.0)
    lives = {name: run.host(name)["incarnation"] for name in ("learner/0", FOLLOWER, "learner/1")}
    summary = run.stop()
    assert lives == dict.fromkeys(lives, 2)
    assert summary["outcome"] == "stopped"
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    later = [line for line in lines if line["incarnation"] == 2 and line.get("began")]
    how = ["snapshot" if is_in_step else "copy", 1]
    assert {line["learner"]: line["began"][:2] for line in later} == {0: how, 1: how}
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]
    assert [told for told in summary["books"]["differences"] if told["kind"] != "merges"] == []
