"""Reads tapes: which segments there are, what is missing between them, and where what can be read ends.

Bytes may come from anywhere: what is no tape, and what is one of another version, is told apart from one that is
damaged, or was never finished. Does not say what follows from that, and knows no core.
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
    """One: what it begins with, and its records, of the type that was asked for."""

    opening: Opening
    records: list[Any]

    @property
    def end(self) -> int:
        """How many records the tape has up to its end."""
        return self.opening.before + len(self.records)


@dataclass(frozen=True, slots=True)
class Reading:
    """The segments of a tape that are there. `rest` says what follows the last whole record and is none, empty where
    nothing does; `is_unfinished` where that is what the end of a process or of the power leaves behind."""

    segments: Sequence[Segment]
    rest: str = ""
    rest_bytes: int = 0
    is_unfinished: bool = False

    @property
    def records(self) -> list[Any]:
        """Those of all segments, whatever is missing between them."""
        return [record for segment in self.segments for record in segment.records]

    @property
    def begins(self) -> int:
        """How many records were on the tape before the first that is there."""
        return self.segments[0].opening.before if self.segments else 0

    @property
    def missing(self) -> int:
        """How many records are not there, of those before the last that is."""
        count, at = 0, 0
        for segment in self.segments:
            count += max(0, segment.opening.before - at) if segment.opening.before else 0
            at = segment.end
        return count


def read(data: bytes, kind: type[Any]) -> Reading:
    """The tape in some bytes, with records of a type. ForeignTapeError for what is no tape of this version, ValueError
    for frames that hold no such record."""
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
    """The tape whose segments are in several files, in their order. ValueError where one of them but the last is not
    whole, and the next does not say that records were lost there, or where one is missing in the middle."""
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
