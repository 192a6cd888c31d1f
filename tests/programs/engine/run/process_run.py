"""A run in real processes, as a test sees it: started by the command, watched through its daemon and through /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from isthmus.runtime.supervision.incidents import Incident, incident_of
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.daemon_notes import remove_dead_socket
from tests.patience import PATIENCE
from tests.programs.engine.results.event_lines import incidents_in

ISTHMUS = Path(sys.executable).with_name("isthmus")
FOREVER = 1_000_000_000
"""Tokens for a run that is to be ended by something else."""
PAUSE = threading.Event()
"""Never set: to look again, after a moment, whether something has come about."""
TASK = """
import time
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jax.random.normal(key, (32, 1)), "b": jnp.zeros(1)}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)
def batch(at):
    time.sleep(0.004)
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-2))
"""
"""A step of 4 ms that takes next to no CPU: many processes share few cores here, and none is to be in another's way."""
STUCK: Final = TASK.replace("sleep(0.004)", "sleep(600 if at.position > 2 else 0)")
"""Its third step never ends, so a first Ctrl-C does not bring a run to its end before the second is there."""


def press_until_over(command: subprocess.Popen[str]) -> str:
    """Ctrl-C, again and again, because signals that wait are one; what the command has said on standard error."""
    until = time.monotonic() + PATIENCE
    while command.poll() is None:
        assert time.monotonic() < until, "it goes on"
        command.send_signal(signal.SIGINT)
        PAUSE.wait(0.1)
    return command.communicate()[1]


class Run:
    """A run of a small linear task in `folder`, with run folder `folder/run`. It ends with the test."""

    def __init__(
        self,
        folder: Path,
        *more: str,
        learners: int | None = 2,
        tokens: int = FOREVER,
        task: str = TASK,
        after: tuple[str, ...] = (),
    ) -> None:
        self.here, self.folder = folder, folder / "run"
        (folder / "paced.py").write_text(task)
        options = ["--task", "paced.py:task"] if not {"--task", "--model", "--loop"}.intersection(more) else []
        options += ["--tokens", str(tokens), *([] if learners is None else ["--learners", str(learners)]), *more]
        command = [str(ISTHMUS), "train", "--transport", "zmq", *options, "--run-dir", "run", *after]
        pipe = subprocess.PIPE
        self.command = subprocess.Popen(
            command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_for(self, what: Callable[[], Any], seconds_max: float = PATIENCE) -> Any:
        """The first true result of `what`; AssertionError, with the logs, if the command ends first, or time does."""
        until = time.monotonic() + seconds_max
        while not (found := what()):
            assert time.monotonic() < until, f"it did not come about: {self.story()}"
            with suppress(subprocess.TimeoutExpired):
                self.command.wait(0.02)
                raise AssertionError((self.command.communicate(), self.story()))
        return found

    def wait_for_merges(self, more: int, *, seconds_max: float = PATIENCE) -> None:
        """Wait until so many more fragments are merged."""
        before = self.merges()
        self.wait_for(lambda: self.merges() >= before + more, seconds_max)

    def story(self) -> str:
        """The ends of all logs."""
        logs = sorted((self.folder / "logs").glob("*.log")) if self.folder.exists() else []
        return "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in logs)

    # -- what the daemon says ------------------------------------------------------------------------------------------

    def daemon(self) -> dict[str, Any]:
        """What the daemon wrote about itself; empty before it has."""
        path = self.folder / "daemon.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def status(self) -> dict[str, Any]:
        """What `isthmus status` shows of a run that goes on."""
        daemon = self.daemon()
        answer = ask(daemon["endpoint"], {"type": "status"}, 2.0) if daemon else None
        return answer or {"hosts": [], "outcome": "unknown", "training": {}}

    def host(self, name: str) -> dict[str, Any]:
        """One host in the status."""
        return next((host for host in self.status()["hosts"] if host["name"] == name), {})

    def steps(self) -> dict[str, int]:
        """Learner -> the steps of its present life, as it says itself."""
        hosts = [host for host in self.status()["hosts"] if host["role"] == "learner" and host.get("published")]
        return {host["name"]: host["published"].get("inner-step", {}).get("step", 0) for host in hosts}

    def pids(self) -> dict[str, int]:
        """Name -> pid of the hosts that live, and of the daemon."""
        hosts = {host["name"]: host["pid"] for host in self.status()["hosts"] if host["pid"]}
        return {**hosts, "daemon": self.daemon()["pid"]}

    # -- what is in the run folder -------------------------------------------------------------------------------------

    def merges(self) -> int:
        """How many merges were written down."""
        path = self.folder / "merges.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def epochs(self) -> list[int]:
        """The epochs of the versions that were merged, in order."""
        lines = (self.folder / "merges.jsonl").read_text().splitlines()
        return [line["version"][0] for line in map(json.loads, lines) if line["version"]]

    def voters(self) -> list[list[int]]:
        """The slots that contributed to each merge, in order."""
        lines = (self.folder / "merges.jsonl").read_text().splitlines()
        return [line["voters"] for line in map(json.loads, lines)]

    def incidents(self, life: str = "") -> list[Incident]:
        """What happened to a life of a host, such as 'learner/1#1', or to any, in order."""
        return incidents_in(self.folder, life)

    def incident(self, name: str) -> Incident | None:
        """What happened to a host last, as its status says."""
        told = self.host(name).get("reason")
        return None if told is None else incident_of(told)

    def summary(self) -> dict[str, Any]:
        """The figures of a run that is over."""
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    # -- the end -------------------------------------------------------------------------------------------------------

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a host; its pid."""
        pid: int = self.wait_for(lambda: self.host(name).get("pid"))
        os.kill(pid, number)
        return pid

    def kill_all(self) -> None:
        """Kill everything of the run at once, the command among it, and wait until it is gone."""
        while living := self.processes():
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            PAUSE.wait(0.02)
        self.command.communicate()

    def stop(self) -> dict[str, Any]:
        """Ctrl-C, and what came of it."""
        self.command.send_signal(signal.SIGINT)
        return self.finish()

    def finish(self, outcome: str = "stopped") -> dict[str, Any]:
        """Wait for the end, which is to be a good one that has left everything behind; the summary."""
        out, error = self.command.communicate(timeout=PATIENCE)
        assert self.command.returncode == 0, (out, error, self.story())
        assert "Traceback" not in out + error + self.story(), (out, error, self.story())
        summary = assert_is_whole(self.folder)
        assert summary["outcome"] == outcome
        self.wait_until_gone()
        return summary

    def signal(self, number: int) -> None:
        """Send the command a signal as a terminal does: to all of its group."""
        os.killpg(self.command.pid, number)

    def processes(self) -> dict[int, str]:
        """pid -> name of everything that runs in the folder, the command among them, and no zombies."""
        return {pid: name for pid, name in _processes_in(self.here) if started_at(pid) is not None}

    def fork_server(self) -> int:
        """The fork server's pid, once it runs its program. A child that it has just forked still has its title."""

        def only() -> list[int]:
            found = [pid for pid, name in self.processes().items() if "isthmus fork-server" in name]
            return found if len(found) == 1 else []

        (pid,) = self.wait_for(only)
        return int(pid)

    def comms(self) -> set[str]:
        """The names of these processes, as /proc/PID/stat has them in parentheses."""
        return {text for pid in self.processes() if (text := _comm(pid))}

    def wait_until_gone(self, seconds_max: float = PATIENCE) -> None:
        """Wait until nothing runs in the folder; AssertionError if something goes on."""
        until = time.monotonic() + seconds_max
        while left := self.processes():
            assert time.monotonic() < until, f"{left} go on: {self.story()}"
            PAUSE.wait(0.02)

    def close(self) -> None:
        """End the command and whatever runs in the folder."""
        for pid in [self.command.pid, *self.processes()] if self.command.poll() is None else self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.command.communicate()
        self.wait_until_gone()
        remove_dead_socket(self.folder)


def assert_is_whole(folder: Path) -> dict[str, Any]:
    """Assert that a run that is over has left everything behind, with accounts that add up; its summary."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    for name in ("report.html", "trace.json", "metrics.jsonl", "merges.jsonl", "graph.json", "config.toml"):
        assert (folder / name).stat().st_size, name
    assert len(list((folder / "snapshots" / "final").glob("*.safetensors"))) == summary["fragments"] > 0
    for account in summary["fragment_accounts"]:
        parts = [account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")]
        assert min(parts) >= 0, account
        assert sum(parts) == account["trained"], account
    return summary


def _comm(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")[0]
    return ""


def _processes_in(folder: Path) -> list[tuple[int, str]]:
    """Processes that work in a folder: hosts, daemon and command are all started there."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                if (path / "cwd").readlink() == folder:
                    found.append((int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def resume(run: Run, *more: str, folder: str = "run") -> subprocess.Popen[str]:
    command, pipe = [str(ISTHMUS), "train", "--resume", folder, *more], subprocess.PIPE
    return subprocess.Popen(command, cwd=run.here, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
