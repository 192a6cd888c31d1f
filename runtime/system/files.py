"""Files on a disk that may be full or broken for a while: growing ones, whole ones, and logs of other processes.

A file that grows (`Growing`, `Lines`) may be late or lose pieces, and never raises for it. A file that is written whole
is durable, name and all, when the call returns; if that fails, the call raises OSError, and the file is as it was.
Everything here may block, and is called from threads that may. What is in a file, and which files a run has, does not
come in.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, final

from isthmus.runtime.system.disk import DISK, NEW, Disk, File, open_regular, opened_at_end
from isthmus.runtime.system.disk import beside as beside_of


def is_text(name: str | Path) -> bool:
    """Whether a name is Unicode text, and not bytes of another encoding: files that hold it are UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def user_folder(variable: str, below: str) -> Path | None:
    """The folder that a variable (of the XDG base directories) names, or `below` the home of this user; None where the
    user has no home: no HOME, and no entry in the password database, as in some containers."""
    named, home = os.environ.get(variable), os.path.expanduser("~")
    if named:
        return Path(named)
    return None if home == "~" else Path(home) / below


def cache_path(name: str) -> Path | None:
    """Where the folder `name` of isthmus in the user's cache is, or would be; None where the user has no home."""
    base = user_folder("XDG_CACHE_HOME", ".cache")
    return None if base is None or not is_text(base) else base / "isthmus" / name


def cache_folder(name: str) -> Path | None:
    """The folder `name` of isthmus in the user's cache, which need not exist yet; None if it cannot be written to."""
    folder = cache_path(name)
    return folder if folder is not None and _is_writable(folder) else None


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or the one to make it in, can be written to: jax would warn at each compilation."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


WAITING_BYTES_MAX: Final = 1 << 20
"""Bytes that may wait for a disk, for each file: some thousands of lines, or some seconds of a tape."""


@final
class Growing:
    """The file at `path`. Its pieces end in `mark`; beyond `bytes_max` it is renamed once, to NAME.1, and begun anew.

    `written` and `lost` count pieces, `torn` those that an earlier process has left unfinished (at most one); `error`
    is why the disk does not accept the waiting pieces, None where it does; `lost_to` why the last piece was lost.

    Pieces that the disk does not accept wait in memory, within a bound; those that find no room there are lost, and
    counted, so that no disk ever stops the writer. A piece of which only a part could be written is continued where it
    ended; only the end of the process in between tears it. Where pieces end in a mark, opening the file writes the mark
    first, so that a torn piece never spoils those after it.
    """

    def __init__(self, path: Path, disk: Disk = DISK, *, mark: bytes = b"", bytes_max: int | None = None) -> None:
        self.written = self.lost = self.torn = 0
        self.error: str | None = None
        self.lost_to: str | None = None
        self._path, self._disk, self._mark, self._bytes_max = path, disk, mark, bytes_max
        self._file: File | None = None
        self._size = 0
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = self._begun = 0
        self.flush()

    @property
    def waiting(self) -> int:
        """Pieces that wait for the disk."""
        return len(self._pieces)

    def append(self, piece: bytes) -> None:
        """Add a piece, now or once the disk accepts it; one that finds no room to wait is lost."""
        if self._pieces and self._waiting_bytes + len(piece) > WAITING_BYTES_MAX and not self.flush():
            self.lost += 1
            self.lost_to = self.error
            return
        self._pieces.append(piece)
        self._waiting_bytes += len(piece)
        self.flush()

    def flush(self) -> bool:
        """Try to write the waiting pieces; returns whether none are left."""
        try:
            if self._file is None:
                self._file = self._open()
            while self._pieces:
                self._write(self._file)
            if self._bytes_max is not None and self._size > self._bytes_max:
                self._rotate(self._file)
        except OSError as error:
            self.error = error.strerror or str(error)
            return not self._pieces
        self.error = None
        return True

    def close(self) -> None:
        """Flush once more, and close the file; pieces that still wait are lost."""
        if not self.flush():
            self.lost += len(self._pieces)
            self.lost_to = self.error
            self._pieces.clear()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _open(self) -> File:
        file = self._disk.append(self._path)
        try:
            self._size = file.size
            if self._mark and not self._mark.endswith(file.last()):
                self._size += file.write(self._mark)
                self.torn += 1
        except OSError:
            file.close()
            raise
        return file

    def _write(self, file: File) -> None:
        """Write one piece, or as much of it as there is room for."""
        piece = self._pieces[0]
        count = file.write(piece[self._begun :] if self._begun else piece)
        self._size += count
        self._begun += count
        if self._begun == len(piece):
            self._pieces.popleft()
            self._waiting_bytes -= len(piece)
            self._begun = 0
            self.written += 1

    def _rotate(self, file: File) -> None:
        """Continue in a new file; in this one, as long as the disk refuses to rename it."""
        self._disk.rename(self._path, self._path.with_name(self._path.name + ".1"))
        file.close()
        self._file = None
        self._file = self._open()


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
        file = self._growing
        names = ("written", "waiting", "lost", "torn")
        return {**{name: getattr(file, name) for name in names}, "error": file.error or file.lost_to}

    def close(self) -> None:
        """Close the file; lines that the disk does not accept now are lost."""
        self._growing.close()


@final
class WholeFile:
    """A file that is written piece by piece beside its name, and there once it is `done`: whole, or as it was before.

    OSError, from any method, leaves nothing of it.
    """

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self._path, self._disk = path, disk
        self._beside = disk.beside(path)
        self._file: File | None = None
        self._is_done = False
        self._attempt(self._create)

    def write(self, data: bytes) -> None:
        """Add a piece."""
        self._attempt(lambda: _write_all(self._opened, data))

    def done(self) -> None:
        """Have the file be there; when this returns, it is durable."""
        self._attempt(self._finish)
        self._disk.sync_folder(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Leave nothing of it, unless it is done."""
        if self._is_done:
            return
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            self._disk.remove(self._beside)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.drop()
            if isinstance(error, OSError) and error.errno is not None:
                error.filename = str(self._path)  # Of two names the one that means something to its reader.
            raise

    @property
    def _opened(self) -> File:
        assert self._file is not None, "it is open from its creation until it is done or dropped"
        return self._file

    def _create(self) -> None:
        self._file = self._disk.create(self._beside)

    def _finish(self) -> None:
        self._opened.sync()
        self._close()
        self._disk.rename(self._beside, self._path)
        self._is_done = True

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def write_bytes(path: Path, data: bytes, disk: Disk = DISK) -> None:
    """Write a file so that it is whole, or as it was before, whatever happens meanwhile; OSError if that fails.

    When this returns the file is durable.
    """
    file = WholeFile(path, disk)
    file.write(data)
    file.done()


def put_bytes(path: Path, data: bytes, *, mode: int = 0o666, is_durable: bool = False, before: str = ".") -> None:
    """Write a file so that it is whole, or as it was before; OSError if that fails. Without waiting for the disk, if it
    need not be durable. The name under which it is written first begins with `before`."""
    beside = beside_of(path, before)
    try:
        with open(os.open(beside, os.O_WRONLY | NEW, mode), "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
        raise


def read_bytes(path: Path) -> bytes:
    """The contents of a regular file; IrregularFileError, at once, for anything else, OSError if it cannot be read."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a regular file of UTF-8, as `read_bytes`; ValueError for other bytes."""
    with io.TextIOWrapper(open_regular(path), "utf-8", errors) as file:
        return file.read()


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
    import numpy as np
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in tensors.items()})


def tensors_head(shapes: Mapping[str, Sequence[int]]) -> tuple[bytes, list[str]]:
    """The head of a safetensors file of float32 tensors of these shapes, and the order of the tensors behind it."""
    order, entries, at = sorted(shapes), {}, 0
    for name in order:
        end = at + 4 * math.prod(shapes[name])
        entries[name] = {"dtype": "F32", "shape": [*shapes[name]], "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def tensor_place(path: Path, name: str, disk: Disk = DISK) -> tuple[int, int]:
    """The bytes of one tensor in a safetensors file, from the first to behind the last; OSError where it has none."""
    try:
        size = int.from_bytes(disk.read_part(path, 0, 8), "little")
        begin, end = json.loads(disk.read_part(path, 8, size))[name]["data_offsets"]
    except (ValueError, KeyError, TypeError):
        raise OSError(f"{path.name} has no tensor {name!r}") from None
    return 8 + size + begin, 8 + size + end


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened_at_end(path) as file:
        file.write(data)


def _write_all(file: File, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = file.write(bytes(view) if len(view) < len(data) else data)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[count:]


LOG_BYTES: Final = 16 << 20
"""A log is cut where it is longer: it takes twice that of disk, and what its writer adds between two looks."""
LOOK_SECONDS: Final = 10.0


def former(log: Path) -> Path:
    """Where the part of a log lies that was cut off last."""
    return log.with_name(f"{log.name}.1")


def cut(folder: Path, bytes_max: int = LOG_BYTES) -> None:
    """Cut the logs of a folder that are too long; a disk that takes no copy costs that, and the log is cut.

    The process that writes a log has it open for appending, and continues at its end after the cut. So it is cut in
    place: its end moves into `NAME.log.1`, which replaces the one before. What a process writes between the two is
    lost.
    """
    for log in sorted(folder.glob("*.log")):
        with suppress(OSError), open_regular(log, "r+b") as file:
            size = file.seek(0, 2)
            if size <= bytes_max:
                continue
            file.seek(size - bytes_max)
            with suppress(OSError):
                put_bytes(former(log), file.read(bytes_max))
            file.truncate(0)


def read(log: Path) -> str:
    """The text of a log, with what was cut off last; OSError if it cannot be read."""
    with suppress(FileNotFoundError):
        return read_text(former(log), "replace") + read_text(log, "replace")
    return read_text(log, "replace")
