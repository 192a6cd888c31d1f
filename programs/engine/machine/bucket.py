"""A daemon's way through a bucket: the process beside it that carries connections there (`bucket_process`).

It starts the process, starts it again when it has died, hands it the keys that a home admits, and tells what it says.
An island's daemon holds the listening socket, at a port that it finds again after a restart, because hosts that live on
dial there.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, final

from isthmus.programs.engine.machine.bucket_process import BucketTask
from isthmus.programs.engine.machine.bucket_road import RoadPlace
from isthmus.runtime.system import addresses
from isthmus.runtime.system.files import put_bytes, read_text
from isthmus.runtime.wire import bucket_keys
from isthmus.runtime.wire.security_keys import KeyPair

LOOK_SECONDS: Final = 0.25
RESTART_SECONDS: Final = 1.0
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


class BucketRunning(NamedTuple):
    """The process, and the pipes to it and from it."""

    process: subprocess.Popen[bytes]
    input: IO[bytes]
    output: IO[bytes]

    @classmethod
    def begin(cls, files: tuple[int, ...]) -> BucketRunning:
        """Start it, with these files of the daemon."""
        command = [sys.executable, "-m", _PROCESS, *map(str, files)]
        process = subprocess.Popen(command, pass_fds=files, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return cls(process, process.stdin, process.stdout)

    def write(self, line: str) -> None:
        """Write a line to it; dropped if it has died, and is about to be started again."""
        with suppress(OSError):
            self.input.write(f"{line}\n".encode())
            self.input.flush()

    def hang_up(self) -> None:
        """Write no more; so it ends."""
        with suppress(OSError):
            self.input.close()


@final
class Bucket:
    """The process for one end. `admitted` returns the keys that a home admits, and of how many machines each may be;
    `tell` gets lines for people."""

    def __init__(
        self,
        task: BucketTask,
        listener: socket.socket | None = None,
        *,
        admitted: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._task, self._listener, self._admitted = task, listener, admitted
        self._tell: Callable[[str], None] = lambda line: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: BucketRunning | None = None
        self._rest = b""
        self._begun_at = 0.0
        self._said: dict[str, int] | None = None
        self._is_closed = False
        self.use: dict[str, Any] = {}
        """Requests and bytes since the process began, by kind, and the seconds in which the store was reached."""

    @classmethod
    def of_island(cls, place: RoadPlace, pairs: Iterable[KeyPair], home: str, listener: socket.socket) -> Bucket:
        """The end of a machine; the home with the public key `home` knows one of its `pairs`, or will."""
        part = part_of(place, home)
        return cls(BucketTask(part.text, part.every, _plain(pairs), home), listener)

    @classmethod
    def of_home(
        cls, place: RoadPlace, pair: KeyPair, endpoint: str, admitted: Callable[[], Mapping[str, int]]
    ) -> Bucket:
        """The end of a home whose porter is at an endpoint."""
        host, port = addresses.host_and_port(endpoint)
        host = "127.0.0.1" if host in ("*", "0.0.0.0", "::") or addresses.is_name(host) else host.strip("[]")
        part = part_of(place, pair.public)
        task = BucketTask(part.text, part.every, _plain([pair]), host=host, port=int(port))
        return cls(task, admitted=admitted)

    @property
    def address(self) -> str:
        """Where the home's porter seems to be, on an island."""
        assert self._listener is not None
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._running is None else self._running.process.pid

    def start(self, loop: asyncio.AbstractEventLoop, tell: Callable[[str], None]) -> None:
        """Start the process."""
        self._loop, self._tell = loop, tell
        self._begin()
        self._look()

    def close(self) -> None:
        """End the process, which has some seconds to say so and to clean up, and free the port."""
        self._is_closed = True
        running, self._running = self._running, None
        if running is not None:
            self._attached.remove_reader(running.output.fileno())
            running.hang_up()
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(END_SECONDS_MAX)
            running.process.kill()
            os.set_blocking(running.output.fileno(), True)
            self._hear(running.output.read())
            running.output.close()
            running.process.wait()
        if self._listener is not None:
            self._listener.close()

    @property
    def _attached(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def _begin(self) -> None:
        if self._is_closed:
            return
        files = () if self._listener is None else (self._listener.fileno(),)
        running = self._running = BucketRunning.begin(files)
        self._said, self._rest, self._begun_at = None, b"", self._attached.time()
        running.write(json.dumps(asdict(self._task)))
        self._attached.add_reader(running.output.fileno(), self._read)

    def _look(self) -> None:
        """Have the process know the keys that are admitted now."""
        if self._is_closed:
            return
        admitted = dict(self._admitted())
        if self._running is not None and admitted != self._said:
            self._running.write(json.dumps(admitted))
            self._said = admitted
        self._attached.call_later(LOOK_SECONDS, self._look)

    def _read(self) -> None:
        if self._running is None:
            return
        try:
            data = os.read(self._running.output.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._hear(data)
        else:
            self._died(self._running)

    def _hear(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "tell" in said:
                self._tell(str(said["tell"]))
            self.use = said.get("use", self.use)

    def _died(self, running: BucketRunning) -> None:
        """The process has gone: start it again."""
        self._running = None
        self._attached.remove_reader(running.output.fileno())
        running.output.close()
        running.hang_up()
        self._attached.run_in_executor(None, running.process.wait)
        if not self._is_closed:
            self._tell("the process of its bucket has died, and is started again; connections there are made anew")
            lived = self._attached.time() - self._begun_at
            self._attached.call_later(max(0.0, RESTART_SECONDS - lived), self._begin)
