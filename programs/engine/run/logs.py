"""The logs of a run's processes: where the output of each goes, in the folder `logs` of the run.

Processes of a run are known by them, too: `private_daemon.processes_of`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

from isthmus.runtime.ids import Replica
from isthmus.runtime.system.disk import make_usable, opened_at_end

DAEMON_LOG: Final = "daemon.log"
FORK_SERVER_LOG: Final = "forkserver.log"
PLAIN_SERVER_LOG: Final = "plainserver.log"
"""Of the fork server of the hosts that do not compute."""


def open_log(path: Path) -> BinaryIO:
    """A log opened for appending, which its owner can read whatever the umask is that a task has set; OSError."""
    file = opened_at_end(path, follows_links=True)  # As `inherited.inherit` makes them.
    try:
        make_usable(file.fileno())
    except BaseException:
        file.close()
        raise
    return file


def opened_log(path: Path) -> BinaryIO:
    """The same; /dev/null if the disk refuses, because a host without a log is better than none."""
    try:
        return open_log(path)
    except OSError:
        return Path(os.devnull).open("ab")


def log_of(folder: Path, replica: Replica) -> Path:
    """The log of a host's output, over all its lives."""
    return folder / "logs" / f"{replica.role}-{replica.slot}.log"
