"""The processes of a run in progress, and the kernel's information about them (proc(5)).

Everything is read from outside: the daemon reports the pid of a host, /proc whether that process is there, stands
still, and how much CPU time it has had.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.programs.chaos.plan import DAEMON, FORK_SERVER, machine_name, machine_number
from isthmus.programs.run.launch import FORK_SERVER_LOG
from isthmus.programs.run.private_daemon import processes_of
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.wire.control_client import ask

ANSWER_SECONDS = 1.0


class Process(NamedTuple):
    """A process, distinguishable from a later one of the same pid."""

    pid: int
    started: int

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        return started_at(self.pid) == self.started

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far; 0 once it is gone."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


def process(pid: int) -> Process | None:
    """The process that has this pid now."""
    started = started_at(pid) if pid else None
    return None if started is None else Process(pid, started)


def check_permitted() -> None:
    """ConfigError if this kernel, or the confinement of this process, does not permit strikes, or their proof."""
    doing, wrong = "Preparing the plan", list[Fault]()
    try:
        watch = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(watch, 0)
        finally:
            os.close(watch)
    except OSError as error:
        do = "Use Linux 5.3 or later, and a confinement (seccomp) that permits pidfd_open and pidfd_send_signal."
        wrong.append(Fault(doing, "signals to processes by pidfd", str(error), do))
    if process(os.getpid()) is None or not _is_readable(Path("/proc/self/environ")):
        do = "Mount /proc (proc(5)), readable for the user that runs this command."
        wrong.append(Fault(doing, "/proc, which proves faults", "none that can be read", do))
    if wrong:
        raise ConfigError.of(wrong)


def _is_readable(path: Path) -> bool:
    with suppress(OSError):
        return bool(path.read_bytes())
    return False


def owner_of(pid: int) -> str:
    """The host of a run that a process is, by the title that it has given itself; '' if it is none."""
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode("utf-8", "replace")
        return title.partition("isthmus ")[2]
    return ""


class Cast:
    """The processes of the run in `folder`, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def status(self) -> Mapping[str, Any]:
        """The status from the run's daemon; empty if none answers."""
        with suppress(OSError, ValueError, KeyError, ConfigError):
            told = json.loads((self._folder / "daemon.json").read_text())
            return ask(told["endpoint"], {"type": "status"}, ANSWER_SECONDS) or {}
        return {}

    def zero(self) -> float | None:
        """The first inner step of the run, in seconds of the monotonic clock; None before it."""
        training = self.status().get("training") or {}
        if training.get("zero") is None or not training.get("tokens"):
            return None
        zero_ns: int = json.loads((self._folder / "spec.json").read_text())["zero_ns"]
        return float(zero_ns + training["zero"]) / 1e9

    def find_all(self, role: str) -> list[Process]:
        """The processes of a role, whatever they do."""
        pids = [host["pid"] for host in self.status().get("hosts", ()) if host["role"] == role]
        return [found for pid in pids if (found := process(pid or 0)) is not None]

    def find_machine(self, name: str) -> tuple[str, ...] | None:
        """The hosts of a machine of a plan, if all of them do their work."""
        own = machine_name(machine_number(name))
        hosts = [host for host in self.status().get("hosts", ()) if host["machine"] == own]
        return tuple(host["name"] for host in hosts) if hosts and all(map(_works, hosts)) else None

    def find(self, name: str) -> Process | None:
        """The process of this name, if it lives and works."""
        if name == FORK_SERVER:
            pids = [pid for pid, log in processes_of(self._folder) if log == FORK_SERVER_LOG]
            ready = [pid for pid in pids if owner_of(pid) == FORK_SERVER]  # Its title shows that it is ready.
            return process(ready[0]) if ready else None
        status = self.status()
        if name == DAEMON:
            return process(status.get("pid", 0))
        host = next((host for host in status.get("hosts", ()) if host["name"] == name), None)
        return process(host["pid"] or 0) if host is not None and _works(host) else None


def _works(host: Mapping[str, Any]) -> bool:
    return host["phase"] in ("stepping", "serving")
