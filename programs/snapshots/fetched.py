"""A snapshot from a store, as files of a run folder: the basis on which a run goes on on another machine.

Decides which of its parts may become a file. All of it was written by someone with access to the store, so names are
compared with those that a run has, sizes and digests with the head, and everything is in a folder of its own until it
is known to be whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from isthmus.programs.snapshots.snapshots import FOLDER, MANIFEST, Entry
from isthmus.programs.snapshots.store import words
from isthmus.programs.snapshots.stored import Head, newest
from isthmus.programs.snapshots.storing import FILES, TERM
from isthmus.programs.snapshots.urls import Place
from isthmus.programs.snapshots.whole_states import StateEntry
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import write_bytes


class Fetched(NamedTuple):
    """The head of a fetched snapshot, and the faults of newer ones."""

    head: Head
    faults: list[str]


def fetch(place: Place, folder: Path, disk: Disk, doing: str) -> Fetched:
    """Write the newest complete snapshot at a place into an empty folder.

    ConfigError if there is none, or the place or the disk refuses.
    """

    def take(head: Head, entry: Entry | StateEntry, data: bytes) -> None:
        write_bytes(folder / FOLDER / entry.file, data, disk)

    try:
        store = place.open(disk)
        found = newest(store, take)
        if found is not None:
            _write(found.head, folder, disk)
    except OSError as error:
        do = "Look at its name, at the credentials of this machine, and at the room on its disk."
        raise ConfigError(doing, f"a place that can be read, {place.text}", words(error), do) from None
    except ValueError as error:
        do = "Look for a copy of it, or start the run again."
        raise ConfigError(doing, f"a snapshot in {place.text} that is whole", str(error)[:1000], do) from None
    if found is None:
        do = "Look at its name: it is what run.snapshots was, to the letter."
        raise ConfigError(doing, f"a snapshot in {place.text}", "none", do)
    return Fetched(found.head, found.faults)


def _write(head: Head, folder: Path, disk: Disk) -> None:
    for name in FILES:
        if name in head.files:
            write_bytes(folder / name, head.files[name], disk)
    write_bytes(folder / TERM, b"%d\n" % (head.term + 1), disk)
    named = {entry.file for entry in head.manifest.entries}
    for name in disk.sizes(folder / FOLDER):
        if name.endswith(".safetensors") and name not in named:  # Of a snapshot that proved incomplete.
            disk.remove(folder / FOLDER / name)
    write_bytes(folder / FOLDER / MANIFEST, msgspec.json.encode(head.manifest), disk)
