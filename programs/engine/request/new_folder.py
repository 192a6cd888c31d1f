"""The folder that a run leaves behind: its choice, its creation, and its lock.

Choosing touches nothing, so that a request that turns out wrong leaves nothing behind. So two requests may choose one
folder; creating it decides between them. It is made under its lock (`RunLock`), and only where no run is; a folder
whose name was not requested gets the next number instead.

The recorder decides the files that are written into the folder during the run; none of them is read here.

Exclusive use of the folder is a lock on its file `run.lock`, which the kernel releases with the process that has it; on
a disk without locks a note stands in for it (`runtime.system.locks`).

The processes that carry a run out have the lock for as long as one of them lives: a machine's daemon, or the command
and its daemon, which inherits it; so no other command resumes a run between two daemons. The file names its last owner,
for people, and is never removed: a lock on a file that is gone keeps no process out.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from isthmus.programs import settings
from isthmus.programs.engine.results.run_files import OVER, SUMMARY
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import is_text
from isthmus.runtime.system.locks import NOTE_SUFFIX, FileLock, holder_of, is_locked
from isthmus.runtime.system.refusals import is_absent, reason, remedy

LOCK: Final = "run.lock"
_TRIES_MAX: Final = 10
_PAUSE_SECONDS: Final = 0.02
"""A process that only looks (`user_of`) has the lock for some microseconds."""


class InUseError(Exception):
    """A process that lives has this run folder."""


class LockError(ConfigError):
    """Whether another process has a run folder cannot be found out: the error is this process's, or its disk's."""

    def __init__(self, path: Path, error: OSError) -> None:
        expected, do = "to lock it", "Name a folder on another disk with --run-dir."
        super().__init__(f"Looking who has {path.parent}", expected, reason(error), remedy(error, do))


@final
class RunLock:
    """The lock on a folder, until it is closed, or this process ends, and every child that got its `file`."""

    def __init__(self, folder: Path) -> None:
        """Take it; InUseError if another process has it, LockError where that cannot be found out, FileNotFoundError if
        there is no such folder."""
        path = folder / LOCK
        try:
            self._file = _opened(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LockError(path, error) from None
        try:
            self._lock = self._taken(path)
        except BaseException:
            os.close(self._file)
            raise
        self.sign()

    def _taken(self, path: Path) -> FileLock:
        lock = FileLock(self._file, path)
        for tries in range(1, _TRIES_MAX + 1):
            try:
                if lock.take():
                    return lock
                if tries == _TRIES_MAX:
                    raise InUseError(f"a run that goes on there, of process {_said(self._file, path)}")
            except OSError as error:
                raise LockError(path, error) from None
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns, or raises")

    @classmethod
    def inherited(cls, file: int) -> Self:
        """The lock that the parent of this process has taken, by the descriptor that it passed on."""
        lock = cls.__new__(cls)
        lock._file, lock._lock = file, FileLock.inherited(file)
        os.set_inheritable(file, False)
        lock.sign()
        return lock

    @property
    def file(self) -> int:
        """The descriptor that a child inherits."""
        return self._file

    def sign(self) -> None:
        """Write the id of this process into the file, for people."""
        with suppress(OSError):  # A disk that takes nothing: the pid is missing, but the lock holds.
            self._lock.sign()
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._file != -1:
            self._lock.release()
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def user_of(folder: Path) -> str:
    """The id of the process that has a run folder; empty if none has. LockError where that cannot be found out."""
    path = folder / LOCK
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if is_absent(error):
            return ""
        raise LockError(path, error) from None
    try:
        return _said(file, path) if is_locked(file, path) else ""
    except OSError as error:
        raise LockError(path, error) from None
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    """The file, made if it is missing; read-only if the disk takes no writes."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _said(file: int, path: Path) -> str:
    """The pid of the process that has the lock; with its host, and how to end that, where it is on another one."""
    holder = holder_of(path)
    if holder is not None and not holder.is_here:
        note = path.with_name(path.name + NOTE_SUFFIX)
        return f"{holder.pid} on {holder.host} (this disk has no locks: if that has ended, remove {note})"
    return os.pread(file, 32, 0).decode("ascii", "replace").strip() or "of an unknown number"


RUNS: Final = Path("runs")
CONFIG: Final = "config.toml"
AT_END: Final = (SUMMARY, "report.html", "trace.json", OVER)
"""Files that are written when a run is over, or set aside."""
_SIGNS: Final = (
    CONFIG,
    "graph.json",
    "metrics.jsonl",
    SUMMARY,
    "tape",
    "snapshots",
    "trace.json",
    "report.html",
)
"""A folder with any of these is that of a run."""
UNWRITTEN: Final = 3
"""The exit status of a daemon whose run is over, if the disk does not even take that fact."""
_FREE: Final = "a folder without another run in it"
_DO: Final = "Name another folder with --run-dir."
_SAME_SECOND_MAX: Final = 1000
_NUMBERED: Final = re.compile(r"(?P<stem>.*-\d{8}-\d{6})(-\d+)?")


def choose(run_dir: str | Path | None, program: str, now: datetime, base: Path | None = None) -> Path:
    """The absolute path of the run folder: `run_dir`, or runs/<program>-<YYYYmmdd-HHMMSS> in `base`, which is the
    current folder by default.

    ConfigError if `run_dir` holds another run, is no folder, or cannot be written to.
    """
    if run_dir is None:
        first = (base or Path.cwd()) / RUNS / f"{program}-{now:%Y%m%d-%H%M%S}"
        path = next(path for path in _numbered(first) if not path.exists())
    else:
        path = Path(os.path.abspath(os.path.expanduser(run_dir)))
    if not is_text(path):
        raise ConfigError("Choosing the run folder", "a path in UTF-8", repr(str(path)), _DO)
    doing = f"Choosing the run folder {path}"
    if path.exists() and not path.is_dir():
        raise ConfigError(doing, "a folder, or nothing yet", "a file", _DO)
    _check_free(path, doing)
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        obstacle = f"{existing}, which is {'not writable' if existing.is_dir() else 'a file'}"
        raise ConfigError(doing, "a folder that can be written to", obstacle, _DO)
    return path


def _numbered(path: Path) -> Iterator[Path]:
    """The folders of one program and second, from this one on."""
    form = _NUMBERED.fullmatch(path.name)
    stem = path.name if form is None else form["stem"]
    yield path
    yield from (path.with_name(f"{stem}-{count}") for count in range(2, _SAME_SECOND_MAX))


def has_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return any((path / name).exists() for name in _SIGNS)


def _check_free(path: Path, doing: str) -> None:
    """ConfigError if a run is in a folder, or has been."""
    user = user_of(path)
    if user:
        raise ConfigError(doing, _FREE, f"a run that goes on there, of process {user}", _DO)
    _check_empty(path, doing)


def _check_empty(path: Path, doing: str) -> None:
    """ConfigError if a folder has files of a run."""
    signs = [name for name in _SIGNS if (path / name).exists()]
    if signs:
        raise ConfigError(doing, _FREE, f"{', '.join(signs)} of another run", _DO)


def create(path: Path, text: str, *, latest: Path | None = None, is_given: bool = True) -> Path:
    """Make the run folder with `text` as its config.toml; returns its path.

    runs/latest in the folder `latest`, if given, points to it. ConfigError if another run has it by now, or the disk
    does not take it.
    """
    folder = make(path, text, is_given=is_given)
    if latest is not None:
        point_latest_to(folder, latest)
    return folder


def make(path: Path, text: str, *, is_given: bool) -> Path:
    """Make a folder with `text` as its config.toml; returns its path.

    It is `path` if it `is_given`, else the first free one with the same program and second. Concurrent callers get
    different folders, or ConfigError.
    """
    for each in [path] if is_given else _numbered(path):
        doing = f"Making the run folder {each}"
        try:
            each.parent.mkdir(parents=True, exist_ok=True)
            each.mkdir()
        except FileExistsError:
            if not is_given:
                continue
        except OSError as error:
            raise _refused(each, error) from None
        try:
            with RunLock(each):
                _check_empty(each, doing)
                with prepared(each):
                    (each / CONFIG).write_text(text, encoding="utf-8")
        except InUseError as error:
            raise ConfigError(doing, _FREE, str(error), _DO) from None
        except OSError as error:
            raise _refused(each, error) from None
        return each
    raise ConfigError(f"Making the run folder {path}", f"at most {_SAME_SECOND_MAX} runs a second", "as many", _DO)


@contextmanager
def prepared(path: Path) -> Iterator[None]:
    """While the files of a run that is about to start are written into its folder: ConfigError if the disk refuses, and
    then no file of a run is left there."""
    try:
        yield
    except OSError as error:
        for name in (CONFIG, "graph.json", "spec.json"):
            with suppress(OSError):
                (path / name).unlink(missing_ok=True)
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> ConfigError:
    """The ConfigError for a disk that does not take the files of a run."""
    do = "Make room there, or choose another folder with --run-dir."
    return ConfigError(
        f"Preparing the run folder {path}", "a disk that takes its files", reason(error), remedy(error, do)
    )


def document(config: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of config.toml."""
    head = "# The whole configuration of this run. To start it again: isthmus train --config THIS_FILE\n\n"
    return head + settings.document(config)


def point_latest_to(path: Path, base: Path = Path()) -> None:
    """Let runs/latest in `base`, by default the current folder, point to a run folder.

    A link that cannot be made (a read-only current folder beside --run-dir) costs a convenience, not the run.
    """
    with suppress(OSError):
        _point_latest_to(path, base / RUNS)


def _point_latest_to(path: Path, runs: Path) -> None:
    runs.mkdir(exist_ok=True)
    link, fresh = runs / "latest", runs / f".latest-{secrets.token_hex(8)}"
    try:
        fresh.symlink_to(os.path.relpath(path, runs.resolve()), target_is_directory=True)
        os.replace(fresh, link)
    finally:
        fresh.unlink(missing_ok=True)
