"""The tape: what happened to a host and what it decided, as records that can be read back.

A record is (instant, event, commands), msgpack, behind its length as four bytes, big-endian. The tape of a host is the
records in the order in which the core saw the events; feeding the events to a fresh core gives the same commands, which
is what `isthmus replay` checks. Files and rotation belong to whoever writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import xxhash

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.scheduler.events import Command, Event

RECORD_SIZE_MAX: Final = 1 << 24
"""Bytes; a record holds handles and small fields, never payloads."""


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event and what the core decided about it."""

    at: Instant
    event: Event
    commands: list[Command]


_Read = TypeVar("_Read", bound=msgspec.Struct)


class Tape:
    """Collects records; `take` hands over what has been encoded since the last call, also in another thread."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._records: deque[bytes] = deque()
        self._digest = xxhash.xxh3_128()

    def append(self, at: Instant, event: Any, commands: Sequence[Any]) -> None:
        """Add one record."""
        self._records.append(self._encode((at, event, commands)))

    def take(self) -> bytes:
        """The encoded records since the last call."""
        parts: list[bytes] = []
        for _ in range(len(self._records)):
            record = self._records.popleft()
            parts.append(len(record).to_bytes(4, "big"))
            parts.append(record)
        data = b"".join(parts)
        self._digest.update(data)
        return data

    def digest(self) -> str:
        """xxh3-128 of everything that `take` has handed over, as hexadecimal digits."""
        return self._digest.hexdigest()


def read(data: bytes) -> Iterator[Record]:
    """The records of the encoded tape of a host; ValueError names the byte at which it is torn or damaged."""
    return read_as(data, Record)


def whole(data: bytes) -> Iterator[Record]:
    """The records of a tape whose host may have been killed while it wrote: all but a torn last one."""
    return read(data[: whole_size(data)])


def whole_size(data: bytes) -> int:
    """The bytes of a tape up to the end of its last finished record. ValueError where a length is none: no host tears
    that by being killed."""
    end = 0
    while end + 4 <= len(data):
        size = int.from_bytes(data[end : end + 4], "big")
        if size > RECORD_SIZE_MAX:
            raise ValueError(_torn(end, size, len(data) - end - 4))
        if end + 4 + size > len(data):
            break
        end += 4 + size
    return end


def read_as(data: bytes, kind: type[_Read]) -> Iterator[_Read]:
    """The records of the tape of any core; ValueError names the byte at which it is torn or damaged."""
    decode = msgspec.msgpack.Decoder(kind).decode
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body = data[at + 4 : at + 4 + size]
        if size > RECORD_SIZE_MAX or len(body) != size:
            raise ValueError(_torn(at, size, len(body)))
        try:
            yield decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the tape is damaged at byte {at}: {error}") from None
        at += 4 + size


def _torn(at: int, size: int, there: int) -> str:
    return f"the tape is torn at byte {at}: a record of {size} bytes, {there} are there"


def compare(record: Record, commands: list[Command]) -> None:
    """Raise InvariantError if a core that was fed `record.event` again decided something else."""
    if record.commands != commands:
        raise InvariantError(
            f"replay at {record.at} ns: after {record.event} the tape has {record.commands}, this core says {commands}"
        )
