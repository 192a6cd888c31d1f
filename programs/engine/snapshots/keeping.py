"""When snapshots of a run are taken, and how they come into a store and back.

Decides when a snapshot is taken (at intervals in which something is new, once the existing ones are known), which one
is brought to the store next, and which parts of a fetched one may become files. The hold nodes decide its contents. No
node waits for it, and a disk or store that refuses costs only that snapshot: the one before stays.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import msgspec

from isthmus.ops.exchange.messages import Brought, ShardState, WholeState
from isthmus.programs.engine.snapshots.moments import SUFFIX, MomentsEntry
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER, MANIFEST
from isthmus.programs.engine.snapshots.snapshots import Entry, Found, FragmentEntry, Manifest, Snapshots
from isthmus.programs.engine.snapshots.stored import (
    SnapshotHead,
    StoredSnapshots,
    StorePlace,
    StoreTerm,
    claim,
    home_text,
    newest,
    newest_claim,
    words,
)
from isthmus.runtime.errors import ConfigError, shortened
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import Lines, write_bytes
from isthmus.runtime.system.refusals import remedy


class CourierResult(NamedTuple):
    """The result of some work: how many bytes were put, and the error that ended it, if any."""

    bytes: int
    error: OSError | None


@final
class Courier:
    """Does one piece of work at a time.

    The work is an iterator that is exhausted once it is done, and raises OSError if it cannot be. `in_background`, as
    on the real clock, a thread does it, which ends with the process, so that a store that is slow, or hangs, holds up
    only itself; under the virtual clock each `poll` does one piece of it, so that everything may die between any two.
    """

    def __init__(self, *, in_background: bool) -> None:
        self._in_background = in_background
        self._work: Iterator[int] | None = None
        self._bytes = 0
        self._results: list[CourierResult] = []

    def begin(self, work: Iterator[int]) -> None:
        """Begin with some; nothing else is under way."""
        self._work, self._bytes = work, 0
        if self._in_background:
            threading.Thread(target=self._do_all, name="snapshots", daemon=True).start()

    def poll(self) -> CourierResult | None:
        """The result, once; None while the work is in progress, and if none was begun."""
        if not self._in_background:
            self._do_piece()
        return self._results.pop() if self._results else None

    def _do_all(self) -> None:
        try:
            while self._work is not None:
                self._do_piece()
        except Exception as error:  # A third party's filesystem: any error is reported, and tried again.
            self._end(OSError(f"{type(error).__name__}: {error}"))

    def _do_piece(self) -> None:
        if self._work is None:
            return
        try:
            self._bytes += next(self._work)
        except StopIteration:
            self._end(None)
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError | None) -> None:
        self._work = None  # Before the result, after which the next may begin.
        self._results.append(CourierResult(self._bytes, error))


PAUSE_NS: Final = 1_000_000_000
PAUSE_NS_MAX: Final = 60_000_000_000
SLOW_NS: Final = 120_000_000_000
"""Time without an answer after which a status reports it: an object of a large model takes minutes, and a store that
hangs for ever looks the same."""


@final
@dataclass(slots=True)
class Offers:
    """The state of a store.

    `under_way`: the snapshot that is being brought; `stored`: the number of the newest in the store, 0 if none is
    known; `error`: why the last one was refused, None if it was not.

    One transfer is in progress at a time; its files stay on the disk meanwhile, and once it is there, or was refused,
    the newest is next. So a slow store gets fewer snapshots and no older ones, the disk keeps at most one more than it
    would, and no queue grows. After a refusal there is a pause, which doubles up to a minute.
    """

    under_way: Manifest | None = field(default=None, init=False)
    stored: int = field(default=0, init=False)
    error: str | None = field(default=None, init=False)
    _begun_at: int = field(default=0, init=False)
    _next_at: int = field(default=0, init=False)
    _pause: int = field(default=PAUSE_NS, init=False)

    def offered(self, newest: Manifest | None, now: int) -> Manifest | None:
        """The snapshot to bring now, if any."""
        if newest is None or self.under_way is not None or now < self._next_at or newest.number == self.stored:
            return None
        self.under_way, self._begun_at = newest, now
        return newest

    def ended(self, error: str | None, now: int) -> None:
        """The snapshot under way was stored, or refused with `error`."""
        assert self.under_way is not None
        if error is None:
            self.stored, self._pause = self.under_way.number, PAUSE_NS
        else:
            self._next_at, self._pause = now + self._pause, min(2 * self._pause, PAUSE_NS_MAX)
        self.under_way, self.error = None, error

    def looked(self, now: int) -> None:
        """Note an error if the snapshot under way has taken SLOW_NS."""
        if self.under_way is not None and now - self._begun_at >= SLOW_NS:
            self.error = self.error or f"no answer for {SLOW_NS // 1_000_000_000} s"


BOOKS: Final = "recorder.state"
FILES: Final = ("spec.json", "config.toml", "graph.json", "cluster.json", "sources.json", BOOKS)
LINES: Final = "snapshots.jsonl"
"""The fate of each snapshot to be brought, on the clock of the run: `stored` or `refused`."""
TERM: Final = Path(FOLDER, "term")
"""File in a run folder: the term, NUMBER-CLAIM, that a resume from a store has begun."""


@final
class Storing:
    """Brings snapshots to a store, for the life `life` of the recorder of the run in `folder`.

    It reads the files of a snapshot one at a time, so it has at most one fragment in memory. Spec, configuration and
    the recorder's knowledge are read when the model is there: books only grow, and may know more than a snapshot, never
    less.
    """

    def __init__(self, place: StorePlace, folder: Path, disk: Disk, life: int) -> None:
        self.offers = Offers()
        self._place, self._folder, self._disk, self._life = place, folder, disk, life
        self._courier = Courier(in_background=place.in_background)
        self._stored: StoredSnapshots | None = None
        self._lives: dict[tuple[str, int], int] = {}
        self._lines = Lines(folder / LINES, disk)

    def step(self, newest: Manifest | None, members: Iterable[Any], now: int) -> None:
        """Continue the delivery under way, or begin that of the newest snapshot; `members` are the live hosts."""
        for each in members:
            replica = each.replica.role, each.replica.slot
            self._lives[replica] = max(each.incarnation, self._lives.get(replica, 0))
        before = self.status()
        came = self._courier.poll()
        if came is not None:
            self.offers.ended(None if came.error is None else words(came.error), now)
        self.offers.looked(now)
        if (status := self.status()) != before:
            kind = "stored" if status["error"] is None else "refused"
            self._lines.append({"at": now, "kind": kind, **status, "bytes": came.bytes if came is not None else 0})
        if (manifest := self.offers.offered(newest, now)) is not None:
            self._courier.begin(self._bring(manifest, dict(self._lives), now))

    def close(self) -> None:
        """Close the file of lines."""
        self._lines.close()

    def status(self) -> Brought:
        """The status of the store."""
        return Brought(url=self._place.text, number=self.offers.stored, error=self.offers.error)

    def _bring(self, manifest: Manifest, lives: Mapping[tuple[str, int], int], at: int) -> Iterator[int]:
        """Runs in the background: it shares only immutable data with the firings."""
        if self._stored is None:
            store = self._place.open(self._disk)
            self._stored = StoredSnapshots(store, self._place.run, self._place.home, self._term(), self._life)
        files = self._folder / FOLDER
        yield from self._stored.writing(manifest, lambda file: self._disk.read(files / file), self._files, lives, at)

    def _term(self) -> StoreTerm:
        try:
            return StoreTerm.parse(self._disk.read(self._folder / TERM).decode().strip())
        except FileNotFoundError:
            return StoreTerm()

    def _files(self) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for name in FILES:
            with suppress(FileNotFoundError):
                contents[name] = self._disk.read(self._folder / name)
        return contents


class FetchedSnapshot(NamedTuple):
    """The head of a fetched snapshot, the faults of newer ones, and the newest `term` of the run that the store knows.

    `homes` (MACHINE:PATH) are the folder that wrote the snapshot, and the one in which the run was resumed since.
    """

    head: SnapshotHead
    faults: list[str]
    term: StoreTerm
    homes: tuple[str, ...]


def fetch(place: StorePlace, folder: Path, disk: Disk, doing: str) -> FetchedSnapshot:
    """Write the newest complete snapshot at a place into an empty folder.

    ConfigError if there is none, or the place or the disk refuses.

    Someone with access to the store wrote it, so names are compared with those that a run has, sizes and digests with
    the head, and everything stays in a folder of its own until it is known to be whole.
    """

    def write_file(head: SnapshotHead, entry: Entry, data: bytes) -> None:
        write_bytes(folder / FOLDER / entry.file, data, disk)

    try:
        store = place.open(disk)
        former = newest_claim(store)
        snapshot = newest(store, write_file)
        if snapshot is not None:
            _write(snapshot.head, folder, disk)
    except OSError as error:
        do = "Look at its name, at the credentials of this machine, and at the room on its disk."
        raise ConfigError(doing, f"a place that can be read, {place.text}", words(error), remedy(error, do)) from None
    except ValueError as error:
        do = "Look for a copy of it, or start the run again."
        raise ConfigError(doing, f"a snapshot in {place.text} that is whole", shortened(str(error), 1000), do) from None
    if snapshot is None:
        do = "Look at its name: it is what run.snapshots was, to the letter."
        raise ConfigError(doing, f"a snapshot in {place.text}", "none", do)
    head = snapshot.head
    if former is None or former.term <= head.term:
        return FetchedSnapshot(head, snapshot.faults, head.term, (head.home,))
    return FetchedSnapshot(head, snapshot.faults, former.term, (head.home, former.home))


def _write(head: SnapshotHead, folder: Path, disk: Disk) -> None:
    for name in FILES:
        if name in head.files:
            write_bytes(folder / name, head.files[name], disk)
    named = {entry.file for entry in head.manifest.entries}
    for name in disk.sizes(folder / FOLDER):
        if name.endswith((".safetensors", SUFFIX)) and name not in named:  # Of a snapshot that proved incomplete.
            disk.remove(folder / FOLDER / name)
    write_bytes(folder / FOLDER / MANIFEST, msgspec.json.encode(head.manifest), disk)


def begin_term(place: StorePlace, snapshot: FetchedSnapshot, folder: Path, home: Path, disk: Disk, doing: str) -> None:
    """Claim the next term at the place of a fetched snapshot, for a run that goes on in the folder `home`, and write it
    into `folder`.

    ConfigError if another command resumes the run at this moment, or the place or the disk refuses.
    """
    try:
        term = claim(place.open(disk), snapshot.term, home_text(home), secrets.token_hex(4))
        write_bytes(folder / TERM, f"{term}\n".encode(), disk)
    except OSError as error:
        do = "Look for the run there; or type the command again, if there is none."
        raise ConfigError(
            doing, f"a run in {place.text} that nobody else resumes", words(error), remedy(error, do)
        ) from None


@final
class Keeper:
    """Keeps snapshots in the run folder `folder`, one every `seconds`, and at a `place`, if given.

    `sizes` are those of the fragments, in values.
    """

    def __init__(
        self, folder: Path, seconds: float, place: StorePlace | None, sizes: Sequence[int], context: Any
    ) -> None:
        self._context, self._every = context, round(seconds * 1e9)
        life = context.member.incarnation
        self._snapshots = Snapshots(folder / FOLDER, sizes, context.disk, life)
        self._storing = None if place is None else Storing(place, folder, context.disk, life)
        self._taken_at: int | None = None
        self.has_recalled = False
        """Whether the last snapshot has been read."""
        self._status: dict[str, Any] = {"number": 0, "taken_at": None, "faults": [], "error": None, "store": None}

    def recall(self, *, is_whole: bool = True) -> Found | None:
        """The last snapshot, on the first successful read; None before and after. Without contents, if it is not to be
        `is_whole`."""
        if self.has_recalled:
            return None
        try:
            snapshot = self._snapshots.read() if is_whole else self._snapshots.recall()
        except OSError as error:
            self._tell(error=words(error))
            return None
        self.has_recalled = True
        number = snapshot.manifest.number if snapshot.manifest is not None else 0
        self._tell(number=number, faults=snapshot.faults, error=None)
        return snapshot

    def is_due(self, now: int) -> bool:
        """Whether a snapshot is due."""
        return self.has_recalled and (self._taken_at is None or now - self._taken_at >= self._every)

    def write(
        self,
        held: Mapping[int, ShardState],
        states: Mapping[int, WholeState],
        now: int,
    ) -> None:
        """Take a snapshot of these items, if the last one has been read."""
        self._take(lambda: self._snapshots.write(held, states), now)

    def name(self, entries: Sequence[FragmentEntry], now: int, moments: Sequence[MomentsEntry] = ()) -> None:
        """Take a snapshot of what is on the disk, if the last one has been read."""
        self._take(lambda: self._snapshots.name(entries, moments), now)

    def refused(self, error: OSError) -> None:
        """The disk did not take a part of the next snapshot."""
        self._tell(error=words(error))

    def put_off(self, now: int) -> None:
        """Take none now, but when the next one is due."""
        self._taken_at = now

    def is_still_writer(self, now: int) -> bool:
        """Whether no later life takes the snapshots; if one does, none is taken now."""
        try:
            self._snapshots.check_life()
        except OSError as error:
            self._tell(error=words(error))
            self._taken_at = now
            return False
        return True

    def note(self, entry: FragmentEntry) -> None:
        """A file is there, for the next snapshot, or for none."""
        self._snapshots.note(entry)

    def item(self, entry: FragmentEntry) -> ShardState:
        """The state of an entry; ValueError where its file is not what was written, OSError of the disk."""
        return self._snapshots.item(entry)

    @property
    def has_taken(self) -> bool:
        """Whether there is a snapshot."""
        return self._snapshots.newest is not None

    def _take(self, write: Callable[[], Manifest], now: int) -> None:
        if not self.has_recalled:
            return
        self._taken_at = now
        try:
            self._tell(number=write().number, error=None, taken_at=now)
        except OSError as error:
            self._tell(error=words(error))

    def store(self, now: int) -> None:
        """Have the newest snapshot brought to the store, if there is one."""
        storing = self._storing
        if storing is None or not self.has_recalled:
            return
        storing.step(self._snapshots.newest, self._context.members(), now)
        self._snapshots.pin(storing.offers.under_way)
        if (status := storing.status()) != self._status["store"]:
            self._tell(store=status)

    def of_disk(self) -> dict[str, Any]:
        """The fields of `Held` about disk and store, except `totals`."""
        faults = {name: self._status[name] for name in ("faults", "error", "store")}
        return {"saved": self._snapshots.versions(), **faults}

    def close(self) -> None:
        """Close the store."""
        if self._storing is not None:
            self._storing.close()

    def _tell(self, **news: Any) -> None:
        self._status = {**self._status, **news}
        self._context.publish(self._status)
