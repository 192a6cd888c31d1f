"""What the kernel's error numbers say, and what their reader can do about them.

Decides which errors are facts about the other (a process that is gone, a file that is not there, a lock that another
has), which are facts about this process or its disk, and the remedy of each. An error of ours is never read as a fact
about the other: whoever decides something by an OSError asks here by which.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
"""There is no such file."""
LOCKED: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES})
"""Of a lock: another process has it."""
LOCKLESS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""Of a lock: the disk has none."""
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Of a disk that is full, or of which this user has had its share."""

_OPEN_FILES: Final = "raise the limit of open files (ulimit -n 4096, LimitNOFILE= of a service), or end what has many"
_REMEDIES: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EMFILE: _OPEN_FILES,
        errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max), or end what has many",
        errno.ENOSPC: "make room on that disk",
        errno.EDQUOT: "make room in this user's quota, or have it raised",
        errno.EROFS: "name a folder on a disk that takes writes: this one is mounted read-only",
        errno.EACCES: "have this user permitted to use it, or name another",
        errno.EPERM: "have this user permitted to do it, or name another",
        errno.EIO: "look at the disk: it has failed (dmesg)",
        errno.ENOMEM: "end what has the memory, or use a machine with more",
        errno.EAGAIN: "raise the limit of processes and threads (ulimit -u, pids.max of a container), or end some",
        errno.ELOOP: "name the file itself: a link is not followed there",
        errno.ENAMETOOLONG: "name a shorter path",
        errno.ENOLCK: "name a folder on a local disk: this one has no locks (mount NFS with its lock service)",
        errno.ENOSYS: "name a folder on a local disk: this one has no locks (mount Lustre with -o flock)",
        errno.EOPNOTSUPP: "name a folder on a local disk: this one has no locks",
        errno.ESTALE: "name the folder again: the server of that disk has replaced it",
    }
)


def is_absent(error: OSError) -> bool:
    """Whether the error says that there is no such file, and not that this process could not look."""
    return error.errno in ABSENT


def reason(error: OSError) -> str:
    """What has failed, as the kernel words it, with the file that it names."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def remedy(error: OSError, otherwise: str = "") -> str:
    """What its reader can do about an error, a sentence; `otherwise` for one whose number says nothing about that."""
    known = _REMEDIES.get(error.errno or 0)
    return otherwise if known is None else f"{known[0].upper()}{known[1:]}."


def own(error: OSError) -> bool:
    """Whether the error is about this process or its machine: its descriptors and its memory are used up."""
    return error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
