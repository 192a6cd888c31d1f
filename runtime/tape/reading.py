"""Reads tapes: the segments that exist, the records missing between them, and where the readable part ends.

Bytes may come from anywhere: files that are no tape, or one of another version, are distinguished from damaged and from
unfinished ones. The caller decides what follows from that; this module knows no core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from isthmus.runtime.tape.frames import frames
from isthmus.runtime.tape.writing import MARK, VERSION, Opening

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
    found = frames(data)
    if not found.bodies and data and not found.is_unfinished:
        raise ForeignTapeError(f"it begins with {data[:16].hex(' ')}, which no tape does")
    segments: list[Segment] = []
    decode = msgspec.msgpack.Decoder(kind).decode
    for number, body in enumerate(found.bodies):
        if body[1 : 1 + len(_MARKED)] == _MARKED:
            segments.append(Segment(_opening(body), []))
        elif not segments:
            raise ForeignTapeError("it does not begin with the state of a core")
        else:
            try:
                segments[-1].records.append(decode(body))
            except _ERRORS as error:
                begins = found.ends[number - 1]
                raise ValueError(f"it is damaged at byte {begins}: {error}") from None
    return Reading(segments, found.rest, len(data) - found.end, found.is_unfinished)


def _opening(body: bytes) -> Opening:
    try:
        plain = msgspec.msgpack.decode(body)
        version = plain[1] if isinstance(plain, list) and len(plain) > 1 else None
        if version != VERSION:
            raise ForeignTapeError(f"it is of version {version} of tapes, this isthmus reads version {VERSION}")
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
