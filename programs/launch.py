"""How a daemon starts the process of a host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from isthmus.runtime.ids import Replica
from isthmus.runtime.process import environment


def launch(folder: Path, replica: Replica, incarnation: int, endpoint: str) -> subprocess.Popen[bytes]:
    """Start a host in a session of its own, with its log in the run folder."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "isthmus.programs.host_process", str(folder), str(replica), str(incarnation)]
    with (logs / f"{replica.role}-{replica.slot}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, endpoint],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(replica.role),
            start_new_session=True,
        )
