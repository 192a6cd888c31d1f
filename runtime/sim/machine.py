"""The parts of a simulated machine: its disk, the clocks of its hosts, and the file of its ledger.

They replace the kernel, the loop and the files, with the same guarantees, and fail as the faults of the universe say.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.daemon.ledger import Kernel, Ledger
from isthmus.runtime.host.virtual_time import VirtualClock

MEMORY: Final = Path("/memory")
"""What lies here, on each machine, a power failure takes along."""
Change = tuple[tuple[Path, "Content | None"], ...]
"""Names that change at once, each with its new content."""


@dataclass(slots=True)
class Content:
    """The data of a file, and how much of it is synced."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0


@dataclass(slots=True)
class Trouble:
    """A fault of a disk.

    One that is broken refuses a `share` of all operations; one that is full has `room` for so many bytes more (None:
    unlimited). `struck` is called each time it refuses something.
    """

    struck: Callable[[], None]
    share: float = 0.0
    room: int | None = None


@dataclass(slots=True)
class Ambush:
    """Strikes at the first `operation` on a file whose name matches `name`, or, with `then`, at the next one after it.

    `struck` is called once.
    """

    operation: str
    name: str
    struck: Callable[[], None]
    then: str = ""

    def is_sprung(self, operation: str, path: Path) -> bool:
        """Whether it strikes at this operation."""
        if self.operation != operation or not fnmatchcase(path.name, self.name):
            return False
        if not self.then:
            return True
        self.operation, self.name, self.then = self.then, "*", ""
        return False


class Writing(NamedTuple):
    """The bytes that a process has written to a file since it opened it."""

    writer: str
    data: bytearray


@final
class SimulatedDisk:
    """The files of one machine.

    `troubles` and `ambushes` are by the number of the fault that made each; a disk that `is_cut` refuses everything,
    for the instant in which its machine is about to lose its processes; `written` has, by path, what every process has
    written to it since it opened the file; `failures` counts power failures, `refusals` the refused operations.

    It decides, from its seed, what a power failure leaves: of each file all that was synced, and of the rest a
    beginning that ends at any byte, independent of other files; of the names of each folder those that were synced, and
    of the changes since then the first few, in their order (a renaming is one change). Folders stay. Troubles refuse
    operations, and report the first refusal. An ambush waits for one operation on one kind of file, which fails, as do
    all after it until the ambush is cleared.
    """

    def __init__(self, seed: str) -> None:
        self.troubles: dict[int, Trouble] = {}
        self.ambushes: dict[int, Ambush] = {}
        self.is_cut = False
        self.written: dict[Path, list[Writing]] = {}
        self.failures = self.refusals = 0
        self._rng = random.Random(seed)
        self._names: dict[Path, Content] = {}
        self._kept: dict[Path, Content] = {}
        self._changes: dict[Path, list[Change]] = {}

    def files(self) -> dict[Path, bytes]:
        """All present files, by path, in order."""
        return {path: bytes(content.data) for path, content in sorted(self._names.items())}

    def take_over(self, former: SimulatedDisk) -> None:
        """Copy all files of another disk, synced, over those of the same names, and the record of writes to them; none
        that lies in memory."""
        for path, data in former.files().items():
            if path.is_relative_to(MEMORY):
                continue
            self._names[path] = self._kept[path] = Content(bytearray(data), len(data))
        for path, written in former.written.items():
            self.written[path] = [*written, *self.written.get(path, [])]

    def sizes(self, folder: Path) -> dict[str, int]:
        """The names and bytes of the files in a folder, sorted."""
        return {path.name: len(each.data) for path, each in sorted(self._names.items()) if path.parent == folder}

    def copy_to(self, folder: Path) -> None:
        """Write the files in `folder` to the real folder of that name."""
        for path, data in self.files().items():
            if path.is_relative_to(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def lose_power(self) -> None:
        """Keep what was synced, and of the rest what the seed decides; nothing of what lies in memory."""
        self.failures += 1
        self._changes = {folder: each for folder, each in self._changes.items() if not folder.is_relative_to(MEMORY)}
        for folder in sorted(self._changes):
            changes = self._changes[folder]
            for change in changes[: self._rng.randint(0, len(changes))]:
                self._apply(self._kept, change)
        self._changes.clear()
        for _, content in sorted(self._kept.items()):
            size = len(content.data)
            content.synced = self._rng.choice((content.synced, size, self._rng.randint(content.synced, size)))
            del content.data[content.synced :]
        self._names = dict(self._kept)

    # -- for mounts ----------------------------------------------------------------------------------------------------

    def content(self, path: Path) -> Content | None:
        """The content of the file with a name; None if there is none."""
        return self._names.get(path)

    def change(self, *names: tuple[Path, Content | None]) -> None:
        """Change names, at once, but not durably."""
        self._changes.setdefault(names[0][0].parent, []).append(names)
        self._apply(self._names, names)

    def keep_names(self, folder: Path) -> None:
        """Make the changes of names in a folder durable."""
        for change in self._changes.pop(folder, []):
            self._apply(self._kept, change)

    def meet(self, operation: str, path: Path) -> None:
        """OSError for an operation that springs an ambush, and for all after it."""
        sprung = [number for number, each in self.ambushes.items() if each.is_sprung(operation, path)]
        for number in sprung[: not self.is_cut]:
            self.is_cut = True
            self.ambushes.pop(number).struck()
        if self.is_cut:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def ask(self, *, size: int = 0, makes: bool = False) -> int:
        """The number of `size` bytes for which there is room; OSError for a refused operation.

        A full disk refuses one that `makes` a file, for example.
        """
        for trouble in self.troubles.values():
            if trouble.share and self._rng.random() < trouble.share:
                trouble.struck()
                self.refusals += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        for trouble in self.troubles.values():
            if trouble.room is not None and (size > trouble.room or (makes and not trouble.room)):
                size, trouble.room = trouble.room, 0
                trouble.struck()
                if not size:
                    self.refusals += 1
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            elif trouble.room is not None:
                trouble.room -= size
        return size

    @staticmethod
    def _apply(names: dict[Path, Content], change: Change) -> None:
        for path, content in change:
            if content is None:
                names.pop(path, None)
            else:
                names[path] = content


@final
class SimulatedFile:
    """A file that one process has opened."""

    def __init__(self, mount: Mount, path: Path, content: Content, written: bytearray) -> None:
        self._mount, self._path, self._content, self._written = mount, path, content, written

    @property
    def size(self) -> int:
        """Bytes in it now."""
        return len(self._content.data)

    def last(self) -> bytes:
        return bytes(self._content.data[-1:])

    def write(self, data: bytes) -> int:
        self._mount.disk().meet("write", self._path)
        count = self._mount.disk().ask(size=len(data))
        self._content.data += data[:count]
        self._written += data[:count]
        return count

    def sync(self) -> None:
        self._mount.disk().meet("sync", self._path)
        self._mount.disk().ask()
        self._content.synced = len(self._content.data)

    def close(self) -> None:
        """Does nothing."""


@final
class Mount:
    """One process's view of a disk, as `writer`, until `is_gone`."""

    def __init__(self, disk: SimulatedDisk, writer: str = "") -> None:
        self.is_gone = False
        self._writer = writer
        self._disk = disk

    def disk(self) -> SimulatedDisk:
        """The disk; OSError once the process is gone."""
        if self.is_gone:
            raise OSError(errno.ESHUTDOWN, "the process is gone")
        return self._disk

    def append(self, path: Path) -> SimulatedFile:
        content = self.disk().content(path)
        self._disk.ask(makes=content is None)
        if content is None:
            content = Content()
            self._disk.change((path, content))
        return self._open(path, content)

    def beside(self, path: Path) -> Path:
        """Always the same name: nobody else is here, and what a seed decides of files follows their order."""
        return path.with_name(f".{path.name}.beside")

    def create(self, path: Path) -> SimulatedFile:
        self.disk().meet("create", path)
        content = self.disk().content(path)
        self._disk.ask(makes=content is None)
        if content is None:
            content = Content()
            self._disk.change((path, content))
        content.data.clear()
        content.synced = 0
        return self._open(path, content)

    def rename(self, path: Path, target: Path) -> None:
        self.disk().meet("rename", path)
        self.disk().ask()
        content = self._disk.content(path)
        if content is None or path.parent != target.parent:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._disk.change((path, None), (target, content))

    def remove(self, path: Path) -> None:
        self.disk().meet("remove", path)
        self.disk().ask()
        if self._disk.content(path) is not None:
            self._disk.change((path, None))

    def read(self, path: Path) -> bytes:
        self.disk().ask()
        content = self._disk.content(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return bytes(content.data)

    def read_part(self, path: Path, at: int, size: int) -> bytes:
        return self.read(path)[at : at + size]

    def sizes(self, path: Path) -> dict[str, int]:
        self.disk().ask()
        return self._disk.sizes(path)

    def sync_folder(self, path: Path) -> None:
        self.disk().meet("sync_folder", path)
        self.disk().ask()
        self._disk.keep_names(path)

    def memory_of(self, folder: Path, size: int) -> Path | None:
        return MEMORY / folder.name

    def write_beside(self, work: Callable[[], None]) -> NothingWritten:
        """Writing takes no time here."""
        work()
        return NothingWritten()

    def _open(self, path: Path, content: Content) -> SimulatedFile:
        written = bytearray()
        self._disk.written.setdefault(path, []).append(Writing(self._writer, written))
        return SimulatedFile(self, path, content, written)


@final
class NothingWritten:
    """What is written beside its caller, and has been."""

    def is_alive(self) -> bool:
        """No."""
        return False

    def join(self) -> None:
        """Does nothing."""


MILLION: Final = 1_000_000


class HostClock:
    """Shows the time of the universe, plus its leaps, at a rate of its own: `drift` parts per million too fast."""

    def __init__(self, universe: VirtualClock) -> None:
        self.is_paused = self.is_dead = False
        self._universe = universe
        self._true, self._shown = universe.now(), universe.now()
        self._rate = MILLION
        self._waiting: deque[Callable[[], None]] = deque()

    def now(self) -> Instant:
        """The time that this clock shows."""
        return Instant(self._shown + (self._universe.now() - self._true) * self._rate // MILLION)

    def skew(self, leap: Duration, drift: int) -> None:
        """Leap forward, and run at another rate from now on; pending calls keep their instants, like kernel timers."""
        self._shown, self._true = Instant(self.now() + leap), self._universe.now()
        self._rate = MILLION + drift

    def queued(self) -> Duration:
        """Nobody waits for a core in virtual time."""
        return Duration(0)

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once this clock shows `at`; the result cancels the call."""
        call = _HostClockCall(self, callback, at)
        call.wait()
        return call.cancel

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` at this instant, after the calls that are due already."""
        self.call_at(self.now(), callback)

    def post(self, callback: Callable[[], None]) -> None:
        """There is only one thread: the same as `call_soon`."""
        self.call_at(self.now(), callback)

    def run(self, callback: Callable[[], None]) -> None:
        """Run `callback` in this process: now, when it resumes, or never."""
        if self.is_dead:
            return
        if self.is_paused:
            self._waiting.append(callback)
        else:
            callback()

    def resume(self) -> None:
        """Resume: waiting calls happen now."""
        self.is_paused = False
        while self._waiting and not (self.is_dead or self.is_paused):
            self.run(self._waiting.popleft())

    def wait_until(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Schedule a call of the universe for when this clock will show `at`, at its present rate."""
        ahead = max(0, at - self.now())
        return self._universe.call_at(Instant(self._universe.now() - (-ahead * MILLION // self._rate)), callback)


class _HostClockCall:
    """A scheduled call, unless it was cancelled."""

    __slots__ = ("_callback", "_cancel", "_clock", "at")

    def __init__(self, clock: HostClock, callback: Callable[[], None], at: Instant) -> None:
        self._clock, self._callback, self.at = clock, callback, at
        self._cancel: Callable[[], None] | None = None

    def wait(self) -> None:
        """Schedule the call for its instant."""
        self._cancel = self._clock.wait_until(self.at, self._come)

    def cancel(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _come(self) -> None:
        self._clock.run(self._call)

    def _call(self) -> None:
        if self._cancel is None:
            return
        if self._clock.now() < self.at:  # The clock runs slower than it did.
            self.wait()
        else:
            self._cancel = None
            self._callback()


RECORD_BYTES: Final = 64
"""Approximate bytes of a write, on a disk that fills up."""
WRITES: Final = ("begin", "insert", "update", "delete")
_numbers: Final = itertools.count()


class LedgerDatabase(sqlite3.Connection):
    """A database in memory whose writes need the disk of `mount`."""

    mount: Mount | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self.mount is not None and sql.startswith(WRITES):
            try:
                self.mount.disk().ask(size=RECORD_BYTES)
            except OSError as error:
                raise sqlite3.OperationalError(str(error)) from None
        return super().execute(sql, parameters)


class LedgerFile:
    """The file of a machine's ledger: synced with every transaction, so that a power failure leaves it as it is."""

    def __init__(self) -> None:
        self._has_been_opened = False
        self._renew()

    def open(self, mount: Mount | None, kernel: Kernel) -> Ledger:
        """The ledger of the machine's next daemon."""
        self.database.mount = mount
        was_there, self._has_been_opened = self._has_been_opened, True
        return Ledger(Path("ledger"), was_there=was_there, connect=self._connected, kernel=kernel)

    def forget(self) -> None:
        """The run has left this machine."""
        self._has_been_opened = False
        self.lose()

    def lose(self) -> None:
        """The file is missing, or torn."""
        self.close()
        self._renew()

    def copy(self, former: LedgerFile) -> None:
        """Become a copy of another machine's."""
        self.lose()
        former.database.backup(self.database)
        self._has_been_opened = True

    def take_over(self, former: LedgerFile, kernel: Kernel) -> None:
        """Become the ledger of a new home, from that of the home before."""
        here = self._name if self._has_been_opened else None
        lives = self.database  # Open until they are copied: it is in memory.
        self._renew()
        former.database.backup(self.database)
        self.open(None, kernel).move(here)
        lives.close()

    def close(self) -> None:
        """Drop it."""
        self.database.close()

    def _renew(self) -> None:
        self._name = f"file:isthmus-{next(_numbers)}?mode=memory&cache=shared"
        self.database = sqlite3.connect(self._name, uri=True, isolation_level=None, factory=LedgerDatabase)

    def _connected(self, path: Path, **options: Any) -> LedgerDatabase:
        return self.database
