"""An island over two machines, on loopback: a process on each, started by the daemon there, with one life."""

from __future__ import annotations

import json

import pytest

from tests.patience import PATIENCE
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place

pytestmark = pytest.mark.process

ISLAND = 'island = "pod"\ndevice = "CPU"\ndevices = 2\n'


@pytest.mark.soak
def test_an_island_over_two_machines_trains_beside_an_ordinary_one(place: Place) -> None:
    machines = Machines(place, "alpha", "beta", "gamma")
    learner = 'roles = ["learner"]\n'
    cluster = machines.cluster(
        {"alpha": 'roles = ["syncer", "evaluator"]', "beta": ISLAND + learner, "gamma": ISLAND + learner}
    )
    done = place.call(*place.training("run", "--cluster", cluster, "--detach"))
    assert done.returncode == 0, (done.stderr, place.logs())
    place.wait_for_merges("run", 3)
    assert [machines.host(name)["machine"] for name in ("learner/0", "learner.1/0")] == ["beta", "gamma"]
    machines.kill("gamma")
    machines.start("gamma", machines.daemons["gamma"].address)
    place.wait_for(lambda: machines.steps().get("learner/0", (1, 0))[0] > 1 and machines.steps()["learner/0"][1] > 3)
    lives = {machines.host(name)["incarnation"] for name in ("learner/0", "learner.1/0")}
    assert len(lives) == 1
    assert place.call("stop", "run").returncode == 0
    place.wait_for(lambda: (place.folder / "run" / "summary.json").exists())
    summary = place.summary("run")
    assert summary["outcome"] == "stopped"
    accounts_add_up(summary)


@pytest.mark.long
def test_an_island_of_two_machines_joins_a_run_that_began_with_no_learner(place: Place) -> None:
    machines = Machines(place, "alpha")
    cluster = machines.cluster({})
    done = place.call(*place.training("run", "--cluster", cluster, "--learners", "0", "--detach"))
    assert done.returncode == 0, (done.stderr, place.logs())
    assert {host["role"] for host in machines.status()["hosts"]} == {"syncer", "evaluator", "recorder"}
    part = ("--island", "pod", "--size", "2", "--rank")
    parts = [machines.join("alpha", "beta", 1, *part, "0"), machines.join("alpha", "gamma", 1, *part, "1")]
    place.wait_for_merges("run", 3)
    assert [machines.host(name)["machine"] for name in ("learner/0", "learner.1/0")] == ["beta", "gamma"]
    assert "rank 1 of 2 of the island pod" in machines.lines("gamma")
    again = machines.join("alpha", "delta", 1, *part, "1")
    _, error = again.communicate(timeout=PATIENCE)
    assert again.returncode == 2
    assert "expected one machine of that rank, found two, with 'gamma'" in error
    assert machines.host("learner/0")["incarnation"] == 1
    assert place.call("stop", "run").returncode == 0
    place.wait_for(lambda: (place.folder / "run" / "summary.json").exists())
    summary = place.summary("run")
    assert summary["outcome"] == "stopped"
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0]
    accounts_add_up(summary)
    told = json.loads(place.call("replay", "run", "--json").stdout)
    assert told["identical"]
    assert "learner.1/0" in {each["host"] for each in told["hosts"]}
    for each in parts:
        each.terminate()
        each.communicate(timeout=PATIENCE)
