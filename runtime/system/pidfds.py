"""Processes that are held by a descriptor (pidfd_open(2)): a number that has gone to another one is never signalled.

An interpreter has both calls, unless it was built with headers from before Linux 5.3, as those of conda are. There they
are made by their numbers, which all architectures share.

How a process has ended, only its parent learns by waiting for it. `exit_status` is for others.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

_OPEN: Final = 434
_SEND_SIGNAL: Final = 424
_GET_INFO: Final = 0xC040FF0B
"""PIDFD_GET_INFO with a `pidfd_info` of 64 bytes (linux/pidfd.h), where ioctls have the numbers of x86 and ARM."""
_INFO_BYTES: Final = 64
_INFO_EXIT: Final = 8
_EXIT_CODE_AT: Final = 60


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


def exit_status(pidfd: int, pid: int) -> int | None:
    """The exit status, negative for a signal, of a process that has ended, which need not be a child; None where the
    kernel does not tell it: it was reaped, and this is Linux before 6.15, or the process is another user's."""
    for status in (_of_zombie(pidfd, pid), _of_reaped(pidfd)):  # In this order: it may be reaped between the two.
        if status is not None:
            return os.waitstatus_to_exitcode(status)
    return None


def _of_zombie(pidfd: int, pid: int) -> int | None:
    """The wait status of a process that has ended and is not reaped (proc(5), exit_code)."""
    folder = Path(f"/proc/{pid}")
    with suppress(OSError, ValueError):
        is_own = folder.stat().st_uid == os.geteuid()  # Of another user's the kernel says 0, whatever it was.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pidfd_send_signal(pidfd, 0)  # It is not reaped yet, so that what was read is of no other process.
        if fields[0] == "Z" and is_own:
            return int(fields[-1])
    return None


def _of_reaped(pidfd: int) -> int | None:
    """The wait status of a process that was reaped (PIDFD_GET_INFO, Linux 6.15)."""
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(pidfd, _GET_INFO, info)
        if struct.unpack_from("Q", info)[0] & _INFO_EXIT:
            return int(struct.unpack_from("i", info, _EXIT_CODE_AT)[0])
    return None


def _call(number: int, *arguments: int | None) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
