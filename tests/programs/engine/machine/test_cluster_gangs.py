"""An island over two machines, on loopback: a process on each, started by the daemon there, with one life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place

pytestmark = [pytest.mark.process, pytest.mark.soak]

ISLAND = 'island = "pod"\ndevice = "CPU"\ndevices = 2\n'


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


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
