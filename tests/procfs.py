"""What the kernel tells of a process: its descriptors and threads, which come and go while they are listed."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def open_files(pid: int | str = "self") -> set[str]:
    """What the descriptors of a process are of: paths, ``socket:[INODE]``, ``pipe:[INODE]``."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(path.readlink()))
    return found


def has_ipv6() -> bool:
    """Whether this machine has the loopback address of IPv6."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as test:
        test.bind(("::1", 0))
        return True
    return False


class Thread(NamedTuple):
    name: str
    ticks: int


def threads(pid: int | str = "self") -> dict[str, Thread]:
    """The threads of a process by their number: the name of each, and the clock ticks that it has computed."""
    found = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            found[path.name] = Thread(name, int(fields[11]) + int(fields[12]))
    return found


def listening(pid: int | str = "self") -> set[str]:
    """The sockets on which anything in the network of a process listens for TCP, as `open_files` gives them."""
    tables = [Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {f"socket:[{line[9]}]" for line in lines if line[3] == "0A"}
