"""Frames: consecutive runs of bytes; a reader can tell whether each is complete.

A frame is the length of its body (4 bytes, big-endian, 1 to BODY_SIZE_MAX), the CRC-32 of length and body (4 bytes,
big-endian), and the body. The length is part of the checksum, and is never 0, so that a run of zeros, which a power
failure may leave in place of the last writes, is no frame. A checksum finds damage; it is no protection against
forgery, so bodies are decoded as strictly as any foreign bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

HEAD_SIZE: Final = 8
BODY_SIZE_MAX: Final = 1 << 24
"""Bytes: records have handles and small fields, never payloads; the state of a core is some kilobytes."""


class Frames(NamedTuple):
    """The frames found: their bodies, where each ends, and the bytes after the last of them.

    `rest` is empty, or states why those are no frame; `is_unfinished` if a process end or power failure leaves such
    bytes.
    """

    bodies: list[bytes]
    ends: list[int]
    rest: str
    is_unfinished: bool

    @property
    def end(self) -> int:
        """The offset at which the last whole frame ends."""
        return self.ends[-1] if self.ends else 0


def framed(body: bytes) -> bytes:
    """The frame of `body`."""
    head = len(body).to_bytes(4, "big")
    return b"".join((head, crc32(body, crc32(head)).to_bytes(4, "big"), body))


def frames(data: bytes) -> Frames:
    """The frames at the beginning of some bytes; never raises, and allocates no more than these bytes."""
    bodies, ends, at, size = list[bytes](), list[int](), 0, len(data)
    while at < size:
        head, begin = data[at : at + 4], at + HEAD_SIZE
        length = int.from_bytes(head, "big")
        if begin > size or (0 < length <= BODY_SIZE_MAX and begin + length > size):
            return Frames(bodies, ends, f"{size - at} bytes of an unfinished record at byte {at}", True)
        body = data[begin : begin + length]
        if not 0 < length <= BODY_SIZE_MAX:
            rest, is_zero = f"a length of {length} at byte {at}, of 1 to {BODY_SIZE_MAX}", not any(data[at:])
            return Frames(bodies, ends, rest, is_zero)
        if crc32(body, crc32(head)) != int.from_bytes(data[at + 4 : begin], "big"):
            is_cut = not any(data[-8:]) and begin + length == size
            return Frames(bodies, ends, f"a record of {length} bytes at byte {at} with another checksum", is_cut)
        bodies.append(body)
        at = begin + length
        ends.append(at)
    return Frames(bodies, ends, "", False)
