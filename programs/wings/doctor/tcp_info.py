"""What the kernel knows of TCP connections of this network namespace: sock_diag(7), which needs no privilege.

Decides which fields are read, by their places in `struct tcp_info`, which only grows. A kernel that lacks the last of
them, or a sandbox without netlink, gives none.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
_DONE, _ERROR = 3, 2
_INET_DIAG_INFO: Final = 2
_STATES: Final = 0xFFF & ~(1 << 6 | 1 << 10)
"""All but TIME_WAIT and LISTEN."""
_HEADER: Final = struct.Struct("=LHHLL")
_REQUEST: Final = struct.Struct("=BBBBL48x")
_FOUND: Final = struct.Struct("=BBBB2s2s16s16sLQ")
_FOUND_BYTES: Final = 72
_TOTAL_RETRANS_AT, _ACKED_AT, _SEGMENTS_AT = 100, 120, 152
_BYTES: Final = struct.Struct("=QQ")
_LONG: Final = struct.Struct("=L")
RECEIVE_BYTES: Final = 1 << 16


class TcpConnection(NamedTuple):
    """A connection: (address, port) of both ends, a number of its own, and its figures.

    `acked_bytes` and `received_bytes` are payload; `segments` with data were sent, of which `resent` were sent again.
    """

    local: tuple[str, int]
    remote: tuple[str, int]
    number: int
    acked_bytes: int
    received_bytes: int
    segments: int
    resent: int


def connections() -> list[TcpConnection]:
    """All connections of TCP; none where the kernel does not tell. `segments` is at least 1."""
    found: list[TcpConnection] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
                link.settimeout(1.0)
                request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _STATES)
                size = _HEADER.size + len(request)
                link.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + request)
                found += _answers(link)
        except OSError:
            continue
    return found


def _answers(link: socket.socket) -> Iterator[TcpConnection]:
    while True:
        data = link.recv(RECEIVE_BYTES)
        while len(data) >= _HEADER.size:
            size, kind, *_ = _HEADER.unpack_from(data)
            if kind in (_DONE, _ERROR) or size < _HEADER.size:
                return
            connection = _connection(data[_HEADER.size : size])
            if connection is not None:
                yield connection
            data = data[(size + 3) & ~3 :]


def _connection(message: bytes) -> TcpConnection | None:
    """The connection of one answer; None where it has no figures."""
    family, _, _, _, source_port, target_port, source, target, _, cookie = _FOUND.unpack_from(message)
    info = b""
    rest = message[_FOUND_BYTES:]
    while len(rest) >= 4:
        size, kind = struct.unpack_from("=HH", rest)
        if kind == _INET_DIAG_INFO:
            info = rest[4:size]
        rest = rest[max(4, (size + 3) & ~3) :]
    if len(info) < _SEGMENTS_AT + 8:
        return None
    length = 4 if family == socket.AF_INET else 16
    ends = [
        (socket.inet_ntop(family, address[:length]), int.from_bytes(port, "big"))
        for address, port in ((source, source_port), (target, target_port))
    ]
    (resent,) = _LONG.unpack_from(info, _TOTAL_RETRANS_AT)
    acked, received = _BYTES.unpack_from(info, _ACKED_AT)
    (segments,) = _LONG.unpack_from(info, _SEGMENTS_AT + 4)
    return TcpConnection(ends[0], ends[1], cookie, acked, received, max(1, segments), resent)
