"""A place for snapshots beside the run folder: objects by name, each there whole or not at all.

Decides nothing: guarantees are built on top of it, in `stored`. It requires less of a place than of a disk, because
object stores have neither renaming nor appending: put an object, get it, list the names, remove one. So one protocol
serves a folder on another disk, through the `Disk` that a host is given, and every filesystem of fsspec (`urls`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, final

from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import write_bytes


class Store(Protocol):
    """Objects by name; OSError if the store refuses, or cannot be reached."""

    def put(self, name: str, data: bytes) -> None:
        """Store an object durably, in place of any other of its name."""

    def get(self, name: str, bytes_max: int) -> bytes:
        """The whole object; FileNotFoundError if there is none, OSError if it has more than `bytes_max` bytes."""

    def names(self) -> list[str]:
        """The names of all objects, in order; empty if nothing was ever put."""

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""


@final
class FolderStore:
    """A folder of a disk, its files written aside, synced and renamed."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk

    def put(self, name: str, data: bytes) -> None:
        write_bytes(self._folder / name, data, self._disk)

    def get(self, name: str, bytes_max: int) -> bytes:
        data = self._disk.read(self._folder / name)
        if len(data) > bytes_max:
            raise OSError(f"{name} has {len(data)} bytes: expected at most {bytes_max}")
        return data

    def names(self) -> list[str]:
        return [name for name in self._disk.sizes(self._folder) if not name.startswith(".")]

    def remove(self, name: str) -> None:
        self._disk.remove(self._folder / name)


def words(error: OSError) -> str:
    """The reason in an error of a store or a disk."""
    return error.strerror or str(error) or os.strerror(error.errno or 5)
