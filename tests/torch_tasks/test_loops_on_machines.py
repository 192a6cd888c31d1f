"""docs/examples/own_loop.py on two machines of a cluster, on loopback, with permission and arguments; one is killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.run.process_run import FOREVER

pytestmark = [pytest.mark.torch, pytest.mark.process]
EXAMPLE: Final = Path(__file__).parents[2] / "docs" / "examples" / "own_loop.py"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "train.py")
    (tmp_path / "machine.toml").write_text('[programs]\nscripts = ["train.py"]\n')
    yield made
    made.close()


def losses(machines: Machines) -> list[float]:
    """Those that learners have reported."""
    return [line["loss"] for line in machines.metrics() if line.get("loss") is not None]


def test_a_script_in_torch_trains_on_two_machines_and_one_that_was_killed_goes_on(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": 'roles = ["learner"]\nislands = 1'})
    words = ("--cluster", cluster, "--loop", "train.py", "--run-dir", "run", "--tokens", str(FOREVER), "--detach")
    done = place.call("train", *words, "--", "--rate", "0.01")
    assert done.returncode == 0, (done.stderr, place.logs())
    place.wait_for_merges("run", 4)
    os.kill(place.wait_for(lambda: machines.host("learner/1").get("pid")), signal.SIGKILL)
    place.wait_for(lambda: any((line.get("learner"), line.get("incarnation")) == (1, 2) for line in machines.metrics()))
    place.wait_for(
        lambda: (seen := losses(machines)) and seen[-1] < seen[0] / 4
    )  # Sums of 32 numbers: near 32 at first.
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    summary = place.summary("run")
    assert (summary["outcome"], summary["scripts_unfinished"]) == ("stopped", [])
    assert [row["restarts"] for row in summary["per_learner"]] == [0, 1]
    accounts_add_up(summary)
    assert (place.folder / "own_loop.pt").exists(), "the lines behind the `with` of slot 0 ran"
