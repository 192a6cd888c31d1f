"""Runs with an island whose only road is a store: a folder, and a server that speaks S3, each request 200 ms late."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing

import pytest

from isthmus.runtime.supervision.incidents import Ended
from tests.patience import PATIENCE
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.snapshots.s3_server import BUCKET, Way, serving, variables

pytestmark = [pytest.mark.process, pytest.mark.long]

SETTINGS = "--set", "program.interval=240", "--set", "program.overlap=90"
"""A fragment is away for some seconds, and a step takes 40 ms."""


class BucketPlace(Machines):
    """The home alpha, and beta, which joins by invitation through `via`."""

    def __init__(self, place: Place, via: str) -> None:
        self.place, self.daemons, self.first, self.via = place, {}, "alpha", via
        task = (place.folder / "paced.py").read_text().replace("time.sleep(0.004)", "time.sleep(0.04)")
        (place.folder / "paced.py").write_text(task)
        (place.folder / "beta.toml").write_text('[programs]\nmodules = ["paced.py"]\n')
        self.here("alpha")
        assert not place.call("keygen", "alpha").returncode
        keys = '[keys]\nsecret = "alpha.key"\n'
        with (place.folder / "machine.toml").open("a") as file:
            file.write(keys)
        self.daemon = self._begin("daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:0", name="alpha")
        found = place.wait_for(lambda: [line for line in self.lines("alpha").splitlines() if "listens at" in line])
        self.address = found[0].partition("listens at ")[2].partition(",")[0]
        machine = f'[[machine]]\nname = "alpha"\naddress = "{self.address}"\npublic_key = "alpha.pub"\nislands = 1\n'
        (place.folder / "cluster.toml").write_text(keys + machine)
        assert not place.call("invite", "beta").returncode

    def join_through(self) -> subprocess.Popen[str]:
        self.here("beta")
        joining = self._begin("join", "--invite", "beta.invite", name="beta")
        self.here("alpha")
        self.place.wait_for(lambda: "linked to alpha through" in self.lines("beta"))
        return joining

    def train(self) -> subprocess.Popen[str]:
        command = self.place.begin(*self.place.training("run", "--cluster", "cluster.toml", "--quiet", *SETTINGS))
        self.wait_for_votes(2)
        return command

    def votes(self) -> int:
        """Merges in which the learner of beta was."""
        return sum(1 in merge["voters"] for merge in self.merges())

    def wait_for_votes(self, more: int) -> None:
        before = self.votes()
        self.place.wait_for(lambda: self.votes() >= before + more)

    def stop(self, command: subprocess.Popen[str]) -> None:
        """End the run; its books balance."""
        command.send_signal(signal.SIGINT)
        _, error = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, error
        accounts_add_up(self.place.summary("run"))

    def _begin(self, *words: str, name: str) -> subprocess.Popen[str]:
        config = "machine.toml" if name == "alpha" else "beta.toml"
        with (self.place.folder / f"{name}.log").open("w") as log:
            return self.place.begin(*words, "--config", config, "--via", self.via, stdout=log)


def test_an_island_through_a_folder_is_merged_and_its_sudden_end_costs_what_it_had(place: Place) -> None:
    share = place.folder / "share"
    share.mkdir()
    machines = BucketPlace(place, f"file://{share}")
    joining = machines.join_through()
    command = machines.train()
    carriers = [pid for pid, name in place.processes().items() if name.startswith("isthmus bucket")]
    assert len(carriers) == 2
    os.kill(carriers[-1], signal.SIGKILL)  # Begun anew by its daemon; lives go on.
    machines.wait_for_votes(2)
    family = [pid for pid, name in place.processes().items() if pid == joining.pid or "learner/1" in name]
    assert len(family) >= 2
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    count = len(machines.merges())
    place.wait_for(lambda: len(machines.merges()) >= count + 4)  # Nobody waits for it.
    machines.stop(command)
    assert "Traceback" not in machines.lines("alpha")


def test_an_island_through_s3_is_merged_and_outlives_a_store_that_is_away(place: Place) -> None:
    with serving() as port, closing(Way(port, 0.2)) as way_of_home, closing(Way(port, 0.2)) as way:
        place.environment.update(variables(way_of_home.port))
        machines = BucketPlace(place, f"s3://{BUCKET}/isthmus")
        place.environment.update(variables(way.port))
        joining = machines.join_through()
        command = machines.train()
        way.room = 0
        place.wait_for(lambda: "cannot be reached" in machines.lines("beta"))
        count = len(machines.merges())
        place.wait_for(lambda: len(machines.merges()) >= count + 2)  # Nobody waits for it.
        way.room = None
        place.wait_for(lambda: "is reached again" in machines.lines("beta"))
        machines.wait_for_votes(2)
        assert not [each for each in machines.incidents() if isinstance(each, Ended)]
        machines.stop(command)
        for each in (joining, machines.daemon):  # Before the server.
            each.send_signal(signal.SIGINT)
            assert each.wait(PATIENCE) == 0


def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(place: Place) -> None:
    machines = BucketPlace(place, f"file://{place.folder}/share")
    before = sorted(path.name for path in place.folder.iterdir())
    for words in (
        ("join", "--invite", "beta.invite"),
        ("daemon", "--name", "gamma", "--listen", "tcp://127.0.0.1:0", "--config", "machine.toml"),
    ):
        done = place.call(*words, "--via", "file:///proc/share")
        assert done.returncode == 2
        assert "a place that can be written, file:///proc/share" in done.stderr
    done = place.call("daemon", "--name", "gamma", "--listen", "tcp://127.0.0.1:0", "--via", machines.via)
    assert done.returncode == 2
    assert "a daemon with keys" in done.stderr
    assert sorted(path.name for path in place.folder.iterdir()) == before
