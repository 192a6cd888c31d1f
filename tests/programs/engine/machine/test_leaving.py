"""Machines that are told to leave by SIGTERM, in real processes: one that joined returns to its slot, and a home goes
on with its run, which its daemon has begun by itself."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.results.reading import read_absences
from isthmus.programs.engine.run.private_daemon import processes_of
from isthmus.runtime.supervision.incidents import Ended, HomeSetAside, Joined, MachineTaken
from tests.patience import PATIENCE
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.results.event_lines import incidents_in
from tests.programs.engine.run.process_run import FOREVER

pytestmark = [pytest.mark.process, pytest.mark.long]

GRACE = ("--grace", "120")
"""So long that a busy machine answers within it."""
HOME = ("daemon", "--name", "alpha", "--run", "cluster.toml", "--run-dir", "run", "--until-over", *GRACE)


@pytest.fixture
def free_port() -> int:
    """A port of loopback that nobody has: the kernel gives the next ones to others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Home:
    """The daemon of alpha, which begins the run by itself; `more` are options."""

    def __init__(self, place: Place, address: str, *more: str) -> None:
        self.place, self.log = place, place.folder / f"alpha-{len(place.started)}.log"
        with self.log.open("w") as out:
            command = (*HOME, "--listen", address, "--config", "machine.toml", *more)
            self.process = place.begin(*command, stdout=out)

    def says(self, words: str) -> str:
        """The first line with these words."""
        found: str = self.place.wait_for(lambda: next((x for x in self.log.read_text().splitlines() if words in x), ""))
        return found


def voters(folder: Path) -> list[list[int]]:
    """The slots in each merge."""
    path = folder / "merges.jsonl"
    return [json.loads(line)["voters"] for line in path.read_text().splitlines()] if path.exists() else []


def cluster(place: Place, port: int, learners: int, tokens: int = FOREVER) -> str:
    """Write the cluster file; the address of the home."""
    address = f"tcp://127.0.0.1:{port}"
    (place.folder / "cluster.toml").write_text(
        f'[[machine]]\nname = "alpha"\naddress = "{address}"\nislands = 2\n'
        f'[run]\ntask = "paced.py:task"\nlearners = {learners}\ntokens = {tokens}\n'
    )
    return address


def test_one_that_joined_leaves_with_a_last_answer_and_returns_to_its_slot(place: Place, free_port: int) -> None:
    address, folder = cluster(place, free_port, 1), place.folder / "run"
    home = Home(place, address)
    place.wait_for_merges("run")
    lives: list[dict[str, Any]] = []
    for number in range(2):
        with (place.folder / f"beta-{number}.log").open("w") as log:
            beta = place.begin("join", address, "--name", "beta", "--config", "machine.toml", *GRACE, stdout=log)
        before = len(voters(folder))
        place.wait_for(lambda before=before: any(1 in each for each in voters(folder)[before:]))
        beta.send_signal(signal.SIGTERM)
        assert beta.wait(PATIENCE) == 75
        lives.append({"left": home.says("machine beta leaves")})
    assert home.process.poll() is None
    with (place.folder / "beta-2.log").open("w") as log:
        beta = place.begin("join", address, "--name", "beta", "--config", "machine.toml", *GRACE, stdout=log)
    before = len(voters(folder))
    place.wait_for(lambda: any(1 in each for each in voters(folder)[before:]))
    assert place.call("expel", "beta", "--machine", "alpha", "--grace", "60").returncode == 0
    assert beta.wait(PATIENCE) == 0
    joined = [each for each in incidents_in(folder, "") if isinstance(each, Joined)]
    assert len(joined) == 3
    assert not any(isinstance(each, Ended) and isinstance(each.end, MachineTaken) for each in incidents_in(folder, ""))
    assert read_absences(folder) == ()
    home.process.send_signal(signal.SIGINT)
    assert home.process.wait(PATIENCE) == 0
    summary = place.summary("run")
    (row,) = [each for each in summary["per_learner"] if each["learner"] == 1]
    assert (summary["outcome"], row["restarts"], summary["tokens_lost"]) == ("stopped", 2, 0)
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]


def test_a_home_whose_every_process_is_told_to_leave_goes_on_at_its_next_start(place: Place, free_port: int) -> None:
    address, folder = cluster(place, free_port, 2, 60_000), place.folder / "run"
    first = Home(place, address, "--resume-or-start")
    place.wait_for_merges("run")
    for pid in [first.process.pid, *(pid for pid, _ in processes_of(folder))]:
        os.kill(pid, signal.SIGTERM)
    assert first.process.wait(PATIENCE) == 75
    assert not place.hosts()
    assert (place.summary("run")["outcome"], place.summary("run")["tokens_lost"]) == ("interrupted", 0)
    assert HomeSetAside() in incidents_in(folder, "daemon/0#1")
    assert read_absences(folder) == ()
    task = place.folder / "paced.py"
    task.write_text(f"{task.read_text()}# Mended.\n")
    _, error = Home(place, address, "--resume-or-start").process.communicate(timeout=PATIENCE)
    assert "--accept-changes" in error
    done = Home(place, address, "--resume-or-start", "--accept-changes").process
    assert done.wait(PATIENCE) == 0
    summary = place.summary("run")
    assert summary["outcome"] == "done"
    [altered] = summary["alterations"]
    assert [(each["part"], each["file"]) for each in altered["files"]] == [("task", str(task))]
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]
    again = Home(place, address, "--resume-or-start")
    assert again.process.wait(PATIENCE) == 0
    assert again.says("is done")
    refused = Home(place, address).process
    _, error = refused.communicate(timeout=PATIENCE)
    assert (refused.returncode, "a folder without another run in it" in error) == (2, True), error
