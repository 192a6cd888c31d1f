"""Memory of a descriptor that another process maps, too.

Python's mmap keeps a descriptor of its own for each mapping (before 3.13), and a host may have hundreds of mappings.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_map: Final = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap: Final = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED: Final = ctypes.c_void_p(-1).value


def map_shared(descriptor: int, size_bytes: int, *, is_writable: bool) -> Any:
    """The first bytes of a descriptor as a buffer, mapped until nobody has the buffer or a view of it. OSError.

    Writing into one that is not writable ends the process: give only read-only views away.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    address = _map(None, size_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    buffer = (ctypes.c_uint8 * size_bytes).from_address(address)
    weakref.finalize(buffer, _unmap, address, size_bytes).atexit = False
    return buffer
