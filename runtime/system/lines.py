"""A line: messages between two processes of ours on one machine, JSON objects, both ways.

It decides how they are cut out of a stream, and what becomes of them while the other end does not read. What they mean
is their ends' affair. Whoever is at the other end runs as this user, from this code; what comes from a network is not
read here (`runtime.wire`).
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, final

from isthmus.runtime.system.waiting import readable

LINE_BYTES_MAX: Final = 64 << 20
"""Of a model with the most leaves that a home takes, and more."""
_READ_BYTES: Final = 1 << 20
"""At once: more than a socket's buffer has, as a rule."""


@final
class ProcessLine:
    """One end. `pair` makes both; the other one is `inherited` by a process that is started with it."""

    def __init__(self, connection: socket.socket) -> None:
        # At both ends: that of a child is a number, and the number of another descriptor of it is no line.
        assert (connection.family, connection.type) == (socket.AF_UNIX, socket.SOCK_STREAM), connection
        connection.setblocking(False)
        self._socket = connection
        self._read, self._unsent = bytearray(), memoryview(b"")
        self._heard: deque[dict[str, Any]] = deque()
        self.is_over = False
        """Whether the other end says no more: it has gone, as a rule."""

    @classmethod
    def pair(cls) -> tuple[ProcessLine, socket.socket]:
        """An end, and the socket of the other one."""
        ours, its = socket.socketpair()
        return cls(ours), its

    @classmethod
    def inherited(cls, number: int | str) -> ProcessLine:
        """The end that this process was started with, by the number of its descriptor."""
        return cls(socket.socket(fileno=int(number)))

    def fileno(self) -> int:
        """Its descriptor, which can be read where `hear` has something."""
        return self._socket.fileno()

    def offer(self, message: Mapping[str, Any]) -> bool:
        """Send a message without waiting; False, and nothing is sent, where the other end is behind, or gone.

        What of a message has no room yet goes with the next one, or with `flush`.
        """
        if not self.flush():
            return False
        self._unsent = _encoded(message)
        self.flush()
        return True

    def flush(self) -> bool:
        """Hand over, without waiting, what there is room for of what was offered; whether nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except OSError:  # No room now, or nobody any more.
            return False
        return True

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, however long the other end takes to read; OSError if it has gone."""
        self._hand_over()
        self._unsent = _encoded(message)
        self._hand_over()

    def hear(self) -> list[dict[str, Any]]:
        """The messages that have come, without waiting for more. ValueError for one that is too long."""
        while not self.is_over:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:  # Raised once, where the other end had left something unread: what it sent remains.
                continue
            self.is_over = not data
            self._read += data
            if len(self._read) > LINE_BYTES_MAX and b"\n" not in self._read:
                raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
        whole, newline, rest = bytes(self._read).rpartition(b"\n")
        if newline:
            self._read = bytearray(rest)
            messages = [*map(json.loads, whole.split(b"\n"))]
            assert all(isinstance(message, dict) for message in messages)  # As `_encoded` has it.
            self._heard += messages
        heard, self._heard = [*self._heard], deque()
        return heard

    def next(self) -> dict[str, Any] | None:
        """The next message, however long it takes; None if the other end says no more. `hear` has those behind it."""
        while not (heard := self.hear()) and not self.is_over:
            readable([self], None)
        if not heard:
            return None
        first, *rest = heard
        self._heard.extendleft(reversed(rest))
        return first

    def end(self) -> None:
        """Say no more; the other end may still."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Free the descriptor. Idempotent."""
        self._socket.close()

    def _hand_over(self) -> None:
        """Hand over what is left; OSError if the other end has gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while self._unsent:
            poll.poll()
            with suppress(BlockingIOError):
                self._unsent = self._unsent[self._socket.send(self._unsent) :]


def _encoded(message: Mapping[str, Any]) -> memoryview:
    line = json.dumps(message).encode()
    # What `hear` relies on: an object, on one line, that is not too long for the other end.
    assert line.startswith(b"{")
    assert b"\n" not in line
    assert len(line) < LINE_BYTES_MAX, f"{len(line)} bytes"
    return memoryview(line + b"\n")
