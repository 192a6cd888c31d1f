"""What seems to be the porter of a daemon: it leads to the daemon, and is hostile to whoever asks for a host."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Final

from isthmus.runtime.wire.porter_greeting import CONNECTED, FORBIDDEN, GREETED, UNACCEPTABLE, VERSION
from tests.patience import PATIENCE

WAYS: Final = {
    "nothing": (b"", b""),
    "half of a greeting": (GREETED[:1], b""),
    "another version": (b"\x04\x00", b""),
    "no acceptable method": (UNACCEPTABLE, b""),
    "a refusal": (GREETED, FORBIDDEN),
    "an answer of another version": (GREETED, b"\x04" + CONNECTED[1:]),
    "half of an answer": (GREETED, CONNECTED[:5]),
    "an unknown kind of address": (GREETED, CONNECTED[:3] + b"\x07" + bytes(20)),
    "a name that does not end": (GREETED, CONNECTED[:3] + b"\x03\xff" + bytes(20)),
    "yes, and no more": (GREETED, CONNECTED),
    "yes, and no ZMTP": (GREETED, CONNECTED + b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(10_000)),
}
"""What it answers to the greeting and to the request, before it hangs up."""
SLOW: Final = "a byte a second"
SILENT: Final = "no end"


class HostilePorter:
    """Leads to `daemon`, tcp://ADDRESS:PORT; who speaks SOCKS gets each of the ways in turn, until it `is_honest`."""

    def __init__(self, daemon: str) -> None:
        host, _, port = daemon.removeprefix("tcp://").rpartition(":")
        self._daemon = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = "tcp://{}:{}".format(*self._listener.getsockname())
        self.is_honest = False
        self.met: Counter[str] = Counter()
        """How often each way was taken."""
        self._is_over = threading.Event()
        self._open: list[socket.socket] = []
        self._numbers = count()
        threading.Thread(target=self._accept, daemon=True).start()

    def has_tried_all(self, times: int = 1) -> bool:
        """Whether each way was taken so often."""
        return all(self.met[name] >= times for name in (*WAYS, SLOW, SILENT))

    def close(self) -> None:
        self._is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._open):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._is_over.is_set():
                made, _ = self._listener.accept()
                self._open.append(made)
                threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        with suppress(OSError), made:
            made.settimeout(PATIENCE)
            first = made.recv(1, socket.MSG_PEEK)
            if not first:
                return
            if first[0] != VERSION or self.is_honest:
                self._lead(made)
                return
            names = [*WAYS, SLOW, SILENT]
            name = names[next(self._numbers) % len(names)]
            self.met[name] += 1
            made.recv(100)
            if name == SLOW:
                for each in GREETED + CONNECTED:
                    made.sendall(bytes([each]))
                    self._is_over.wait(1.0)
            elif name == SILENT:
                made.recv(100)  # Until the other one hangs up.
            else:
                greeted, answered = WAYS[name]
                made.sendall(greeted)
                if answered:
                    made.recv(100)
                    made.sendall(answered)

    def _lead(self, made: socket.socket) -> None:
        with socket.create_connection(self._daemon) as far:
            self._open.append(far)
            back = threading.Thread(target=_pass_on, args=(far, made), daemon=True)
            back.start()
            _pass_on(made, far)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 18):
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
