"""What stands where a file should, and a disk that takes no more of one."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Meanwhile no file of this process may grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ODD = ["pipe", "socket", "device", "folder"]


def lay(path: Path, kind: str) -> None:
    """Lay something at a path that is no regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        folder = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")  # The path of a test may be too long for a socket.
        os.close(folder)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
