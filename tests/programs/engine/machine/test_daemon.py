"""`isthmus daemon`, `train --cluster` and `--detach`: real processes on loopback, and what is left of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import Result

from isthmus.programs.engine.machine.run import LEASE_TICKS_MAX
from isthmus.runtime.wire.control_messages import PROTOCOL
from tests.patience import PATIENCE, wait_for
from tests.programs.engine.machine.daemon_place import MachineDaemon, Place, cluster_file, fake_daemon, tell

pytestmark = pytest.mark.process


@pytest.mark.soak
def test_a_run_that_is_handed_over_is_watched_to_its_end(place: Place) -> None:
    daemon = MachineDaemon(place)
    assert any(name.startswith("isthmus daemon alpha") for name in place.processes().values())
    done = place.call(*place.training("run", "--cluster", daemon.cluster, tokens=20_000))
    assert "jaxlib" not in Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert done.returncode == 0, (done.stderr, daemon.lines(), place.logs())
    assert "eval loss" in done.stdout
    summary = place.summary("run")
    assert summary["outcome"] == "done"
    assert summary["cpu_seconds_total"] > 1
    assert set(json.loads((place.folder / "run" / "graph.json").read_text())["placement"].values()) == {"alpha"}
    daemon.wait_for_line("took")
    assert daemon.wait_for_line("finished").endswith("done")
    assert not place.hosts()
    shown = json.loads(place.call("status", "--cluster", daemon.cluster, "--json").stdout)
    assert (shown["run"], shown["outcome"]) == (str(place.folder / "run"), "done")
    assert "finished" in place.call("logs", "daemon", "--cluster", daemon.cluster).stdout
    assert daemon.end() == 0
    assert not place.processes()


SIGNALLED = """
import os, signal, sys
from isthmus.programs.engine.machine import serve

def end_at(words):
    told, opened = serve._tell, serve.MachineDaemon
    def end():
        os.kill(os.getpid(), signal.SIGTERM)
    def telling(line):
        told(line)
        words in line and end()
    def opening(*given, **named):
        machine = opened(*given, **named)
        words == "opened" and end()
        return machine
    serve._tell, serve.MachineDaemon = telling, opening

end_at(sys.argv[1])
sys.exit(serve.serve("alpha", "tcp://127.0.0.1:0", None))
"""


@pytest.mark.parametrize("at", ["opened", "listens at"])
def test_a_signal_that_comes_before_the_loop_runs_ends_the_daemon(place: Place, at: str) -> None:
    """It signals itself where nothing can be late: a signal from outside would only now and then come in time."""
    command = [sys.executable, "-c", SIGNALLED, at]
    done = subprocess.run(command, env=place.environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 75, done.stderr
    assert [line.split(" ", 1)[1].split(",")[0].partition(" at ")[0] for line in done.stdout.splitlines()] == [
        "daemon alpha listens",
        "daemon alpha has ended",
    ]


@pytest.mark.soak
def test_ctrl_c_stops_a_run_and_leaves_the_daemon(place: Place) -> None:
    daemon = MachineDaemon(place)
    command = place.begin(*place.training("run", "--cluster", daemon.cluster))
    place.wait_for_merges("run")
    command.send_signal(signal.SIGINT)
    _, error = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, error
    assert place.summary("run")["outcome"] == "stopped"
    assert not place.hosts()
    assert daemon.process.poll() is None


@pytest.mark.soak
def test_a_run_ends_when_the_command_that_watches_it_is_killed(place: Place) -> None:
    daemon = MachineDaemon(place)
    command = place.begin(*place.training("run", "--cluster", daemon.cluster))
    place.wait_for_merges("run")
    command.kill()
    place.wait_for(lambda: not place.hosts(), LEASE_TICKS_MAX + 10)
    assert "has not been heard of" in daemon.wait_for_line("finished")
    assert place.summary("run")["outcome"] == "failed"
    assert daemon.process.poll() is None


@pytest.mark.soak
def test_two_detached_runs_go_on_side_by_side_and_end_with_their_daemon(place: Place) -> None:
    daemon = MachineDaemon(place)
    for run in ("one", "two"):
        done = place.call(*place.training(run, "--cluster", daemon.cluster, "--detach"))
        assert done.returncode == 0, done.stderr
        assert f"isthmus stop {run}" in done.stdout
    for run in ("one", "two"):
        place.wait_for_merges(run)
    shown = json.loads(place.call("status", "--all", "--json").stdout)
    everything = [status for status in shown if Path(status["run"]).parent == place.folder]
    assert {Path(status["run"]).name: status["outcome"] for status in everything} == {
        "one": "running",
        "two": "running",
    }
    assert {status["daemon"] for status in everything} == {"alpha"}
    which = place.call("stop", "--cluster", daemon.cluster)
    assert which.returncode == 2
    assert str(place.folder / "two") in which.stderr
    assert place.call("stop", "one").returncode == 0
    daemon.wait_for_line("one: stopped")
    place.wait_for_merges("two", 40)
    assert place.call("stop", "one").returncode == 2
    assert daemon.end(signal.SIGINT) == 0
    assert not place.processes()
    assert [place.summary(run)["outcome"] for run in ("one", "two")] == ["stopped", "stopped"]


@pytest.mark.soak
def test_a_second_signal_ends_the_runs_of_a_daemon_at_once(place: Place) -> None:
    daemon = MachineDaemon(place)
    assert place.call(*place.training("run", "--cluster", daemon.cluster, "--detach")).returncode == 0
    place.wait_for(lambda: len(place.hosts()) == 4)
    for pid in place.hosts():  # Hosts that cannot stop, so that only the second signal helps.
        os.kill(pid, signal.SIGSTOP)
    daemon.process.send_signal(signal.SIGINT)
    daemon.wait_for_line("a second Ctrl-C")
    refused = place.call(*place.training("other", "--cluster", daemon.cluster))
    assert refused.returncode == 2
    assert "it is ending" in refused.stderr
    assert daemon.end() == 1
    assert not place.processes()
    assert place.summary("run")["outcome"] == "failed"


@pytest.mark.soak
def test_a_detached_run_without_a_cluster_survives_the_command_and_ends_with_itself(place: Place) -> None:
    done = place.call(*place.training("run", "--detach", "--learners", "1"))
    assert done.returncode == 0, done.stderr
    place.wait_for_merges("run")
    shown = json.loads(place.call("status", "--all", "--json").stdout)
    assert [each["outcome"] for each in shown if each["run"] == str(place.folder / "run")] == ["running"]
    in_use = place.call(*place.training("run", "--learners", "1"))
    assert in_use.returncode == 2
    assert "a run that goes on there" in in_use.stderr
    for pid in place.hosts():  # So that it cannot have come to its end when the second word comes.
        os.kill(pid, signal.SIGSTOP)
    assert "is asked to stop" in place.call("stop", "run").stdout
    assert "asked to stop before" in place.call("stop", "run").stdout
    for pid in place.hosts():
        os.kill(pid, signal.SIGCONT)
    place.wait_for(lambda: not place.processes())
    assert place.call("stop", "run").returncode == 2
    assert place.summary("run")["outcome"] == "stopped"
    assert not list((place.folder / "state").rglob("*.json"))


@pytest.mark.long
def test_the_next_daemon_of_the_name_adopts_the_runs_of_one_that_was_killed(place: Place) -> None:
    daemon = MachineDaemon(place)
    command = place.begin(*place.training("run", "--cluster", daemon.cluster))
    place.wait_for_merges("run")
    before = place.hosts()
    assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
    after = MachineDaemon(place, address=daemon.address)
    after.wait_for_line("adopts")
    merges = (place.folder / "run" / "merges.jsonl").read_text().count("\n")
    place.wait_for_merges("run", merges + 20)
    assert place.hosts() == before
    command.send_signal(signal.SIGINT)
    _, error = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, error
    assert place.summary("run")["outcome"] == "stopped"


@pytest.mark.soak
def test_a_killed_daemon_leaves_nothing_to_the_next_one_but_the_end_of_its_run(place: Place) -> None:
    daemon = MachineDaemon(place)
    assert place.call(*place.training("run", "--cluster", daemon.cluster, "--detach")).returncode == 0
    place.wait_for_merges("run")
    assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
    for command in ("status", "stop"):
        done = place.call(command, "run")
        assert done.returncode == 2
        assert "which is gone" in done.stderr
    for pid in place.hosts():
        os.kill(pid, signal.SIGKILL)
    place.wait_for(lambda: not place.hosts())
    shutil.rmtree(place.folder / "run" / "snapshots")  # From one, the next daemon would go on.
    after = MachineDaemon(place, address=daemon.address)
    assert "was gone for too long" in after.wait_for_line("finished")
    assert place.summary("run")["outcome"] == "failed"
    assert after.end() == 0


@pytest.mark.soak
def test_two_daemons_do_not_disturb_each_other(place: Place) -> None:
    daemons = [MachineDaemon(place, name) for name in ("alpha", "beta")]
    for daemon in daemons:
        done = place.call(*place.training(daemon.name, "--cluster", daemon.cluster, "--detach"))
        assert done.returncode == 0, done.stderr
    for daemon in daemons:
        place.wait_for_merges(daemon.name)
    shown = place.call("status", "--all").stdout
    assert all(f"daemon {daemon.name}  at {daemon.address}" in shown for daemon in daemons)
    assert daemons[0].end() == 0
    assert place.summary("alpha")["outcome"] == "stopped"
    place.wait_for_merges("beta", (place.folder / "beta" / "merges.jsonl").read_text().count("\n") + 10)
    assert place.call("stop", "--cluster", daemons[1].cluster).returncode == 0
    daemons[1].wait_for_line("finished")
    assert daemons[1].end() == 0
    assert not place.processes()


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineDaemon]:
    """A daemon whose machine lets no task in, and which never has a run."""
    place = Place(tmp_path_factory.mktemp("closed"))
    (place.folder / "machine.toml").write_text("[programs]\nmodules = []\n")
    try:
        yield MachineDaemon(place)
    finally:
        place.close()


def test_a_port_or_a_name_that_is_taken(
    closed: MachineDaemon, typed: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, place = closed, closed.place
    monkeypatch.setenv("XDG_STATE_HOME", place.environment["XDG_STATE_HOME"])
    port = typed(place.folder, "daemon", "--name", "beta", "--listen", daemon.address)
    assert port.exit_code == 2
    assert "expected a free port, found the daemon 'alpha'" in port.stderr
    name = typed(place.folder, "daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:0")
    assert name.exit_code == 2
    assert f"found one with process id {daemon.process.pid}" in name.stderr
    with fake_daemon(type="nothing") as address:
        taken = typed(place.folder, "daemon", "--name", "beta", "--listen", address)
    assert taken.exit_code == 2
    assert "expected a free port, found one in use" in taken.stderr
    assert list(place.without_porters()) == [daemon.process.pid]


@pytest.mark.soak
def test_of_two_that_start_at_once_under_one_name_one_serves(place: Place) -> None:
    home = MachineDaemon(place)
    starts = {
        "beta": ("daemon", "--name", "beta", "--listen", "tcp://127.0.0.1:0"),
        "gamma": ("join", home.address, "--name", "gamma"),
    }
    for name, words in starts.items():
        log = place.folder / f"{name}.log"
        with log.open("w") as out:
            both = [place.begin(*words, stdout=out) for _ in range(2)]
        ended = place.wait_for(lambda both=both: next((each for each in both if each.poll() is not None), None))
        _, error = ended.communicate(timeout=PATIENCE)
        (left,) = set(both) - {ended}
        assert ended.returncode == 2
        assert "expected a name that no daemon on this machine has" in error
        place.wait_for(lambda log=log: "listens at" in log.read_text())
        assert left.poll() is None
        assert set(place.without_porters()) == {home.process.pid, left.pid}
        left.send_signal(signal.SIGTERM)
        assert left.wait(60) == 75
    assert list(place.without_porters()) == [home.process.pid]


def test_a_daemon_says_that_a_command_of_another_version_called(closed: MachineDaemon) -> None:
    daemon = closed
    answer = tell(daemon.address, {"type": "machine", "protocol": PROTOCOL, "version": "0.0.1"})
    assert (answer["type"], answer["version"]) == ("another version", metadata.version("isthmus"))
    line = daemon.wait_for_line("refused")
    assert f"isthmus 0.0.1 with control protocol {PROTOCOL}; this is isthmus {metadata.version('isthmus')}" in line


def test_a_machine_refuses_what_it_may_not_load_and_a_name_that_is_not_its_own(
    closed: MachineDaemon, typed: Callable[..., Result]
) -> None:
    daemon, place = closed, closed.place
    refused = typed(place.folder, *place.training("run", "--cluster", daemon.cluster))
    assert refused.exit_code == 2
    assert f'modules = ["{place.folder / "paced.py"}"]' in refused.stderr
    assert "refused" in daemon.wait_for_line("paced.py:task")
    wrong = typed(place.folder, *place.training("run", "--cluster", cluster_file(place, "beta", daemon.address)))
    assert wrong.exit_code == 2
    assert "expected the name 'beta', found 'alpha'" in wrong.stderr
    assert not (place.folder / "run").exists()
    wait_for(
        lambda: list(place.without_porters()) == [daemon.process.pid]
    )  # A child that prepared may still be ending.
