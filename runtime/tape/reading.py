"""The files of a tape, and their contents: segments, the records missing between them, and where the readable part
ends.

A file is FOLDER/NAME.NUMBER.tape, one for each segment. Numbers count up over all tapes of a *family* (the lives of one
host, the homes or the stations of one machine), which shares a bound: the oldest files are deleted. No disk ever stops
the writer (`TapeFiles`).

Bytes may come from anywhere: files that are no tape, or one of another version, are distinguished from damaged and from
unfinished ones. The caller decides what follows from that; this module knows no core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, final

import msgspec

from isthmus.runtime.ids import Member
from isthmus.runtime.system.disk import DISK, Disk
from isthmus.runtime.system.files import Growing
from isthmus.runtime.tape.writing import MARK, TAPE_BYTES, VERSION, Opening, Piece, frames

FOLDER: Final = "tape"
SEGMENTS: Final = 8
"""Segments within the bound: of a run that has reached it, seven eighths are kept."""
_NAME: Final = re.compile(r"(.+)\.(\d+)\.tape")


def segment_bytes(tape_bytes: int) -> int:
    """The size of a full segment, for that bound of its family."""
    return tape_bytes // SEGMENTS


def named(file: str) -> tuple[str, int] | None:
    """The name of the tape that a file belongs to, and its number; None if it is not a tape file."""
    match = _NAME.fullmatch(file)
    return None if match is None else (match[1], int(match[2]))


class PieceSource(Protocol):
    """A tape whose pieces are written to files."""

    def drain(self) -> list[Piece]:
        """Pieces encoded since the last call, in order."""

    def renew(self) -> None:
        """Begin a segment with the next record, because some of the pieces taken were lost."""


@final
class TapeFiles:
    """The files of tape `name` of a `family`, in `folder`.

    Data that the disk does not accept waits in memory, within a bound (`Growing`). Data that finds no room there is
    lost; nothing can be replayed after the gap, so nothing more is written until the disk accepts the waiting data, and
    then a segment begins that is marked as after a loss.
    """

    def __init__(self, folder: Path, name: str, *, family: str, disk: Disk = DISK, bytes_max: int = TAPE_BYTES) -> None:
        self._folder, self._name, self._family, self._disk = folder, name, family, disk
        self._bytes_max = bytes_max
        self._file: Growing | None = None
        self._segment = 0
        self._number = max((number for number, _, _ in self._listed()), default=0)
        self._has_lost = False  # Data was lost, and the disk does not accept more yet.
        self._is_broken = False  # Data was lost, and the segment after the loss has not come.

    @classmethod
    def of_host(cls, run: Path, member: Member, *, disk: Disk = DISK, bytes_max: int = TAPE_BYTES) -> TapeFiles:
        """The tape files of a life of a host, in the folder of its run."""
        family = f"{member.replica.role}-{member.replica.slot}-"
        return cls(run / FOLDER, f"{family}{member.incarnation}", family=family, disk=disk, bytes_max=bytes_max)

    @classmethod
    def of_daemon(cls, run: Path, core: str, pid: int, *, disk: Disk = DISK, bytes_max: int = TAPE_BYTES) -> TapeFiles:
        """The tape files of a core of a daemon."""
        return cls(run / FOLDER, f"{core}-{pid}", family=f"{core}-", disk=disk, bytes_max=bytes_max)

    def write(self, tape: PieceSource) -> None:
        """Write what was appended to a tape since the last call."""
        pieces = tape.drain()
        if self._has_lost:
            if self._file is None or self._file.flush():
                self._has_lost = False
                tape.renew()
            return
        if not pieces and self._file is not None:
            self._file.flush()
        for piece in pieces:
            self._is_broken = self._is_broken and not piece.is_after_loss
            if not self._is_broken and not self._is_taken(piece):
                self._has_lost = self._is_broken = True
                return

    def close(self) -> None:
        """Flush once more, and close."""
        if self._file is not None:
            self._file.close()

    def _is_taken(self, piece: Piece) -> bool:
        """Add a piece to the file of its segment; returns whether it was written or had room to wait."""
        if piece.segment != self._segment:
            if self._file is not None:
                if not self._file.flush():
                    return False
                self._file.close()
            self._segment = piece.segment
            self._number += 1
            self._make_room()
            self._file = Growing(self._folder / f"{self._name}.{self._number}.tape", self._disk)
        assert self._file is not None
        self._file.append(piece.data)
        return not self._file.lost

    def _make_room(self) -> None:
        """Delete the oldest files, until there is room for another segment."""
        files = sorted(self._listed())
        size = sum(each for _, _, each in files) + segment_bytes(self._bytes_max)
        for _, name, each in files:
            if size <= self._bytes_max:
                return
            try:
                self._disk.remove(self._folder / name)
            except OSError:  # The next segment tries again.
                return
            size -= each

    def _listed(self) -> list[tuple[int, str, int]]:
        """The number, name and size of every file of the family."""
        try:
            sizes = self._disk.sizes(self._folder)
        except OSError:
            return []
        entries = ((named(name), name, size) for name, size in sizes.items())
        return [(of[1], name, size) for of, name, size in entries if of and self._is_of_family(of[0])]

    def _is_of_family(self, name: str) -> bool:
        return name.startswith(self._family) and name.removeprefix(self._family).isdecimal()


_READERS: Final = {1: "36b5c3b"}
"""The last commit that reads tapes of an earlier version, whose cores had other modules and classes."""
_MARKED: Final = msgspec.msgpack.encode(MARK)
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ForeignTapeError(ValueError):
    """These bytes are no tape, or one of another version."""


@dataclass(slots=True)
class Segment:
    """One segment: its opening, and its records, of the type that was asked for."""

    opening: Opening
    records: list[Any]

    @property
    def end(self) -> int:
        """The number of records of the tape up to the end of this segment."""
        return self.opening.before + len(self.records)


@dataclass(frozen=True, slots=True)
class Reading:
    """The segments found on a tape. `rest` describes the bytes after the last whole record, empty where there are none.

    `is_unfinished`: the end of a process or a power failure leaves such bytes.
    """

    segments: Sequence[Segment]
    rest: str = ""
    rest_bytes: int = 0
    is_unfinished: bool = False

    @property
    def records(self) -> list[Any]:
        """The records of all segments, regardless of gaps."""
        return [record for segment in self.segments for record in segment.records]

    @property
    def begins(self) -> int:
        """The number of records before the first one found."""
        return self.segments[0].opening.before if self.segments else 0

    @property
    def missing(self) -> int:
        """The number of records missing before the last one found."""
        count, at = 0, 0
        for segment in self.segments:
            count += max(0, segment.opening.before - at) if segment.opening.before else 0
            at = segment.end
        return count


def read(data: bytes, kind: type[Any]) -> Reading:
    """The tape in some bytes, with records of type `kind`.

    ForeignTapeError for what is no tape of this version, ValueError for frames that hold no such record.
    """
    stored = frames(data)
    if not stored.bodies and data and not stored.is_unfinished:
        raise ForeignTapeError(f"it begins with {data[:16].hex(' ')}, which no tape does")
    segments: list[Segment] = []
    decode = msgspec.msgpack.Decoder(kind).decode
    for number, body in enumerate(stored.bodies):
        if body[1 : 1 + len(_MARKED)] == _MARKED:
            segments.append(Segment(_opening(body), []))
        elif not segments:
            raise ForeignTapeError("it does not begin with the state of a core")
        else:
            try:
                segments[-1].records.append(decode(body))
            except _ERRORS as error:
                begins = stored.ends[number - 1]
                raise ValueError(f"it is damaged at byte {begins}: {error}") from None
    return Reading(segments, stored.rest, len(data) - stored.end, stored.is_unfinished)


class _AnyOpening(msgspec.Struct, array_like=True):
    """The first fields of an opening, of any version; the rest is skipped, and takes no memory."""

    mark: str
    version: int | None = None


def _opening(body: bytes) -> Opening:
    try:
        version = msgspec.msgpack.decode(body, type=_AnyOpening).version
        if version != VERSION:
            reader = f"; commit {_READERS[version]} reads it" if version in _READERS else ""
            raise ForeignTapeError(f"it is of version {version} of tapes, this isthmus reads version {VERSION}{reader}")
        return msgspec.msgpack.decode(body, type=Opening)
    except _ERRORS as error:
        raise ValueError(f"the beginning of a segment is damaged: {error}") from None


def joined(readings: Iterable[Reading]) -> Reading:
    """The tape whose segments are in several files, given in their order.

    ValueError where one but the last is incomplete and the next is not marked as after a loss, or where one is missing
    between.
    """
    segments: list[Segment] = []
    last = Reading(())
    for reading in readings:
        if segments and reading.segments:
            opening, before = reading.segments[0].opening, segments[-1].end
            is_next = opening.before == before or opening.is_after_loss or not opening.before
            if not is_next or (last.rest and not opening.is_after_loss and opening.before):
                why = last.rest or f"{opening.before - before} records are missing"
                raise ValueError(f"it is not whole before its segment {opening.segment}: {why}")
        segments += reading.segments
        last = reading
    return Reading(segments, last.rest, last.rest_bytes, last.is_unfinished)
