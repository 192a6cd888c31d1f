"""Brings the snapshots of a run's home to its store: the shell of `offers`.

It reads the files of a snapshot from the disk one at a time, so it has at most one fragment in memory. Beside the model
go the files that a run needs to go on: its spec and configuration, and its recorder's knowledge at the time when the
model is there, because books only grow and may know more than a snapshot, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypedDict, final

from isthmus.programs.snapshots.courier import Courier, PiecewiseCourier, ThreadCourier
from isthmus.programs.snapshots.offers import Offers
from isthmus.programs.snapshots.snapshots import FOLDER, Manifest
from isthmus.programs.snapshots.store import words
from isthmus.programs.snapshots.stored import StoredSnapshots
from isthmus.programs.snapshots.urls import Place
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import Lines

BOOKS: Final = "recorder.state"
FILES: Final = ("spec.json", "config.toml", "graph.json", "cluster.json", BOOKS)
LINES: Final = "snapshots.jsonl"
"""The fate of each snapshot to be brought, on the clock of the run: `stored` or `refused`."""
TERM: Final = Path(FOLDER, "term")
"""File in a run folder: the number of times that the run went on from a store, plus 1."""


class Brought(TypedDict):
    """The status of a store: URL, number of its newest snapshot, and why it lacks the next."""

    url: str
    number: int
    error: str | None


@final
class Storing:
    """Brings snapshots to a store, for the life `life` of the recorder of the run in `folder`."""

    def __init__(self, place: Place, folder: Path, disk: Disk, life: int) -> None:
        self.offers = Offers()
        self._place, self._folder, self._disk, self._life = place, folder, disk, life
        self._courier: Courier = ThreadCourier() if place.in_background else PiecewiseCourier()
        self._stored: StoredSnapshots | None = None
        self._lives: dict[tuple[str, int], int] = {}
        self._lines = Lines(folder / LINES, disk)

    def see(self, members: Mapping[tuple[str, int], int]) -> None:
        """Note the newest lives of hosts, by (role, slot)."""
        for replica, life in members.items():
            self._lives[replica] = max(life, self._lives.get(replica, 0))

    def step(self, newest: Manifest | None, now: int) -> None:
        """Continue the delivery under way, or begin that of the newest snapshot."""
        before = self.told()
        came = self._courier.poll()
        if came is not None:
            self.offers.ended(None if came.error is None else words(came.error), now)
        self.offers.looked(now)
        if (told := self.told()) != before:
            kind = "stored" if told["error"] is None else "refused"
            self._lines.append({"at": now, "kind": kind, **told, "bytes": came.bytes if came is not None else 0})
        if (manifest := self.offers.offered(newest, now)) is not None:
            lives = dict(self._lives)
            self._courier.begin(lambda: self._bring(manifest, lives, now))

    def close(self) -> None:
        """Close the file of lines."""
        self._lines.close()

    def told(self) -> Brought:
        """The status of the store."""
        return Brought(url=self._place.text, number=self.offers.stored, error=self.offers.error)

    def _bring(self, manifest: Manifest, lives: Mapping[tuple[str, int], int], at: int) -> Iterator[int]:
        """Runs in the background: it shares only immutable data with the firings."""
        if self._stored is None:
            store = self._place.open(self._disk)
            self._stored = StoredSnapshots(store, self._place.run, self._place.home, self._term(), self._life)
        files = self._folder / FOLDER
        yield from self._stored.writing(manifest, lambda file: self._disk.read(files / file), self._files, lives, at)

    def _term(self) -> int:
        try:
            return int(self._disk.read(self._folder / TERM))
        except FileNotFoundError:
            return 1

    def _files(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in FILES:
            try:
                found[name] = self._disk.read(self._folder / name)
            except FileNotFoundError:
                continue
        return found
