"""Memory of a descriptor that another process maps, too.

Python's mmap keeps a descriptor of its own for each mapping (before 3.13), and a host may have hundreds of mappings.
Python lacks `os.memfd_create` and the names of seals where it was built with a C library from before 2018, as those of
conda are; the library that it runs with has the call, and the numbers are those of every Linux.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from typing import Any, Final

F_ADD_SEALS: Final = 1033
F_GET_SEALS: Final = 1034
F_SEAL_SEAL: Final = 0x0001
F_SEAL_SHRINK: Final = 0x0002
F_SEAL_GROW: Final = 0x0004
F_SEAL_FUTURE_WRITE: Final = 0x0010
"""Of Linux 5.1: no further mapping may be writable."""
_MFD_CLOEXEC: Final = 0x0001
_MFD_ALLOW_SEALING: Final = 0x0002

_libc: Final = ctypes.CDLL(None, use_errno=True)
_map: Final = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap: Final = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_advise: Final = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_create: Final = getattr(_libc, "memfd_create", None)
_FAILED: Final = ctypes.c_void_p(-1).value


def sealable_file(name: str) -> int:
    """The descriptor of a new anonymous file in memory, empty, which may be sealed. OSError where there is none."""
    if _create is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = int(_create(name.encode(), _MFD_CLOEXEC | _MFD_ALLOW_SEALING))
    if descriptor < 0:
        raise _last_error()
    return descriptor


def map_shared(descriptor: int, size_bytes: int, *, is_writable: bool) -> Any:
    """The first bytes of a descriptor as a buffer, mapped until nobody has the buffer or a view of it. OSError.

    Writing into one that is not writable ends the process: give only read-only views away.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    address = _map(None, size_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _FAILED):
        raise _last_error()
    buffer = (ctypes.c_uint8 * size_bytes).from_address(address)
    weakref.finalize(buffer, _unmap, address, size_bytes).atexit = False
    return buffer


def leave_pages(buffer: Any) -> None:
    """Have this process no longer count among those that have the pages of a buffer of `map_shared`: what is read there
    later is found again, at .07 CPU seconds a GB. Nothing of it changes."""
    _advise(ctypes.addressof(buffer), ctypes.sizeof(buffer), mmap.MADV_DONTNEED)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
