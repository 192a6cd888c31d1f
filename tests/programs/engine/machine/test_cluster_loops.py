"""A user's script is the learner on the machines of a cluster, on loopback: started, killed, and brought to its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.runtime.supervision.incidents import Ended, Exited, NotStarted
from tests.patience import PATIENCE
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


@pytest.mark.further
def test_a_script_trains_on_two_machines_and_one_that_was_killed_goes_on(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": LEARNER}, run=table(FOREVER))
    done = place.call("train", "--cluster", cluster, "--run-dir", "run", "--detach", "--tokens", "12_000")
    assert done.returncode == 0, (done.stderr, place.logs())
    machines.daemons["alpha"].wait_for_line("starts train.py")  # Where it was asked: the first that has islands.
    place.wait_for_merges("run", 2)
    killed = place.wait_for(lambda: machines.host("learner/1").get("pid"))
    assert machines.host("learner/1")["machine"] == "beta"
    (place.folder / "hold").touch()  # Or slot 0 might have trained what is left before the other one is back.
    os.kill(killed, signal.SIGKILL)
    place.wait_for(lambda: any((line.get("learner"), line.get("incarnation")) == (1, 2) for line in machines.metrics()))
    (place.folder / "hold").unlink()
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
def test_a_home_without_permission_asks_the_first_that_joins_and_one_that_had_to_leave_comes_back(place: Place) -> None:
    (place.folder / "none.toml").write_text("")
    machines = Machines(place)
    machines.start("alpha", "tcp://127.0.0.1:0", "--config", "none.toml")
    machines.here("alpha")
    cluster = machines.cluster({"alpha": 'roles = ["syncer", "evaluator"]'}, run=table(FOREVER, "learners = 0\n"))
    command = place.begin("train", "--cluster", cluster, "--run-dir", "run", "--detach")
    stranger = machines.join("alpha", "delta", 1, "--config", "none.toml")
    machines.daemons["alpha"].wait_for_line("machine delta is not asked for the model of a script")
    place.wait_for(lambda: "takes no part in a run" in machines.lines("delta") or "refused" in machines.lines("delta"))
    joining = {name: machines.join("alpha", name) for name in ("beta", "gamma")}
    out, error = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, (out, error)
    place.wait_for(lambda: any(merge["voters"] == [0, 1] for merge in machines.merges()))
    slot = {machines.host(f"learner/{slot}")["machine"]: slot for slot in (0, 1)}["beta"]
    joining["beta"].send_signal(signal.SIGTERM)
    assert joining["beta"].wait(PATIENCE) == 75
    place.wait_for(lambda: machines.host(f"learner/{slot}")["state"] == "left")
    seen = len(machines.merges())
    joining["beta"] = machines.join("alpha", "beta")
    place.wait_for(lambda: any(slot in merge["voters"] for merge in machines.merges()[seen:]))
    assert machines.host(f"learner/{slot}")["machine"] == "beta"
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    summary = place.summary("run")
    assert (summary["outcome"], summary["scripts_unfinished"]) == ("stopped", [])
    accounts_add_up(summary)
    for each in (stranger, *joining.values()):
        each.send_signal(signal.SIGINT)
        assert each.wait(PATIENCE) == 0


@pytest.mark.long
def test_the_daemons_die_and_the_next_ones_adopt_the_scripts(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": LEARNER}, run=table(FOREVER))
    done = place.call("train", "--cluster", cluster, "--run-dir", "run", "--detach")
    assert done.returncode == 0, done.stderr
    place.wait_for_merges("run", 2)
    lives = {name: machines.host(name)["pid"] for name in ("learner/0", "learner/1")}
    for name in ("beta", "alpha"):
        address = machines.daemons[name].address
        assert machines.daemons[name].end(signal.SIGKILL) == -signal.SIGKILL
        machines.start(name, address).wait_for_line("adopts")
    machines.here("alpha")
    place.wait_for(lambda: {name: machines.host(name).get("pid") for name in lives} == lives)
    (place.folder / "machine.toml").write_text("")  # Its owner has thought better of it.
    address = machines.daemons["beta"].address
    assert machines.daemons["beta"].end(signal.SIGKILL) == -signal.SIGKILL
    machines.start("beta", address).wait_for_line("adopts")
    machines.here("alpha")
    place.wait_for(lambda: machines.host("learner/1").get("pid") == lives["learner/1"])
    os.kill(lives["learner/1"], signal.SIGKILL)
    place.wait_for(
        lambda: any(isinstance(each.end, NotStarted) for each in machines.incidents() if hasattr(each, "end"))
    )
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    assert place.summary("run")["outcome"] == "stopped"
    assert len(said(place.folder / "run", 1, "BEGAN")) == 1
