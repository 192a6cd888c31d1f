"""A home machine that is lost for good: another one becomes the home, and learners go on as they are."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.snapshots.stored import UrlStore, heads
from isthmus.runtime.supervision.incidents import HomeTaken, Superseded
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.snapshots.s3_server import BUCKET, serving

pytestmark = pytest.mark.process

LEARNER = 'roles = ["learner"]\nislands = 1'
URL = f"s3://{BUCKET}/homes"
QUICK = ("--set", "run.snapshot_every_seconds=0.5")


class Moved:
    """A run of alpha's, whose learner is on beta; alpha was lost, and beta has become its home, from a copy."""

    def __init__(self, place: Place) -> None:
        self.place, self.machines = place, Machines(place, "alpha", "beta")
        self.cluster = self.machines.cluster({"alpha": 'roles = ["syncer", "evaluator"]', "beta": "islands = 1"})
        done = place.call(*place.training("run", "--cluster", self.cluster, "--detach", *QUICK))
        assert done.returncode == 0, done.stderr
        place.wait_for_merges("run")
        place.wait_for(lambda: (place.folder / "run" / "snapshots" / "manifest.json").exists())
        place.wait_for(lambda: self.learner("run").get("published", {}).get("inner-step"))
        self.before = self.learner("run")
        self.address = self.machines.daemons["alpha"].address
        self.copy("early")
        self.refused = [self.resume(run) for run in ("run", "early")]
        self.machines.kill("alpha")
        self.copy("copy")
        self.merges = len(self.machines.merges("copy"))
        self.done = self.resume("copy")
        assert self.done.returncode == 0, (self.done.stderr, place.logs())
        self.machines.first = "beta"
        self.machines.here("beta")
        place.wait_for(lambda: len(self.machines.merges("copy")) > self.merges + 10)

    def learner(self, run: str) -> dict[str, Any]:
        """What the run's home says of the learner."""
        return self.machines.host("learner/0", run)

    def copy(self, name: str) -> None:
        """Copy the run folder, as it is."""
        shutil.copytree(self.place.folder / "run", self.place.folder / name, symlinks=True)

    def resume(self, run: str) -> subprocess.CompletedProcess[str]:
        """Ask beta to be the home of a run."""
        return self.place.call("resume", run, "--cluster", self.cluster, "--home", "beta")


@pytest.mark.soak
def test_another_machine_becomes_the_home_of_a_run_whose_home_was_lost(place: Place) -> None:
    moved = Moved(place)
    for refused, words in zip(moved.refused, ("one that goes on there", "goes on under 'alpha'"), strict=True):
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
    assert "beta is the home" in moved.done.stdout
    found = moved.learner("copy")
    assert (found["pid"], found["incarnation"]) == (moved.before["pid"], 1)
    assert found["published"]["inner-step"]["step"] > moved.before["published"]["inner-step"]["step"]
    assert HomeTaken("beta", 2, "alpha") in moved.machines.incidents("daemon/0#1", "copy")
    assert moved.machines.status("copy")["term"] == 2
    assert place.call("stop", "copy").returncode == 0
    moved.machines.daemons["beta"].wait_for_line("finished")
    summary = place.summary("copy")
    assert summary["outcome"] == "stopped"
    accounts_add_up(summary)
    assert (place.folder / "copy" / "spans" / "learner-0-1.json").stat().st_size > 1000
    assert not list((place.folder / "state-beta").rglob("spec.json"))
    assert "identical: " in place.call("replay", "copy").stdout  # Also what the former home decided.


@pytest.mark.soak
def test_an_old_home_that_comes_back_finds_the_newer_one_and_ends_its_hosts(place: Place) -> None:
    moved = Moved(place)
    moved.machines.start("alpha", moved.address).wait_for_line("finished")
    assert Superseded("beta", 2, 1) in moved.machines.incidents("daemon/0#1", "run")
    assert "goes on under another home, beta (term 2)" in place.summary("run")["error"]
    assert moved.learner("copy")["pid"] == moved.before["pid"]
    moved.machines.here("alpha")
    assert place.call("resume", "run", "--cluster", moved.cluster, "--home", "alpha").returncode == 2
    # The next daemon of the new home goes on with the run, too.
    moved.machines.daemons["beta"].end(signal.SIGKILL)
    address, merges = moved.machines.daemons["beta"].address, len(moved.machines.merges("copy"))
    moved.machines.start("beta", address).wait_for_line("adopts")
    place.wait_for(lambda: len(moved.machines.merges("copy")) > merges + 10)
    place.wait_for(lambda: moved.learner("copy")["pid"])  # Its next daemon has heard it.
    assert moved.learner("copy")["pid"] == moved.before["pid"]


@pytest.mark.soak
def test_a_home_that_comes_back_goes_on_with_its_run_from_the_snapshot(place: Place) -> None:
    """Also where every process of it has died with it, and no other machine has a part in it."""
    machines = Machines(place, "alpha")
    cluster = machines.cluster({"alpha": "islands = 1"})
    done = place.call(*place.training("run", "--cluster", cluster, "--detach", *QUICK))
    assert done.returncode == 0, done.stderr
    place.wait_for_merges("run")
    place.wait_for(lambda: (place.folder / "run" / "snapshots" / "manifest.json").exists())
    address, merges = machines.daemons["alpha"].address, len(machines.merges())
    machines.kill("alpha")
    place.wait_for(lambda: not place.hosts())
    machines.start("alpha", address).wait_for_line("no living process, from its snapshot")
    place.wait_for(lambda: len(machines.merges()) > merges + 10)
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    accounts_add_up(place.summary("run"))


@pytest.mark.soak
def test_a_home_that_is_lost_with_its_folder_is_replaced_from_a_url(tmp_path: Path) -> None:
    """And nothing else than the snapshots of a run of these machines, which has lost its home, is taken."""
    with serving():
        place = Place(tmp_path)
        try:
            machines = Machines(place, "alpha", "beta")
            cluster = machines.cluster({"alpha": 'roles = ["syncer", "evaluator"]', "beta": "islands = 1"})
            stored = (*QUICK, "--set", f"run.snapshots={URL}")
            done = place.call(*place.training("run", "--cluster", cluster, "--detach", *stored))
            assert done.returncode == 0, done.stderr
            place.wait_for_merges("run")
            place.wait_for(lambda: len(heads(UrlStore(URL).names())) > 1)
            place.wait_for(lambda: machines.host("learner/0").get("published", {}).get("inner-step"))
            before = machines.host("learner/0")

            def resume(url: str) -> subprocess.CompletedProcess[str]:
                return place.call("resume", url, "--cluster", cluster, "--home", "beta", "--run-dir", "next")

            refused = resume(URL)
            assert (refused.returncode, "a run that was cut off" in refused.stderr) == (2, True), refused.stderr
            machines.kill("alpha")
            shutil.rmtree(tmp_path / "run")
            refused = resume(f"s3://{BUCKET}/elsewhere")
            assert (refused.returncode, "found none" in refused.stderr) == (2, True), refused.stderr
            refused = resume("file:///tmp")
            assert (refused.returncode, "a URL that names a store" in refused.stderr) == (2, True), refused.stderr
            assert not (tmp_path / "next").exists()
            done = resume(URL)
            assert done.returncode == 0, (done.stderr, place.logs())
            machines.first = "beta"
            machines.here("beta")
            place.wait_for(lambda: len(machines.merges("next")) > 10)
            found = machines.host("learner/0", "next")
            assert (found["pid"], found["incarnation"]) == (before["pid"], 1)
            assert found["published"]["inner-step"]["step"] > before["published"]["inner-step"]["step"]
            assert machines.status("next")["term"] == 2
            place.wait_for(lambda: heads(UrlStore(URL).names())[0].startswith("snapshot-0002-"))
            assert place.call("stop", "next").returncode == 0
            machines.daemons["beta"].wait_for_line("finished")
            summary = place.summary("next")
            assert summary["outcome"] == "stopped"
            accounts_add_up(summary)
            assert "identical: " in place.call("replay", "next").stdout
            assert not list(tmp_path.glob(".resume-*"))
        finally:
            place.close()
