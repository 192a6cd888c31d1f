"""Processes that are held by a descriptor (pidfd_open(2)): a number that has gone to another one is never signalled.

An interpreter has both calls, unless it was built with headers from before Linux 5.3, as those of conda are. There they
are made by their numbers, which all architectures share.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_OPEN: Final = 434
_SEND_SIGNAL: Final = 424


def pidfd_open(pid: int) -> int:
    """A descriptor of a process, which becomes readable as it ends, and is closed at exec; OSError."""
    own = getattr(os, "pidfd_open", None)
    return _call(_OPEN, pid, 0) if own is None else int(own(pid))


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process of a descriptor; OSError, ProcessLookupError if it has ended and was reaped."""
    own = getattr(signal, "pidfd_send_signal", None)
    if own is None:
        _call(_SEND_SIGNAL, pidfd, number, None, 0)
    else:
        own(pidfd, number)


def _call(number: int, *arguments: int | None) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
