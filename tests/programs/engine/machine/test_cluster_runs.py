"""Runs across several machines, on loopback: homes and outposts, joining and expelling, machines that are lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from typer.testing import Result

from isthmus.runtime.cores.membership_messages import SlowHost
from isthmus.runtime.supervision.incidents import Ended, Joined, MachineTaken
from tests.patience import PATIENCE
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place, fake_daemon

pytestmark = pytest.mark.process

LEARNER = 'roles = ["learner"]\nislands = 1'


@pytest.mark.soak
def test_a_run_on_two_machines_is_watched_to_its_end(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    owned = f'{LEARNER}\nowner = "ann"\nweight_share_max = 0.25'
    cluster = machines.cluster({"alpha": "islands = 1", "beta": owned})
    done = place.call(*place.training("run", "--cluster", cluster, tokens=60_000))
    assert done.returncode == 0, (done.stderr, place.logs(), machines.daemons["beta"].lines())
    assert "eval loss" in done.stdout
    summary = place.summary("run")
    assert (summary["outcome"], summary["learners"]) == ("done", 2)
    assert all(learner["tokens"] > 0 for learner in summary["per_learner"])
    accounts_add_up(summary)
    both = [merge for merge in machines.merges() if merge["kind"] == "merge" and merge["voters"] == [0, 1]]
    assert both
    assert {(name, most) for merge in both for name, _, most in merge["capped"]} == {("ann", 0.25)}
    placement = json.loads((place.folder / "run" / "graph.json").read_text())["placement"]
    assert (placement["merge"], placement["inner-step"]) == ("alpha", ["alpha", "beta"])
    # What the timeline and people need has come home, and nothing stays behind.
    assert (place.folder / "run" / "spans" / "learner-1-1.json").stat().st_size > 1000
    assert (place.folder / "run" / "logs" / "learner-1.log").exists()
    machines.daemons["beta"].wait_for_line("finished its part")
    assert not list((place.folder / "state-beta").rglob("spec.json"))
    assert not place.hosts()
    assert [machines.daemons[name].end() for name in ("beta", "alpha")] == [0, 0]
    assert not place.processes()


@pytest.mark.soak
def test_a_machine_joins_and_is_expelled_and_nobody_else_notices(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": LEARNER})
    done = place.call(*place.training("run", "--cluster", cluster, "--detach"))
    assert done.returncode == 0, done.stderr
    place.wait_for_merges("run", 10)
    before = machines.steps()
    joining = machines.join("alpha", "gamma")
    place.wait_for(lambda: any(2 in merge["voters"] for merge in machines.merges()))
    place.wait_for(lambda: any(line["learner"] == 2 and line["tokens"] for line in machines.metrics()))
    assert machines.host("learner/2")["machine"] == "gamma"
    assert "linked to alpha, with 1 island" in machines.lines("gamma")
    assert place.call("expel", "gamma").returncode == 0
    assert joining.wait(60) == 0
    assert "expelled by alpha" in machines.lines("gamma")
    assert (machines.host("learner/2")["state"], machines.host("learner/2")["pid"]) == ("expelled", None)
    after = machines.steps()
    assert {name: after[name][0] for name in before} == {"learner/0": 1, "learner/1": 1}
    assert all(after[name][1] > before[name][1] for name in before)
    shown = place.call("status", "--cluster", cluster).stdout
    assert "expelled" in shown
    assert "beta" in shown
    assert place.call("logs", "learner/1", "--cluster", cluster).returncode == 0
    assert "no hosts" not in place.call("logs", "daemon", "--cluster", cluster).stdout
    assert place.call("stop", "--cluster", cluster).returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    summary = place.summary("run")
    assert summary["outcome"] == "stopped"
    assert summary["per_learner"][2]["tokens"] > 0
    accounts_add_up(summary)
    assert all(account["pending"] == 0 for account in summary["fragment_accounts"])
    # A learner may be slow on a machine that is busy; nothing else happened to anybody.
    told = [each for each in machines.incidents() if not isinstance(each, SlowHost)]
    assert told == [Joined("gamma"), Ended(MachineTaken("gamma", "expelled"))]
    assert set(told) <= set(machines.incidents("learner/2#1"))
    report = (place.folder / "run" / "report.html").read_text()
    assert "learner 2 joined with its machine gamma" in report
    assert "No host ended before its time" in report


@pytest.mark.soak
def test_the_daemon_of_an_outpost_dies_and_the_next_adopts_its_hosts(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": 'roles = ["syncer", "evaluator"]', "beta": LEARNER})
    command = place.begin(*place.training("run", "--cluster", cluster))
    place.wait_for_merges("run")
    hosts, address = place.hosts(), machines.daemons["beta"].address
    assert machines.daemons["beta"].end(signal.SIGKILL) == -signal.SIGKILL
    merges = len(machines.merges())
    place.wait_for_merges("run", merges + 5)  # The data goes its own way.
    machines.start("beta", address).wait_for_line("adopts its part")
    machines.here("alpha")
    place.wait_for(lambda: machines.host("learner/0").get("state") == "alive")
    assert place.hosts() == hosts
    address = machines.daemons["alpha"].address
    assert machines.daemons["alpha"].end(signal.SIGKILL) == -signal.SIGKILL
    machines.start("alpha", address).wait_for_line("adopts")
    place.wait_for_merges("run", len(machines.merges()) + 10)
    assert place.hosts() == hosts
    command.send_signal(signal.SIGINT)
    _, error = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, (error, machines.daemons["alpha"].lines())
    assert place.summary("run")["outcome"] == "stopped"
    assert not place.hosts()


@pytest.mark.soak
def test_a_shard_whose_machine_is_lost_is_served_by_another(place: Place) -> None:
    machines = Machines(place, "alpha", "beta", "gamma")
    roles = {"alpha": 'roles = ["evaluator", "learner"]\nislands = 1', "beta": 'roles = ["syncer"]'}
    cluster = machines.cluster({**roles, "gamma": 'roles = ["syncer", "learner"]\nislands = 1'})
    done = place.call(*place.training("run", "--cluster", cluster, "--detach"))
    assert done.returncode == 0, done.stderr
    place.wait_for_merges("run")
    assert machines.host("syncer/0")["machine"] == "beta"
    before = machines.steps()
    machines.kill("beta")
    place.wait_for(lambda: any((merge["version"] or [0])[0] > 1 for merge in machines.merges()))
    found = machines.host("syncer/0")
    assert (found["machine"], found["incarnation"]) == ("gamma", 2)
    after = machines.steps()
    assert {name: life for name, (life, _) in after.items()} == {"learner/0": 1, "learner/1": 1}
    assert all(after[name][1] > before[name][1] + 1000 for name in before)  # They never stopped.
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    accounts_add_up(place.summary("run"))


@pytest.mark.long
def test_everything_that_is_wrong_with_the_machines_is_told_at_once(place: Place, typed: Callable[..., Result]) -> None:
    machines = Machines(place, "alpha", "beta")
    with fake_daemon(type="nothing") as nobody:
        pass
    file = place.folder / machines.cluster({"alpha": "islands = 1", "beta": LEARNER}, run="[run]\nlearners = 9\n")
    place.folder.joinpath("other.py").write_text((place.folder / "paced.py").read_text())
    with fake_daemon(type="machine", name="delta", protocol=1, version="0.0.1") as other:
        file.write_text(
            file.read_text()
            + f'[[machine]]\nname = "gamma"\naddress = "{nobody}"\n{LEARNER}\n'
            + f'[[machine]]\nname = "delta"\naddress = "{other}"\n{LEARNER}\n'
            + f'[[machine]]\nname = "epsilon"\n{LEARNER}\n'
        )
        done = typed(place.folder, *place.training("run", "--cluster", file.name, "--task", "other.py:task"))
    assert done.exit_code == 2
    for words in (
        "expected an island for each",
        f"Calling the daemon 'gamma' at {nobody}: expected a daemon that listens there, found nobody",
        "found isthmus 0.0.1",
        f"isthmus join {machines.daemons['alpha'].address} --name epsilon",
        "Handing a task to the daemon 'alpha'",
        "Handing a task to the daemon 'beta'",
    ):
        assert words in done.stderr, (words, done.stderr)
    assert done.stderr.count("isthmus: ") == 1
    assert not (place.folder / "run").exists()
    assert not place.hosts()


@pytest.mark.soak
def test_two_machines_of_one_name_and_a_home_that_is_not_there(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    machines.join("alpha", "gamma")
    machines.daemons["alpha"].wait_for_line("gamma is linked")
    machines.here("elsewhere")
    second = place.call("join", machines.daemons["alpha"].address, "--name", "gamma")
    assert second.returncode == 2
    assert "not linked: two" in second.stdout
    assert "Linking the machine 'gamma': expected one machine of that name, found two" in second.stderr
    with fake_daemon(type="nothing") as nobody:
        pass
    done = place.call("join", nobody, "--name", "delta", "--wait", "1")
    assert done.returncode == 2
    assert "expected a link within 1 s, found no answer" in done.stderr
    wrong = place.call("join", "tcp://10.255.255.1:7400", "--name", "two words", "--islands", "0")
    assert wrong.returncode == 2
    assert "3 things are wrong" in wrong.stderr
    machines.here("alpha")
    assert place.call("expel", "nobody").returncode == 2
