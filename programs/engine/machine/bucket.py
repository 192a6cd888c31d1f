"""A daemon's way through a bucket: the process beside it that carries connections there (`bucket_process`).

It hands the process its task and the keys that a home admits, and tells what it says. An island's daemon holds the
listening socket, at a port that it finds again after a restart, because hosts that live on dial there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.machine import bucket_keys
from isthmus.programs.engine.machine.bucket_process import BucketTask
from isthmus.programs.engine.machine.bucket_road import RoadPlace
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.runtime.system import addresses
from isthmus.runtime.system.children import Child, KeptChild
from isthmus.runtime.system.files import put_bytes, read_text
from isthmus.runtime.wire.security_keys import KeyPair

END_SECONDS_MAX: Final = 12.0
"""For its last objects, and their removal."""
BACKLOG: Final = 512
PORT_FILE: Final = "bucket.port"
_PROCESS: Final = "isthmus.programs.engine.machine.bucket_process"


def part_of(place: RoadPlace, home: str) -> RoadPlace:
    """The part of a store that belongs to the home with the public key `home`: several may share one."""
    return place.under(bucket_keys.digest_of(home))


def listener_in(folder: Path) -> socket.socket:
    """A socket on loopback, at the port that the last one in this folder had, where that is free."""
    path = folder / PORT_FILE
    made = None
    with suppress(OSError, ValueError):
        made = socket.create_server(("127.0.0.1", int(read_text(path))), backlog=BACKLOG)
    if made is None:
        made = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        put_bytes(path, str(made.getsockname()[1]).encode())
    return made


def _plain(pairs: Iterable[KeyPair]) -> list[list[str]]:
    return [[pair.public, pair.secret] for pair in pairs]


@final
class Bucket(DaemonService):
    """The process for one end of the way through a store, at a `place`: of a machine whose daemon listens to it at
    `listener`, and whose home knows it by one of `pairs`; or of a home, which has neither, and keys of its own."""

    def __init__(
        self, place: RoadPlace, pairs: Iterable[KeyPair] = (), home: str = "", listener: socket.socket | None = None
    ) -> None:
        self._place, self._pairs, self._home, self._listener = place, list(pairs), home, listener
        self._child = KeptChild(
            "the process of its bucket", self._begin, state=self._state, hear=self._hear, end_seconds=END_SECONDS_MAX
        )
        self.use: dict[str, Any] = {}
        """Requests and bytes since the process began, by kind, and the seconds in which the store was reached."""

    @property
    def address(self) -> str:
        """Where the home's porter seems to be, on an island."""
        assert self._listener is not None
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._child.pid

    def start(self, machine: ServedMachine) -> None:
        """Start the process."""
        self._machine = machine
        self._child.start(machine.loop, machine.tell)

    def close(self) -> None:
        """End the process, which has some seconds to say so and to clean up, and free the port."""
        self._child.close()
        if self._listener is not None:
            self._listener.close()

    def _begin(self) -> Child:
        files = [] if self._listener is None else [self._listener.fileno()]
        return Child(_PROCESS, files, files=files)

    def _state(self) -> dict[str, Any]:
        return {"task": asdict(self._task()), "admitted": self._admitted()}

    def _task(self) -> BucketTask:
        if self._listener is not None:
            part = part_of(self._place, self._home)
            return BucketTask(part.text, part.every, _plain(self._pairs), self._home)
        keys = self._machine.keys
        assert keys is not None
        host, port = addresses.host_and_port(self._machine.endpoint)
        host = "127.0.0.1" if host in ("*", "0.0.0.0", "::") or addresses.is_name(host) else host.strip("[]")
        part = part_of(self._place, keys.pair.public)
        return BucketTask(part.text, part.every, _plain([keys.pair]), host=host, port=int(port))

    def _admitted(self) -> dict[str, int]:
        """The keys that a home admits, and of how many machines each may be."""
        keys = self._machine.keys
        return {} if self._listener is not None or keys is None else {**dict.fromkeys(keys.admitted, 1), **keys.invited}

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "tell" in message:
            self._machine.tell(str(message["tell"]))
        self.use = message.get("use", self.use)
