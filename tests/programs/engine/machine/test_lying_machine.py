"""A real machine that joins a run and lies in every report: it costs the run its own learner's work at most."""

from __future__ import annotations

import json
import sys

import pytest

from isthmus.runtime.supervision.incidents import Condemned, Ended, Joined, ReportRefused
from isthmus.runtime.wire.control_client import ask
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place

pytestmark = pytest.mark.process

LIAR = '''
"""`isthmus`, with a false report in place of each one that its outposts send, by the function of the simulator."""
import sys
from itertools import cycle
from isthmus.programs.command.main import main
from isthmus.runtime.daemon import outpost
from isthmus.runtime.sim.lies import ANY, CLAIMS, FIELDS, SHOWN_FIELDS, VALUES, Liar

EDGES = [f"{name}" for name in sys.argv.pop(1).split(",")]
WITH_FIELDS = sys.argv.pop(1) == "fields"
roster = []
read, honest = outpost.read_orders, outpost.of_report

def read_orders(message):
    orders, directory = read(message)
    roster[:] = (orders.roster.rows if orders.roster else ()) or roster
    return orders, directory

pairs = [(field, value) for value in range(len(VALUES)) for field in FIELDS + SHOWN_FIELDS]
claims = [(claim, 0) for claim in CLAIMS for _ in range(3)]
lies = cycle([each for pair in zip(cycle(claims), pairs[::7]) for each in pair] if WITH_FIELDS else claims)

def of_report(report, shown):
    claim, value = next(lies)
    return Liar(claim, value, claim, EDGES).lied(honest(report, shown), roster)

outpost.read_orders, outpost.of_report = read_orders, of_report
sys.argv.pop(0)
main()
'''
"""Its arguments: the names of the graph's edges, whether single fields are false, too, and the command."""
EDGES = (
    "fragment-send.answer -> merge.answer,outer-step.update -> inner-step.update,inner-step.report -> record.progress"
)


@pytest.mark.long
def test_a_machine_that_lies_in_every_report_harms_its_own_share_only(place: Place) -> None:
    machines = Machines(place, "alpha")
    (place.folder / "liar.py").write_text(LIAR)
    machines.here("beta")
    joining = ("join", machines.daemons["alpha"].address, "--name", "beta", "--config", "machine.toml")
    with (place.folder / "beta.log").open("w") as log:
        place.begin(*joining, stdout=log, prefix=(sys.executable, "liar.py", EDGES, "fields"))
    machines.here("alpha")
    machines.daemons["alpha"].wait_for_line("machine beta is linked")
    cluster = machines.cluster({"alpha": "islands = 2"})
    training = place.begin(*place.training("run", "--cluster", cluster, tokens=100_000))
    events = place.folder / "run" / "events.jsonl"
    place.wait_for(lambda: events.exists() and any(isinstance(each, ReportRefused) for each in machines.incidents()))
    shown = place.call("status", "--cluster", cluster)
    assert (shown.returncode, "learner/0" in shown.stdout) == (0, True), shown
    asked = {"type": "watch", "run": str(place.folder / "run"), "renews": False}
    assert json.dumps(ask(machines.daemons["alpha"].address, asked, 5.0))
    _, error = training.communicate(timeout=120)
    assert training.returncode == 0, (error, place.logs())
    summary = place.summary("run")
    assert summary["outcome"] == "done"
    assert summary["tokens_total"] >= 100_000 * 0.95
    accounts_add_up(summary)
    others = summary["per_learner"][:2]
    assert [(each["restarts"], each["tokens_lost"]) for each in others] == [(0, 0), (0, 0)]
    for life in ("learner/0#1", "learner/1#1", "syncer/0#1", "evaluator/0#1", "recorder/0#1"):
        assert not [each for each in machines.incidents(life) if isinstance(each, Condemned | Ended)], life
    refused = [each for each in machines.incidents() if isinstance(each, ReportRefused)]
    assert {each.machine for each in refused} == {"beta"}
    assert len(refused) == 1, "at most one a minute"
    assert machines.daemons["alpha"].end() == 0


@pytest.mark.long
def test_two_machines_of_one_invitation_that_lie_together_harm_their_own_share_only(place: Place) -> None:
    """They accuse syncer, recorder and evaluator, say that the run has ended, and that its program fails."""
    place.folder.joinpath("liar.py").write_text(LIAR)
    machines = Machines.__new__(Machines)
    machines.place, machines.daemons, machines.first = place, {}, "alpha"
    machines.here("alpha")
    assert not place.call("keygen", "alpha").returncode
    place.folder.joinpath("pod.toml").write_text(place.folder.joinpath("machine.toml").read_text())
    with place.folder.joinpath("machine.toml").open("a") as file:
        file.write('[keys]\nsecret = "alpha.key"\n')
    home = machines.start("alpha")
    keys = '[keys]\nsecret = "alpha.key"\n'
    cluster = machines.cluster({"alpha": 'public_key = "alpha.pub"\nislands = 2'}, run=keys)
    assert not place.call("invite", "--count", "2", "--for", "pod-", "--islands", "1").returncode
    for name in ("pod-a", "pod-b"):
        machines.here(name)
        words = ("join", "--invite", "pod-.invite", "--name", name, "--config", "pod.toml")
        with (place.folder / f"{name}.log").open("w") as log:
            place.begin(*words, stdout=log, prefix=(sys.executable, "liar.py", EDGES, "claims"))
        home.wait_for_line(f"machine {name} is linked")
    machines.here("alpha")
    training = place.begin(*place.training("run", "--cluster", cluster, tokens=200_000))
    _, error = training.communicate(timeout=120)
    assert training.returncode == 0, (error, place.logs())
    summary = place.summary("run")
    assert summary["outcome"] == "done"
    accounts_add_up(summary)
    others = summary["per_learner"][:2]
    assert [(each["restarts"], each["tokens_lost"]) for each in others] == [(0, 0), (0, 0)]
    for life in ("learner/0#1", "learner/1#1", "syncer/0#1", "evaluator/0#1", "recorder/0#1"):
        assert not [each for each in machines.incidents(life) if isinstance(each, Condemned | Ended)], life
    joined = {each.machine for each in machines.incidents() if isinstance(each, Joined)}
    assert joined == {"pod-a", "pod-b"}
    assert home.end() == 0
