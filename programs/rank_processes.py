"""The ranks of one program on this machine, as one process of which they are the children: what torchrun does for them.

    python -m isthmus.programs.rank_processes COUNT PROGRAM ARGUMENTS...

Each rank finds its number and the address of the meeting in its environment, by the names that torch.distributed reads.
Signals that ask for an end go to all ranks. Once one has failed, the others have some seconds to end by themselves. The
exit status is that of the first rank that fails, and 0 if none does.

Unlike torchrun it leaves them in its session, so that whatever kills the session kills all of them; it begins in
milliseconds; and the first rank has the descriptors of this process.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from isthmus.runtime.system.processes import ENDING, unblock

END_SECONDS: Final = 10.0
"""For the others to say why they end, once one has failed."""
_HERE: Final = "127.0.0.1"


def command_of(count: int, command: Sequence[str]) -> list[str]:
    """The command that runs another one in so many ranks."""
    return [sys.executable, "-m", __spec__.name, str(count), *command]


def run(count: int, command: Sequence[str]) -> int:
    """Start the ranks, and wait for all of them; the exit status."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    meeting = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": _HERE}
    meeting["MASTER_PORT"] = str(_free_port())
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for each in ranks:
            each.send_signal(number)

    def wait(rank: int) -> None:
        ranks[rank].wait()
        ended.put(rank)

    for number in ENDING:
        signal.signal(number, forward)
    for rank in range(count):
        variables = {**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen(command, env=variables, close_fds=rank > 0))
    for rank in range(count):
        threading.Thread(target=wait, args=(rank,), daemon=True).start()
    status, others = 0, threading.Timer(END_SECONDS, forward, (signal.SIGKILL, None))
    others.daemon = True
    for _ in range(count):
        code = ranks[ended.get()].returncode
        if code and not status:
            status = code
            others.start()
    return status


def _free_port() -> int:
    with socket.socket() as each:
        each.bind((_HERE, 0))
        port: int = each.getsockname()[1]
        return port


def main(arguments: Sequence[str]) -> None:
    """Run the ranks, and end as the first that has failed."""
    unblock()
    status = run(int(arguments[0]), arguments[1:])
    if status < 0:  # By a signal, which is this process's end, too.
        # One that is ignored or blocked would not end it, and two of 64 are the C library's own.
        with suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
