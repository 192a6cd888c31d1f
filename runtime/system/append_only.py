"""A file that only grows, by whole pieces, on a disk that may be full or broken for a while.

Pieces that the disk does not accept wait in memory, within a bound; those that find no room there are lost, and
counted. So no disk ever stops the writer. A piece of which only a part could be written is continued where it ended;
only the end of the process in between tears it. Where pieces end in a mark, opening such a file writes the mark first,
so that a torn piece never spoils those after it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from isthmus.runtime.system.disk import DISK, Disk, File

WAITING_BYTES_MAX: Final = 1 << 20
"""Bytes that may wait for a disk, for each file: some thousands of lines, or some seconds of a tape."""


@final
class Growing:
    """The file at `path`. Its pieces end in `mark`; beyond `bytes_max` it is renamed once, to NAME.1, and begun anew.

    `written` and `lost` count pieces, `torn` those that an earlier process has left unfinished (at most one); `error`
    is why the disk does not accept the waiting pieces, None where it does; `lost_to` why the last piece was lost.
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
