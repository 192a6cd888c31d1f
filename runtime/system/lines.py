"""A line: messages between two processes of ours on one machine, JSON objects, both ways.

It decides how they are cut out of a stream, what becomes of them while the other end does not read, and how open files
go with them. What they mean is their ends' affair. Whoever is at the other end runs as this user, from this code; what
comes from a network is not read here (`runtime.wire`).
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, final

from isthmus.runtime.system.waiting import readable

LINE_BYTES_MAX: Final = 64 << 20
"""Of a model with the most leaves that a home takes, and more."""
_READ_BYTES: Final = 1 << 20
"""At once: more than a socket's buffer has, as a rule."""
FILES_MAX: Final = 8
"""With one message."""


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
        self.files: deque[int] = deque()
        """Descriptors that came with messages, in order, at the latest as `hear` returns theirs: whoever takes one has
        to close it."""

    @classmethod
    def pair(cls) -> tuple[ProcessLine, socket.socket]:
        """An end, and the socket of the other one."""
        ours, its = socket.socketpair()
        return cls(ours), its

    @classmethod
    def inherited(cls, number: int | str) -> ProcessLine:
        """The end that this process was started with, by the number of its descriptor. What it starts has none."""
        os.set_inheritable(int(number), False)
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

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message, and open files with it, however long the other end takes to read; OSError if it has gone."""
        assert len(files) <= FILES_MAX
        self._hand_over()
        self._unsent = _encoded(message)
        self._hand_over(files)

    def hear(self) -> list[dict[str, Any]]:
        """The messages that have come, without waiting for more. ValueError for one that is too long."""
        while not self.is_over:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _FILES_SPACE, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except ConnectionError:  # Raised once, where the other end had left something unread: what it sent remains.
                continue
            self.is_over = not data
            self._read += data
            for _, _, numbers in ancillary:  # SCM_RIGHTS: this end has asked for nothing else.
                self.files += array.array("i", numbers)
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
        """Free the descriptor, and those that came and were not taken. Idempotent."""
        self._socket.close()
        while self.files:
            os.close(self.files.popleft())

    def _hand_over(self, files: Sequence[int] = ()) -> None:
        """Hand over what is left, the files with the first of its bytes; OSError if the other end has gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while self._unsent:
            poll.poll()
            with suppress(BlockingIOError):
                count = socket.send_fds(self._socket, [self._unsent], files)
                self._unsent, files = self._unsent[count:], ()


_FILES_SPACE: Final = socket.CMSG_SPACE(FILES_MAX * array.array("i").itemsize)


def _encoded(message: Mapping[str, Any]) -> memoryview:
    line = json.dumps(message).encode()
    # What `hear` relies on: an object, on one line, that is not too long for the other end.
    assert line.startswith(b"{")
    assert b"\n" not in line
    assert len(line) < LINE_BYTES_MAX, f"{len(line)} bytes"
    return memoryview(line + b"\n")
