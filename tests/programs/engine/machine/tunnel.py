"""What `ssh -L` and `ssh -R` are for whoever dials: a port of loopback that leads to a port of loopback elsewhere."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.runtime.system import addresses
from isthmus.runtime.wire.ways import WayThread, prepared
from tests.patience import PATIENCE

_NEW_NETWORK = 0x40000000


class Tunnel:
    """Accepts at `address` in the network namespace `near`, and leads to `target`, tcp://HOST:PORT, in that of `far`.

    Without a target, and where nothing listens there, it hangs up, as ssh does. '' is the namespace of this process.
    """

    def __init__(self, target: str = "", near: str = "", far: str = "", port: int = 0) -> None:
        self.target, self._far = target, far
        self._ways = WayThread("tunnel")
        self._server: socket.socket = within(near, lambda: socket.create_server(("127.0.0.1", port), backlog=64))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """End it, and every connection through it."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self._ways.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                with suppress(OSError):
                    far = within(self._far, lambda: addresses.connect(self.target, PATIENCE)) if self.target else None
                    if far is not None and self._ways.give(prepared(near), prepared(far)):
                        continue
                near.close()


def within(namespace: str, call: Callable[[], Any]) -> Any:
    """What a call gives in a network namespace, made by a thread that enters it."""
    if not namespace:
        return call()
    done: list[Any] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        file = os.open(Path("/run/netns", namespace), os.O_RDONLY)
        try:
            if libc.setns(file, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
            done.append(call())
        except OSError as error:
            done.append(error)
        finally:
            os.close(file)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(done[0], OSError):
        raise done[0]
    return done[0]
