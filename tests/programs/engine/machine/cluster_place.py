"""Machines on loopback, as tests see them: daemons of different names, each with a state folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from isthmus.runtime.supervision.incidents import Incident
from isthmus.runtime.wire.control_client import ask
from tests.programs.engine.machine.daemon_place import MachineDaemon, Place
from tests.programs.engine.results.event_lines import incidents_in


class Machines:
    """Some machines in one folder, by name. Commands are typed on the first of `names`."""

    def __init__(self, place: Place, *names: str) -> None:
        self.place = place
        self.daemons: dict[str, MachineDaemon] = {}
        self.first = names[0] if names else ""
        for name in names:
            self.start(name)
            self.here(self.first)

    def start(self, name: str, address: str = "tcp://127.0.0.1:0", *more: str) -> MachineDaemon:
        """Start a machine's daemon, perhaps again, with further options."""
        self.here(name)
        self.first = self.first or name
        self.daemons[name] = MachineDaemon(self.place, name, address, *more)
        return self.daemons[name]

    def here(self, name: str) -> None:
        """From now on commands are typed on this machine."""
        self.place.environment["XDG_STATE_HOME"] = str(self.place.folder / f"state-{name}")

    def cluster(self, more: dict[str, str], name: str = "cluster.toml", run: str = "") -> str:
        """The name of a cluster file with all machines, each with lines of its own."""
        parts = [
            f'[[machine]]\nname = "{each}"\naddress = "{daemon.address}"\n{more.get(each, "")}\n'
            for each, daemon in self.daemons.items()
        ]
        (self.place.folder / name).write_text("".join(parts) + run)
        return name

    def join(self, home: str, name: str, islands: int = 1, *more: str) -> subprocess.Popen[str]:
        """A machine joins; its lines are in NAME.log."""
        self.here(name)
        with (self.place.folder / f"{name}.log").open("w") as log:
            joining = self.place.begin(
                *("join", self.daemons[home].address, "--name", name, "--islands", str(islands)),
                *("--config", "machine.toml", *more),
                stdout=log,
            )
        self.here(home)
        return joining

    def lines(self, name: str) -> str:
        """What a machine that joined has told."""
        return (self.place.folder / f"{name}.log").read_text()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def status(self, run: str = "run") -> dict[str, Any]:
        """What the first machine, or another one that is its home by now, says of a run."""
        home = self.daemons[self.first]
        asked = {"type": "watch", "run": str(self.place.folder / run), "renews": False}
        return ask(home.address, asked, 2.0) or {"hosts": []}

    def host(self, name: str, run: str = "run") -> dict[str, Any]:
        """One host of the run."""
        return next((host for host in self.status(run)["hosts"] if host["name"] == name), {})

    def steps(self) -> dict[str, tuple[int, int]]:
        """Learner -> its life, and its steps."""
        learners = [host for host in self.status()["hosts"] if host["role"] == "learner" and host["pid"]]
        return {h["name"]: (h["incarnation"], h["published"].get("inner-step", {}).get("step", 0)) for h in learners}

    def kill(self, name: str) -> None:
        """A machine is gone: its daemon, and every host on it, at once."""
        daemon = self.daemons[name].process.pid
        family = [pid for pid in self.place.processes() if pid == daemon or _parent(pid) == daemon]
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        self.daemons[name].process.wait()

    def merges(self, run: str = "run") -> list[dict[str, Any]]:
        """All merges that were written down."""
        path = self.place.folder / run / "merges.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def metrics(self, run: str = "run") -> list[dict[str, Any]]:
        """All that learners have reported."""
        path = self.place.folder / run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def incidents(self, life: str = "", run: str = "run") -> list[Incident]:
        """What happened to a life of a host, or to any, in order."""
        return incidents_in(self.place.folder / run, life)


def accounts_add_up(summary: dict[str, Any]) -> None:
    """Every trained token is exactly one of merged, overlapped, refused, lost and pending."""
    assert summary["fragment_accounts"]
    for account in summary["fragment_accounts"]:
        parts = [account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")]
        assert min(parts) >= 0, account
        assert sum(parts) == account["trained"], account


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
