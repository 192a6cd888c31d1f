"""How a run in processes ended, as its daemon knows it, and the process that writes the last files from that.

A run's own daemon calls `finish` in a thread; a machine's daemon, which outlives its runs and loads no user's code,
calls `finish_apart`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from isthmus.programs.engine.run.logs import log_of
from isthmus.runtime.daemon.home_daemon import Daemon
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.system.disk import opened_at_end

FINISH_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    outcome: str
    error: str | None
    record: dict[str, Any]
    """The recorder's last status."""
    cpu_seconds: float
    """Those of daemon and hosts."""
    used: dict[str, float]
    """By ended lives."""
    ended_ns: int
    """On the machine's monotonic clock."""
    lost: str | None
    """The replica that could not be restarted."""
    retired: list[int]
    """Slots of learners that left with their machines."""
    unfinished: dict[str, str] = field(default_factory=dict)
    """The hosts whose scripts did not come to their end, and why."""
    dismissed: list[str] = field(default_factory=list)
    """Those whose scripts were ended by request."""

    @classmethod
    def of(cls, daemon: Daemon, cpu_seconds: float) -> RunEnd:
        """How the run of a daemon ended; `cpu_seconds` were used by what is no host.

        What hosts used the home knows, of those that daemons before this one have started, too.
        """
        from isthmus.programs.engine.results.words import reason  # Sentences are made where a run has ended.

        by_hosts = sum(value for name, value in daemon.home.used.items() if name.endswith(".cpu_seconds"))
        record = daemon.status_last
        lost = None if daemon.lost is None else str(daemon.lost)
        retired = [replica.slot for replica in daemon.home.fleet.retired if replica.role == LEARNER]
        used = dict(daemon.home.used)
        total = by_hosts + cpu_seconds
        unfinished = {str(each): reason(why) for each, why in sorted(daemon.home.unfinished.items())}
        at_end = time.monotonic_ns(), lost, retired, unfinished, list(map(str, daemon.home.dismissed))
        return cls(daemon.outcome, error_of(daemon), record, total, used, *at_end)


def error_of(daemon: Daemon) -> str | None:
    """Why the run of a daemon failed, in words; None if it did not."""
    if daemon.failure is None:
        return None
    from isthmus.programs.engine.results.words import failure

    log = None if daemon.lost is None else log_of(daemon.folder, daemon.lost)
    return failure(daemon.failure, log)


def finish_apart(folder: Path, ending: RunEnd, seconds_max: float = FINISH_SECONDS_MAX) -> None:
    """`finish` in a process of its own, for at most so long; its errors are in the run's log of the daemon."""
    with opened_at_end(folder / "logs" / "daemon.log", follows_links=True) as log:
        subprocess.run(
            [sys.executable, "-m", "isthmus.programs.engine.run.finish", str(folder)],
            input=msgpack.packb(asdict(ending)),
            stdout=log,
            stderr=log,
            timeout=seconds_max,
            check=False,
            start_new_session=True,  # Shields it from Ctrl-C on the daemon's terminal.
        )
