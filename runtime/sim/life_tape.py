"""The tape of a simulated life: kept whole in memory, for inspection, and in files, as a real host writes it.

The files are on a disk of the machine that holds nothing else, and loses power with it. After any failure, each file
must be a beginning of its segment, whole up to a record; `check` tests that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Member
from isthmus.runtime.sim.machine.disk import Mount, SimulatedDisk
from isthmus.runtime.sim.world import SEGMENT_BYTES
from isthmus.runtime.tape.files import TapeFiles, named
from isthmus.runtime.tape.frames import frames
from isthmus.runtime.tape.writing import Piece, Tape

RUN: Final = Path("/run")
BYTES_MAX: Final = 1 << 40
"""More than any tape of a universe: all are kept to their end."""


@final
class LifeTape:
    """The tape of one life, on `disk`."""

    def __init__(self, member: Member, disk: SimulatedDisk) -> None:
        self.tape = Tape(SEGMENT_BYTES)
        self._name = f"{member.replica.role}-{member.replica.slot}-{member.incarnation}"
        self._disk, self._mount = disk, Mount(disk)
        self._files = TapeFiles.of_host(RUN, member, disk=self._mount, bytes_max=BYTES_MAX)
        self._segments: dict[int, bytes] = {}
        self._new: list[Piece] = []

    def flush(self) -> None:
        """Write new records to the files, as a host does twice a second."""
        self._files.write(self)

    def end(self) -> None:
        """The process is gone: unwritten records are lost."""
        self._mount.is_gone = True

    def news(self) -> list[Piece]:
        """Pieces of the tape since the last call."""
        self.take()
        news, self._new = self._new, []
        return news

    def check(self) -> int:
        """The number of bytes of the tape in files; InvariantError if these contain anything else."""
        self.take()
        files = sorted(
            (of[1], data)
            for path, data in self._disk.files().items()
            if (of := named(path.name)) and of[0] == self._name
        )
        for segment, (number, data) in enumerate(files, 1):
            found = frames(data)
            if not self._segments.get(segment, b"").startswith(data):
                raise InvariantError(f"{self._name}.{number}.tape has other bytes than segment {segment} of the tape")
            if found.rest and not found.is_unfinished:
                raise InvariantError(f"{self._name}.{number}.tape is not whole up to its last record: {found.rest}")
        return sum(len(data) for _, data in files)

    # -- source of the files -------------------------------------------------------------------------------------------

    def take(self) -> list[Piece]:
        pieces = self.tape.take()
        self._new += pieces
        for piece in pieces:
            self._segments[piece.segment] = self._segments.get(piece.segment, b"") + piece.data
        return pieces

    def renew(self) -> None:
        self.tape.renew()
