"""Where the threads of a process are, as faulthandler prints it at the signal STACKS: how it is asked, and read."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple, final

from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal
from isthmus.runtime.system.processes import STACKS, catches
from isthmus.runtime.system.user_files import is_users

_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_THREAD: Final = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")


@final
class PrintedFrame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str


def ask_for_stack(pid: int) -> bool:
    """Have a process print where its threads are; whether it will. OSError where it is gone."""
    watch = pidfd_open(pid)  # Before it is looked at: its number may be another one's a moment later.
    try:
        if not catches(pid, STACKS):
            return False
        pidfd_send_signal(watch, STACKS)
    finally:
        os.close(watch)
    return True


def threads_in(text: str) -> list[list[PrintedFrame]]:
    """The stacks in a text, the innermost line of each thread first."""
    threads = list[list[PrintedFrame]]()
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append(PrintedFrame(frame["file"], int(frame["line"]), frame["function"]))
    return threads


def users_depth(thread: list[PrintedFrame]) -> int | None:
    """How deep the innermost line of a thread is that is in the user's code; None where none is."""
    return next((depth for depth, frame in enumerate(thread) if is_users(frame.file)), None)
