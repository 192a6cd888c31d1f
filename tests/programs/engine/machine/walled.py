"""A wall around a process: the kernel refuses it every `listen` and `accept` from now on, in all of its threads.

Nobody can connect to a process behind it. A task that is to build one imports this in its first batch, which only
learners make. It needs no privilege (seccomp(2), with no_new_privs); `build` proves that it stands.
"""

from __future__ import annotations

import ctypes
import platform
import socket
import struct
from typing import Final

_CALLS: Final = {
    # machine -> (AUDIT_ARCH, the numbers of seccomp, listen, accept, accept4)
    "x86_64": (0xC000003E, 317, 50, 43, 288),
    "aarch64": (0xC00000B7, 277, 201, 202, 242),
}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE_EACCES = 0x7FFF0000, 0x00050000 | 13
_SET_NO_NEW_PRIVS, _SET_FILTER, _ALL_THREADS = 38, 1, 1


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def is_possible() -> bool:
    """Whether this kind of machine is known here."""
    return platform.machine() in _CALLS


def build() -> None:
    """Refuse; OSError if the kernel will not, AssertionError if it does not."""
    arch, seccomp, *refused = _CALLS[platform.machine()]
    count = len(refused)
    steps = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, count + 1, arch), (_LOAD, 0, 0, 0)]
    steps += [(_JUMP_IF_EQUAL, count - index, 0, number) for index, number in enumerate(refused)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE_EACCES)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for result in (
        libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        libc.syscall(seccomp, _SET_FILTER, _ALL_THREADS, ctypes.byref(program)),
    ):
        if result:
            raise OSError(ctypes.get_errno(), "the kernel takes no filter")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        try:
            probe.listen()
        except PermissionError:
            return
    raise AssertionError("the wall does not stand")
