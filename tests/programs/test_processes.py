"""Runs as real processes over ZeroMQ, with real deaths: who dies, and that the others go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.ledger import started_at

pytestmark = pytest.mark.timeout(180)

ISTHMUS = Path(sys.executable).with_name("isthmus")
TASK = (Path(__file__).parents[2] / "docs" / "examples" / "mine.py").read_text()


class Run:
    """A run of the linear task, whose steps are slowed so that there is time for accidents."""

    def __init__(self, folder: Path, *more: str, learners: int = 2, tokens: int = 1_000_000_000) -> None:
        self.here, self.folder = folder, folder / "run"
        (folder / "mine.py").write_text(TASK)
        options = ["--task", "mine.py:task", "--learners", str(learners), "--tokens", str(tokens), *more]
        command = [str(ISTHMUS), "train", "--transport", "zmq", *options, "--run-dir", "run"]
        pipe = subprocess.PIPE
        self.command = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)

    def wait_for(self, what: Callable[[], Any], seconds_max: float = 60.0) -> Any:
        until = time.monotonic() + seconds_max
        while not (found := what()):
            assert time.monotonic() < until, f"it did not come about: {self.story()}"
            with suppress(subprocess.TimeoutExpired):
                self.command.wait(0.1)
                raise AssertionError(self.story())
        return found

    def story(self) -> str:
        logs = sorted((self.folder / "logs").glob("*.log")) if self.folder.exists() else []
        return "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in logs)

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [str(ISTHMUS), "status", "--json", "run"],
            cwd=self.here,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else {"hosts": [], "outcome": "unknown", "training": {}}

    def host(self, name: str) -> dict[str, Any]:
        return next((host for host in self.status()["hosts"] if host["name"] == name), {})

    def merges(self) -> int:
        path = self.folder / "merges.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def epochs(self) -> list[int]:
        """The epochs of the versions that were merged, in order."""
        lines = (self.folder / "merges.jsonl").read_text().splitlines()
        return [line["version"][0] for line in map(json.loads, lines) if line["version"]]

    def pids(self) -> dict[str, int]:
        told = json.loads((self.folder / "daemon.json").read_text()) if (self.folder / "daemon.json").exists() else {}
        hosts = {host["name"]: host["pid"] for host in self.status()["hosts"] if host["pid"]}
        return {**hosts, "daemon": told["pid"]}

    def stop(self) -> dict[str, Any]:
        self.command.send_signal(signal.SIGINT)
        out, error = self.command.communicate(timeout=90)
        assert self.command.returncode == 0, (out, error, self.story())
        return json.loads((self.folder / "summary.json").read_text())

    def events(self) -> list[str]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [f"{line['host']}#{line['incarnation']} {line['what']}" for line in map(json.loads, lines)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*more: str, **options: Any) -> Run:
        runs.append(Run(tmp_path, *more, **options))
        return runs[-1]

    yield begin
    for run in runs:
        if run.command.poll() is None:
            run.command.kill()
            run.command.communicate()


def gone(pids: dict[str, int]) -> bool:
    return all(started_at(pid) is None for pid in pids.values())


def test_a_run_comes_to_its_end_and_leaves_everything_behind(start: Callable[..., Run]) -> None:
    run = start(tokens=300_000)
    out, error = run.command.communicate(timeout=120)
    assert run.command.returncode == 0, (out, error, run.story())
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["outcome"] == "done"
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]
    assert summary["tokens_pending"] == 0
    assert sum(run.events().count(event) for event in run.events() if "restarted" in event) == 0
    for name in ("report.html", "trace.json", "metrics.jsonl", "merges.jsonl", "graph.json", "config.toml"):
        assert (run.folder / name).stat().st_size
    assert len(list((run.folder / "snapshots" / "final").glob("*.safetensors"))) == summary["fragments"]
    assert run.status()["outcome"] == "done"


def test_a_learner_that_is_killed_comes_back_and_the_others_go_on(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.merges() > 20)
    os.kill(run.host("learner/1")["pid"], signal.SIGKILL)
    back = run.wait_for(lambda: (h := run.host("learner/1")).get("phase") == "stepping" and h["incarnation"] == 2 and h)
    assert back["incarnation"] == 2
    before = run.merges()
    run.wait_for(lambda: run.merges() > before + 20)
    assert run.host("learner/0")["incarnation"] == 1
    summary = run.stop()
    assert summary["outcome"] == "stopped"
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 1]
    assert summary["per_learner"][0]["stall_seconds"] < 5
    for account in summary["fragment_accounts"]:
        assert (
            sum(account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")) == account["trained"]
        )
        assert account["lost"] >= 0
    assert any("learner/1#1 killed by signal SIGKILL" in event for event in run.events())


def test_a_syncer_that_is_killed_comes_back_with_what_its_learners_hold(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.merges() > 20)
    os.kill(run.host("syncer/0")["pid"], signal.SIGKILL)
    steps = [learner["step"] for learner in run.status()["training"]["learners"].values()]
    run.wait_for(lambda: run.host("syncer/0").get("incarnation") == 2)
    run.wait_for(lambda: run.epochs()[-1:] == [2])
    before = run.merges()
    run.wait_for(lambda: run.merges() > before + 20)
    assert all(learner["step"] > step for learner, step in zip(
        run.status()["training"]["learners"].values(), steps, strict=True))  # fmt: skip
    summary = run.stop()
    assert summary["outcome"] == "stopped"
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 0]
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]


def test_an_evaluator_that_is_killed_comes_back(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.merges() > 10)
    os.kill(run.host("evaluator/0")["pid"], signal.SIGKILL)
    run.wait_for(lambda: (h := run.host("evaluator/0")).get("incarnation") == 2 and h["phase"] == "serving")
    summary = run.stop()
    assert summary["eval_loss_final"] is not None


def test_nothing_is_left_running_when_the_command_is_killed(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.merges() > 5)
    pids = run.pids()
    assert len(pids) == 6
    run.command.kill()
    run.command.communicate()
    pause, until = threading.Event(), time.monotonic() + 15
    while not gone(pids) and time.monotonic() < until:
        pause.wait(0.1)
    assert gone(pids)


def test_a_daemon_that_is_killed_is_replaced_and_adopts_the_hosts(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.merges() > 10)
    before = run.pids()
    os.kill(before["daemon"], signal.SIGKILL)
    after = run.wait_for(lambda: (now := run.pids()) and now["daemon"] != before["daemon"] and len(now) == 6 and now)
    assert {name: pid for name, pid in after.items() if name != "daemon"} == {
        name: pid for name, pid in before.items() if name != "daemon"
    }
    merges = run.merges()
    run.wait_for(lambda: run.merges() > merges + 10)
    assert run.stop()["outcome"] == "stopped"


def test_isthmus_stop_ends_a_run_and_logs_shows_a_log(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.merges() > 5)
    assert subprocess.run([str(ISTHMUS), "stop", "run"], cwd=run.here, timeout=30, check=False).returncode == 0
    run.command.communicate(timeout=60)
    assert json.loads((run.folder / "summary.json").read_text())["outcome"] == "stopped"
    logs = subprocess.run([str(ISTHMUS), "logs", "learner/9", "run"], cwd=run.here, capture_output=True, text=True,
                          timeout=30, check=False)  # fmt: skip
    assert logs.returncode == 2
    assert "learner/" in logs.stderr
