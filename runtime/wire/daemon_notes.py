"""How the daemon of a run is found: by its note in the run folder, which names a socket that only its user can reach.

Decides where that socket is, who may connect to it, and that nothing of it is left. It is a Unix socket in a temporary
folder of its own, through which the kernel lets nobody but its owner (mode 0700), so it needs no key. It is not in the
run folder, because a socket's path may have 107 bytes, not every file system has sockets, and none can be copied; nor
below XDG_RUNTIME_DIR, which goes when its user logs out, and runs go on.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.system.refusals import is_own

HERE: Final = "daemon.json"
"""The note, in a run folder or that of an outpost."""
PATH_BYTES_MAX: Final = 107
"""Of a socket's path (unix(7)), without the byte that ends it."""
PRIVATE: Final = "ipc://*"
"""Listen at a new endpoint that only this user can reach."""
_IPC: Final = "ipc://"
_MODE: Final = 0o700
"""Of its folder, as tempfile makes it."""
_PREFIX: Final = "isthmus-"
_NAME: Final = "daemon"


@final
@dataclass(frozen=True, slots=True)
class DaemonNote:
    """The daemon that a folder names: its endpoint, its process, and when that started (`processes.started_at`)."""

    endpoint: str
    pid: int
    started: int | None
    name: str

    @classmethod
    def mine(cls, endpoint: str, name: str) -> Self:
        """The note of this process."""
        return cls(endpoint, os.getpid(), started_at(os.getpid()), name)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The note that a file has; KeyError, TypeError or ValueError if it has none."""
        return cls(str(fields["endpoint"]), int(fields["pid"]), fields["started"], str(fields["name"]))

    @property
    def is_living(self) -> bool:
        """Whether the process is still the one that wrote this."""
        return self.started is not None and started_at(self.pid) == self.started


def note_of(folder: Path) -> DaemonNote | None:
    """The note in a folder; None without one that can be read. OSError where this process has no descriptor for it."""
    try:
        return DaemonNote.of(json.loads(read_text(folder / HERE)))
    except OSError as error:
        if is_own(error):
            raise
        return None
    except (ValueError, KeyError, TypeError):
        return None


def publish(folder: Path, endpoint: str, name: str) -> None:
    """Name this process, which listens at `endpoint`, as the daemon in a folder; OSError on failure."""
    remove_dead_socket(folder)
    write_json(folder / HERE, asdict(DaemonNote.mine(endpoint, name)))


def remove_dead_socket(folder: Path) -> None:
    """Remove the socket of a folder's daemon if it is dead: in a copy of a run folder it may be alive."""
    if (note := note_of(folder)) is not None and not note.is_living:
        forget(note.endpoint)


def private_endpoint() -> str:
    """The endpoint that PRIVATE stands for, with a new folder; OSError if that cannot be made."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX)) / _NAME
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        path.parent.rmdir()
        raise OSError(f"{path} is too long for a socket: at most {PATH_BYTES_MAX} bytes. Set TMPDIR to a shorter path")
    return f"{_IPC}{path}"


def is_lost(endpoint: str) -> bool:
    """Whether the socket of a private endpoint was deleted, and can be bound again: its folder is there, made if it was
    missing, and is this user's."""
    path = Path(endpoint.removeprefix(_IPC))
    if not endpoint.startswith(_IPC) or path.exists():
        return False
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=_MODE, exist_ok=True)
        found = path.parent.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _MODE


def forget(endpoint: str) -> None:
    """Remove the folder of a private endpoint at which nothing listens any more; no-op for any other endpoint."""
    path = Path(endpoint.removeprefix(_IPC))
    if endpoint.startswith(_IPC) and path.name == _NAME and path.parent.name.startswith(_PREFIX):
        with suppress(OSError):
            found = path.parent.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            # As `private_endpoint` made it: a note in a run folder, which names it, may be somebody else's.
            if is_ours and stat.S_IMODE(found.st_mode) == _MODE and _is_for_sockets(path.parent.parent):
                with suppress(FileNotFoundError):
                    if stat.S_ISSOCK(path.lstat().st_mode):
                        path.unlink()
                path.parent.rmdir()  # Refuses a symbolic link, and whatever else is in it.


def _is_for_sockets(folder: Path) -> bool:
    """Whether a folder is one for temporary files: this process's, or one in which others may remove nothing of ours.

    A daemon's process may have had another TMPDIR than this one.
    """
    if os.path.realpath(folder) == os.path.realpath(tempfile.gettempdir()):
        return True
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISVTX) and bool(mode & stat.S_IWOTH)
