"""An elastic island over two machines, on loopback: one of these is lost with all that is on it, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import tapes
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import ProcessBack, ProcessLost, Reformed
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.machine.test_cluster_gangs import ISLAND

pytestmark = [pytest.mark.process, pytest.mark.soak]

LEADER, FOLLOWER = "learner/0#1", "learner.1/0"
LEARNER = 'roles = ["learner"]\n'
ALPHA = 'device = "CPU"\ndevices = 1\nislands = 1\n'


def test_an_elastic_island_goes_on_without_a_machine_and_takes_it_back(place: Place) -> None:
    machines = Machines(place, "alpha", "beta", "gamma")
    cluster = machines.cluster(
        {"alpha": ALPHA, "beta": ISLAND + LEARNER, "gamma": ISLAND + LEARNER}, run="[run]\ndevices_min = 2\n"
    )
    done = place.call(*place.training("run", "--cluster", cluster, "--detach"))
    assert done.returncode == 0, (done.stderr, place.logs())
    place.wait_for_merges("run", 3)
    where = {name: machines.host(name)["machine"] for name in ("learner/0", FOLLOWER, "learner/1")}
    assert where == {"learner/0": "beta", FOLLOWER: "gamma", "learner/1": "alpha"}

    machines.kill("gamma")
    place.wait_for(lambda: ProcessLost(FOLLOWER, 1, 2) in machines.incidents(LEADER))
    place.wait_for(lambda: 1 in trained_again(machines))
    going_on_without = machines.steps()["learner/0"][1]
    place.wait_for(lambda: machines.steps()["learner/0"][1] > going_on_without + 3)

    machines.start("gamma", machines.daemons["gamma"].address)
    place.wait_for(lambda: ProcessBack(FOLLOWER, 2, 2) in machines.incidents(LEADER))
    place.wait_for(lambda: trained_again(machines)[-1] == 2)
    whole = machines.steps()["learner/0"][1]
    place.wait_for(lambda: machines.steps()["learner/0"][1] > whole + 3)
    assert {machines.host(name)["incarnation"] for name in ("learner/0", "learner/1")} == {1}

    assert place.call("stop", "run").returncode == 0
    place.wait_for(lambda: (place.folder / "run" / "summary.json").exists())
    summary = place.summary("run")
    assert (summary["outcome"], summary["tokens_lost"]) == ("stopped", 0)
    assert summary["per_learner"][1]["restarts"] == 0
    assert waits_on_others(place.folder / "run", Member(Replica("learner", 1), 1)) == []
    accounts_add_up(summary)


def waits_on_others(folder: Path, member: Member) -> list[tapes.HostWait]:
    """When a life of a learner waited for another host, by its tape."""
    plan = lower(spec.load(folder).graph())["learner"]
    [file] = [each for each in tapes.of_folder(folder)[0] if each.member == member]
    segments = tapes.read(file).segments
    assert segments
    return [wait for segment in segments for wait in tapes.waits_on_others(plan, segment.records)]


def trained_again(machines: Machines) -> list[int]:
    """With how many processes the island came together again, in order."""
    return [each.processes for each in machines.incidents(LEADER) if isinstance(each, Reformed)]
