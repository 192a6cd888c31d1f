"""Ctrl-C, SIGTERM and SIGHUP: counted instead of raised for as long as a run lasts.

Ctrl-C ends a run. SIGTERM and SIGHUP are notices that the process has to go: a run is set aside, and goes on at its
next start. Processes below a daemon take none of them for their own, and follow their daemon.

Inherited signal settings are corrected so that each of them can always end a run:

- A mask that blocks them, as some tools leave one behind, is undone at the start of every process of ours, and for as
  long as a run lasts in one that is not.
- SIGINT that is ignored is taken all the same. A shell without job control ignores it for commands started with `&`,
  lest a Ctrl-C that is meant for another process ends them; but `kill -INT` is how a script ends a run in good order,
  and Python code that is started so would lose it, too. To keep a run apart from a terminal there is --detach.
- SIGHUP that is ignored stays ignored: that is what nohup is for.

With SIGHUP the terminal may be gone, and every write to it an error. Output has no reader then, so it goes nowhere.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn

from isthmus.runtime.system.processes import ENDING, signal_name

SAME_NOTICE_SECONDS: Final = 1.0
"""Between two notices that are one: a terminal that goes sends SIGHUP twice, by the kernel and by its shell."""


class Interrupts:
    """The number of signals so far, how many were Ctrl-C (`presses`), and whether one was a notice to leave; since
    when there is one (`first_at`) and a `second_at`, on the monotonic clock."""

    def __init__(self) -> None:
        self.count = self.presses = 0
        self.first_at: float | None = None
        self.second_at: float | None = None
        self._last, self._noticed_at = int(signal.SIGINT), -SAME_NOTICE_SECONDS
        self.second = threading.Event()
        """Set at the second one."""

    @property
    def is_to_leave(self) -> bool:
        """Whether this process is to go, and what it runs is to go on later."""
        return self.count > self.presses

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        self.count, self._last = self.count + 1, number
        self.presses += number == signal.SIGINT
        self._note_time(number, time.monotonic())
        _leave_terminal(number)

    def _note_time(self, number: int, now: float) -> None:
        if number != signal.SIGINT:
            is_same, self._noticed_at = now - self._noticed_at < SAME_NOTICE_SECONDS, now
            if is_same:
                return
        if self.first_at is None:
            self.first_at = now
        elif self.second_at is None:
            self.second_at = now
            self.second.set()

    def error(self) -> KeyboardInterrupt:
        """The KeyboardInterrupt of the last signal."""
        return KeyboardInterrupt(*_names(self._last))


def handle(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Have all of them handled so, and return how they were; ValueError in any thread but the main one."""
    numbers = [int(each) for each in ENDING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def ignore() -> None:
    """Have none of them do anything."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Signal handler that acts like Ctrl-C: raises KeyboardInterrupt with the name of the signal."""
    _leave_terminal(number)
    raise KeyboardInterrupt(*_names(number))


def open_standard_streams() -> None:
    """Open each standard stream that is closed (`>&-`) on /dev/null, so that no file or socket gets its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, "r")
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def leave_output() -> None:
    """Redirect standard output, whose reader is gone, to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def drop_untaken_output() -> None:
    """Let lines be lost that standard output has not taken, of which Python would make an error of its own at the end:
    where the disk is full, and a process has told so, or goes on without being read."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        leave_output()


def _names(number: int) -> list[str]:
    """The name of a signal; nothing for SIGINT, as in Python's own KeyboardInterrupt."""
    return [] if number == signal.SIGINT else [signal_name(number)]


def _leave_terminal(number: int) -> None:
    """After SIGHUP, redirect standard streams whose terminal is gone to /dev/null."""
    for stream in (0, 1, 2) if number == signal.SIGHUP else ():
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # ENOTTY if it never was a terminal.
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, stream)
                os.close(nothing)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Count signals, unmasked, in the main thread; in other threads the handlers stay as they are.

    After a second Ctrl-C nothing is left that a third could end: where it is `interrupt` that would get it, it is
    ignored, lest its KeyboardInterrupt take the place of what the command says of the end.
    """
    counted = Interrupts()
    before: dict[int, Any] = {}
    masked: set[int] = set()
    with suppress(ValueError):  # Only the main thread may set handlers.
        before = handle(counted.on_signal)
        masked = {*signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)}.intersection(ENDING)
    try:
        yield counted
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, masked)
        for number, handler in before.items():
            is_over = number == signal.SIGINT and counted.presses > 1 and handler is interrupt
            signal.signal(number, signal.SIG_IGN if is_over else handler)
