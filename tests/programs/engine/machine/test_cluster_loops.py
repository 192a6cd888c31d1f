"""A user's script is the learner on the machines of a cluster, on loopback: started, killed, and brought to its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.runtime.supervision.incidents import Ended, Exited
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.machine.loop_place import SCRIPT, said
from tests.programs.engine.run.process_run import FOREVER

pytestmark = pytest.mark.process

LEARNER = 'roles = ["learner"]\nislands = 1'


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "machine.toml").write_text('[programs]\nscripts = ["train.py"]\n')
    yield made
    made.close()


def table(tokens: int, learners: str = "") -> str:
    """The run of a cluster file."""
    return f'[run]\ntokens = {tokens}\n{learners}[loop]\nscript = "train.py"\narguments = ["--word"]\n'


def test_a_script_trains_on_two_machines_and_one_that_was_killed_goes_on(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": LEARNER}, run=table(FOREVER))
    done = place.call("train", "--cluster", cluster, "--run-dir", "run", "--detach", "--tokens", "12_000")
    assert done.returncode == 0, (done.stderr, place.logs())
    machines.daemons["alpha"].wait_for_line("starts train.py")  # Where it was asked: the first that has islands.
    place.wait_for_merges("run", 2)
    killed = place.wait_for(lambda: machines.host("learner/1").get("pid"))
    assert machines.host("learner/1")["machine"] == "beta"
    os.kill(killed, signal.SIGKILL)
    machines.daemons["alpha"].wait_for_line("finished")
    run = place.folder / "run"
    summary = place.summary("run")
    assert (summary["outcome"], summary["scripts_unfinished"]) == ("done", [])
    assert [row["restarts"] for row in summary["per_learner"]] == [0, 1]
    assert machines.incidents("learner/1#1")[-1] == Ended(Exited(signal="SIGKILL"))
    accounts_add_up(summary)
    (one,), (other,) = said(run, 0, "BEHIND"), said(run, 1, "BEHIND")
    assert one[1] == other[1], "both have the run's last model behind their loops"
    begun = said(run, 1, "BEGAN")
    assert [words[2] for words in begun] == ["--word", "--word"]
    assert json.loads((run / "spec.json").read_text())["script_digest"]
    assert not list((place.folder / "state-beta").rglob("spec.json"))
    assert not [name for name in place.processes().values() if "learner" in name]


@pytest.mark.long
def test_a_home_without_the_script_begins_once_a_machine_that_permits_it_has_joined(place: Place) -> None:
    machines = Machines(place)
    home = place.folder / "home"
    home.mkdir()
    (home / "none.toml").write_text("")
    cluster = '[[machine]]\nname = "alpha"\naddress = "tcp://127.0.0.1:PORT"\nroles = ["syncer", "evaluator"]\n'
    assert cluster
    machines.start("alpha")
