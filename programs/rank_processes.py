"""The ranks of one program on this machine, as one process of which they are the children: what torchrun does for them.

    python -m isthmus.programs.rank_processes COUNT PROGRAM ARGUMENTS...

Each rank finds its number and the address of the meeting in its environment, by the names that torch.distributed reads.
Signals that ask for an end go to all ranks. Once one has failed, the others have some seconds to end by themselves. The
exit status is that of the first rank that fails, and 0 if none does. Ranks that hang together (`rank_watch.py`) are
told with their places and killed, and the status is RANKS_HUNG.

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
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from isthmus.programs.rank_watch import BOUND, RankWatch, printed_stack, told
from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.system.processes import ENDING, RANKS_HUNG, unblock

END_SECONDS: Final = 10.0
"""For the others to say why they end, once one has failed."""
LOOKS: Final = 20
"""In the time after which ranks hang."""
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 1.0, 15.0
OF_NCCL: Final[Mapping[str, str]] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Only NCCL reads them, and what the user has set stays: an operation that fails, or lasts longer than the timeout of
its group, ends its rank, and so the island; and the last operations of each rank are written down then."""
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
        variables = {**OF_NCCL, **os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen(command, env=variables, close_fds=rank > 0))
    for rank in range(count):
        threading.Thread(target=wait, args=(rank,), daemon=True).start()
    status, others = 0, threading.Timer(END_SECONDS, forward, (signal.SIGKILL, None))
    others.daemon = True
    bound = _bound(os.environ)
    watch = RankWatch([each.pid for each in ranks], seconds(bound), printed_stack) if bound else None
    pause = min(max(bound / LOOKS, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX) if bound else None
    left = count
    while left:
        try:
            code = ranks[ended.get(timeout=pause)].returncode
        except queue.Empty:
            stacks = watch.look(Instant(time.monotonic_ns())) if watch is not None and left == count else None
            if stacks is not None:
                print("\n".join(told(stacks, bound)), file=sys.stderr, flush=True)
                forward(signal.SIGKILL, None)
                return RANKS_HUNG
            continue
        left -= 1
        if code and not status:
            status = code
            others.start()
    return status


def _bound(variables: Mapping[str, str]) -> float:
    """Seconds after which ranks that do nothing hang; 0 for never."""
    try:
        return max(float(variables.get(BOUND, "0")), 0.0)
    except ValueError:
        return 0.0


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
