"""What the kernel's error numbers say, and what their reader can do about them.

Decides which errors are facts about the other (a process that is gone, a file that is not there, a lock that another
has), which are facts about this process or its disk, and the remedy of each. An error of ours is never read as a fact
about the other: whoever decides something by an OSError asks here by which. What follows from it is decided there.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from isthmus.runtime.errors import Fault

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
        errno.ENOMEM: "end what has the memory, or use a machine with more",
        errno.EAGAIN: "raise the limit of processes and threads (ulimit -u, pids.max of a container), or end some",
        errno.ENOSPC: "make room on that disk",
        errno.EDQUOT: "make room in this user's quota, or have it raised",
        errno.EROFS: "name a folder on a disk that takes writes: this one is mounted read-only",
        errno.EIO: "look at the disk: it has failed (dmesg)",
        errno.ESTALE: "name the folder again: the server of that disk has replaced it",
        errno.ENOLCK: "name a folder on a local disk: this one has no locks (mount NFS with its lock service)",
        errno.ENOSYS: "use a kernel, a disk and a confinement (seccomp) that have this call",
        errno.EOPNOTSUPP: "name a folder on a local disk: this one cannot do it",
    }
)
"""By numbers that say what is the matter, whatever was being done."""
_USUAL: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EACCES: "have this user permitted to use it, or name another",
        errno.EPERM: "have this user permitted to do it, or name another",
        errno.ELOOP: "name the file itself: a link is not followed there",
        errno.ENAMETOOLONG: "name a shorter path",
    }
)
"""Where nobody knows better."""
_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


def is_absent(error: OSError) -> bool:
    """Whether the error says that there is no such file, and not that this process could not look."""
    return error.errno in ABSENT


def reason(error: OSError) -> str:
    """What has failed, as the kernel words it, with the file that it names."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def remedy(error: BaseException, otherwise: str = "") -> str:
    """What its reader can do about an error, in sentences; `otherwise` for one whose number does not say that."""
    number = getattr(error, "errno", None) or 0
    known = _REMEDIES.get(number) or ("" if otherwise else _USUAL.get(number))
    return f"{known[0].upper()}{known[1:]}." if known else otherwise


def fault_of(error: OSError) -> Fault | None:
    """What to tell of an error that nobody has expected, whatever was being done; None where its number does not say
    what can be done about it, which is an error of ours."""
    if isinstance(error, BrokenPipeError) or not (do := remedy(error)):
        return None
    return Fault("Carrying out the command", "a machine and a disk that take it", reason(error), do)


def is_own(error: BaseException) -> bool:
    """Whether the error is about this process or its machine, whose descriptors or memory are used up, and so is no
    fact about anything else."""
    return getattr(error, "errno", None) in _OWN
