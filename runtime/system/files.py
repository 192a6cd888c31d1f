"""Files: lines that are appended, tensors and JSON that appear whole or not at all.

Lines may be late or lost where a disk is full or broken (`append_only`), and never raise for it. A file that is written
whole is durable, name and all, when the call returns; if that fails, the call raises OSError, and the file is as it
was.

Everything here may block, and is called from threads that may.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from safetensors.numpy import load_file, save

from isthmus.runtime.system.append_only import Growing
from isthmus.runtime.system.disk import DISK, Disk, File

LINES_BYTES_MAX: Final = 256 << 20
"""A file of lines is rotated once, to NAME.1, so that it takes at most twice this much of the disk."""


@final
class Lines:
    """A JSON-lines file that can be read while it grows: appends are whole lines, now or once the disk accepts them.

    A line that an earlier life has left unfinished stays as it is, and the next one begins after it.
    """

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self._growing = Growing(path, disk, mark=b"\n", bytes_max=LINES_BYTES_MAX)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line; NaN and infinities are not JSON, and raise ValueError."""
        self._growing.append(json.dumps(line, allow_nan=False).encode() + b"\n")

    def flush(self) -> bool:
        """Try to write the waiting lines; returns whether none are left."""
        return self._growing.flush()

    def counts(self) -> dict[str, Any]:
        """Counts of the lines since this was opened, for a status.

        Those `written`, `waiting` and `lost`, the `torn` ones that were found, and the `error` that lines wait for or
        were lost to, or None.
        """
        told = self._growing
        names = ("written", "waiting", "lost", "torn")
        return {**{name: getattr(told, name) for name in names}, "error": told.error or told.lost_to}

    def close(self) -> None:
        """Close the file; lines that the disk does not accept now are lost."""
        self._growing.close()


def write_bytes(path: Path, data: bytes, disk: Disk = DISK) -> None:
    """Write a file so that it is whole, or as it was before, whatever happens meanwhile; OSError if that fails.

    When this returns the file is durable.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = disk.create(beside)
        try:
            _write_all(file, data)
            file.sync()
        finally:
            file.close()
        disk.rename(beside, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(beside)
        raise
    disk.sync_folder(path.parent)


def insist(write: Callable[[], None], seconds_max: float, *, pause: float = 1.0) -> None:
    """Call `write` until it succeeds, for at most `seconds_max`; then raise its OSError."""
    until = time.monotonic() + seconds_max
    while True:
        try:
            write()
            return
        except OSError:
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Any], disk: Disk = DISK) -> None:
    """Write a safetensors file, whole or not at all."""
    write_bytes(path, encoded(tensors), disk)


def encoded(tensors: Mapping[str, Any]) -> bytes:
    """A safetensors file of these tensors."""
    return save({name: np.asarray(array, order="C") for name, array in tensors.items()})


def read_tensors(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The tensors of a safetensors file."""
    return dict(load_file(path))


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def _write_all(file: File, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = file.write(bytes(view) if len(view) < len(data) else data)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[count:]
