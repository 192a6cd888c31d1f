"""A porter of another machine that says anything: no daemon and no host that dials it ends, and a run goes on."""

from __future__ import annotations

from contextlib import closing

import pytest

from isthmus.runtime.supervision.incidents import Ended
from tests.hostile_porter import HostilePorter
from tests.programs.engine.machine.cluster_place import Machines
from tests.programs.engine.machine.daemon_place import Place

pytestmark = pytest.mark.process
ONE_PORT = ("--ports", "7400-7400")


@pytest.mark.further
def test_a_trial_of_a_link_to_a_hostile_porter_ends_with_an_error_each_time(place: Place) -> None:
    machines = Machines(place, "alpha")
    beta = machines.start("beta", "tcp://127.0.0.1:0", *ONE_PORT)
    machines.here("alpha")
    alpha = machines.daemons["alpha"]
    with closing(HostilePorter(beta.address)) as porter:
        trials = 0
        while not porter.has_tried_all():
            said = place.call("doctor", "--link", alpha.address, porter.address)
            assert said.returncode == 2, (said, alpha.lines())
            trials += 1
            assert alpha.process.poll() is None
        porter.is_honest = True
        place.wait_for(lambda: place.call("doctor", "--link", alpha.address, porter.address).returncode == 0)
    assert alpha.end() == 0


@pytest.mark.further
def test_a_placed_syncer_and_a_joined_machine_outlive_a_hostile_porter_of_their_home(place: Place) -> None:
    machines = Machines(place)
    alpha = machines.start("alpha", "tcp://127.0.0.1:0", *ONE_PORT)
    machines.start("beta")
    machines.here("alpha")
    with closing(HostilePorter(alpha.address)) as porter:
        inner, alpha.address = alpha.address, porter.address
        roles = {"alpha": 'roles = ["evaluator", "learner"]\nislands = 1', "beta": 'roles = ["syncer"]'}
        machines.join("alpha", "gamma")
        alpha.wait_for_line("machine gamma is linked")
        cluster = machines.cluster(roles)
        done = place.call(*place.training("run", "--cluster", cluster, "--detach"))
        assert done.returncode == 0, done.stderr
        place.wait_for(lambda: porter.has_tried_all(3))
        alpha.address = inner
        assert machines.host("syncer/0")["machine"] == "beta"
        lives = place.hosts()
        assert {name.split()[-1].partition("/")[0] for name in lives.values()} >= {"syncer", "learner"}
        porter.is_honest = True
        place.wait_for(lambda: any({0, 1} <= set(merge["voters"]) for merge in machines.merges()))
        assert lives.items() <= place.hosts().items()
        assert not [each for each in machines.incidents() if isinstance(each, Ended)]
        for each in machines.daemons.values():
            assert each.process.poll() is None
        assert place.call("stop", "run").returncode == 0
        alpha.wait_for_line("finished")
