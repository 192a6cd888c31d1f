"""The run of a cluster goes on with other files: all of its machines begin anew from the snapshot and have files that
are alike, and what differs from before is named, noted and replayed."""

from __future__ import annotations

import json
import signal

import pytest

from isthmus.programs.engine.snapshots.snapshot_files import has_snapshot
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place

pytestmark = pytest.mark.process

LEARNER = 'roles = ["learner"]\nislands = 1'
WAS, NOW = "time.sleep(", "time.sleep(1.1 * "


@pytest.mark.long
def test_a_loader_is_mended_between_two_parts_of_a_run_of_two_machines(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": LEARNER})
    more = "--set", "run.snapshot_every_seconds=1"
    done = place.call(*place.training("run", "--cluster", cluster, "--detach", *more))
    assert done.returncode == 0, done.stderr
    folder = place.folder / "run"
    place.wait_for(lambda: has_snapshot(folder))
    place.wait_for_merges("run", 20)
    address = machines.daemons["alpha"].address
    assert machines.daemons["alpha"].end(signal.SIGTERM) == 75
    before = place.hosts()  # Beta's learner steps on.
    task = place.folder / "paced.py"
    assert WAS in task.read_text()
    task.write_text(task.read_text().replace(WAS, NOW))

    machines.start("alpha", address)
    assert "paced.py" in machines.daemons["alpha"].wait_for_line("leaves ")
    machines.daemons["alpha"].wait_for_line("--accept-changes")
    refused = place.call("train", "--resume", "run", "--cluster", cluster)
    assert refused.returncode == 2
    assert "--accept-changes" in refused.stderr
    done = place.call("train", "--resume", "run", "--cluster", cluster, "--accept-changes", "--detach")
    assert done.returncode == 0, done.stderr
    assert f"changed: task: {task}" in done.stdout
    merges = len(machines.merges())
    place.wait_for_merges("run", merges + 20)
    place.wait_for(lambda: [merge for merge in machines.merges()[merges:] if merge["voters"] == [0, 1]])
    assert not before.keys() & place.hosts().keys()
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    summary = place.summary("run")
    accounts_add_up(summary)
    [alteration] = summary["alterations"]
    assert [(each["part"], each["file"]) for each in alteration["files"]] == [("task", str(task))]
    replayed = place.call("replay", "run", "--json")
    told = json.loads(replayed.stdout)
    assert (replayed.returncode, told["identical"]) == (0, True)
    assert [each["outer_steps"] for each in told["alterations"]] == [alteration["outer_steps"]]
