"""Both ends of a way through a bucket, on a loop in a thread, with a store that tests take away and tamper with."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from isthmus.programs.engine.machine.bucket_process import BucketTask, CountedRoad, HomeEnd, IslandEnd
from isthmus.programs.engine.machine.bucket_road import FolderRoad, Road, RoadPlace
from isthmus.programs.engine.machine.socks_greeting import GREETING_BYTES_MAX, SocksGreeting, ToDaemon, ToHost
from isthmus.runtime.wire.porter_greeting import CONNECTED
from isthmus.runtime.wire.security_keys import KeyPair
from tests.patience import PATIENCE

EVERY = 0.02


class Watched(RoadPlace):
    """A place whose road is a `TakenRoad`."""

    road: TakenRoad

    def open(self) -> Road:
        return self.road


class TakenRoad:
    """A folder that may be `away`, and where what is put may be changed by `tamper`, or dropped (None)."""

    def __init__(self, folder: Path) -> None:
        self._road = FolderRoad(folder)
        self.folder = folder
        self.is_away = False
        self.tamper: Callable[[str, bytes], bytes | None] = lambda name, data: data
        self.calls = 0

    def put(self, name: str, data: bytes) -> None:
        self._answer()
        changed = self.tamper(name, data)
        if changed is not None:
            self._road.put(name, changed)

    def fetch(self, name: str, bytes_max: int) -> bytes | None:
        self._answer()
        return self._road.fetch(name, bytes_max)

    def names(self) -> list[str]:
        self._answer()
        return self._road.names()

    def remove(self, names: Iterable[str]) -> None:
        self._answer()
        self._road.remove(names)

    def _answer(self) -> None:
        self.calls += 1
        if self.is_away:
            raise OSError("away")


class Ways:
    """A home with the keys `home`, and islands; `address` is where an island reaches the home's porter.

    Behind the porter is whatever listens on loopback: `daemon` is the port that connections to the daemon lead to.
    """

    def __init__(self, folder: Path, daemon: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.road = TakenRoad(folder / "part")
        self.home, self.daemon = KeyPair.draw(), daemon
        self.lines: list[str] = []
        self.stores: list[CountedRoad] = []
        self._servers: list[asyncio.Server] = []
        self._leading: list[asyncio.Future[None]] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[Any] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self._run(self._serve_porter(listener))
        self.home_end: HomeEnd
        self.begin_home(listener.getsockname()[1])

    def begin_home(self, port: int) -> None:
        task = BucketTask("", EVERY, [[self.home.public, self.home.secret]], host="127.0.0.1", port=port)
        self.home_end = HomeEnd(task, self._store(), self.lines.append)
        self._begin(self.home_end.serve())

    def island(self, pair: KeyPair | None = None, *, is_admitted: bool = True) -> int:
        """Begin an island; returns the port on loopback at which it takes connections."""
        own = pair or KeyPair.draw()
        if is_admitted:
            self.home_end.admitted = {**self.home_end.admitted, own.public: 1}
        listener = socket.create_server(("127.0.0.1", 0))
        task = BucketTask("", EVERY, [[own.public, own.secret]], self.home.public)
        self._begin(IslandEnd(task, listener, self._store(), self.lines.append).serve())
        return int(listener.getsockname()[1])

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            rest = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in rest:
                each.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for store in self.stores:
                store.close()

        self._run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def objects(self) -> list[str]:
        return sorted(path.name for path in self.road.folder.iterdir())

    def _store(self) -> CountedRoad:
        place = Watched("", EVERY)
        place.road = self.road
        store = CountedRoad(place, self.lines.append)
        self.stores.append(store)
        self._begin(store.removing())
        return store

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.run_coroutine_threadsafe(work, self.loop))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    async def _serve_porter(self, listener: socket.socket) -> None:
        self._servers.append(await asyncio.start_server(self._accept, sock=listener))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._leading.append(asyncio.ensure_future(self._lead(reader, writer)))

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What a porter does: lead a connection to the daemon, or to the port that it asks for."""
        greeting, verdict = SocksGreeting(lambda host, port: port != 1), None
        with suppress(OSError), closing(writer):
            while not isinstance(verdict, ToDaemon | ToHost) and (data := await reader.read(GREETING_BYTES_MAX)):
                verdict = greeting.receive(data)
                writer.write(getattr(verdict, "answer", b""))
            port = verdict.port if isinstance(verdict, ToHost) else self.daemon
            if not port or not isinstance(verdict, ToDaemon | ToHost):
                return
            far_reader, far = await asyncio.open_connection("127.0.0.1", port)
            if isinstance(verdict, ToHost):
                writer.write(CONNECTED)
            far.write(verdict.received)
            with closing(far):
                await asyncio.gather(_pipe(reader, far), _pipe(far_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class EchoServer:
    """A port of loopback that gives back what it gets."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # Or its thread accepts on, of a socket that is closed.
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                made, _ = self._server.accept()
                self.accepted += 1
                threading.Thread(target=self._echo, args=(made,), daemon=True).start()

    def _echo(self, made: socket.socket) -> None:
        with made, suppress(OSError):
            while data := made.recv(1 << 16):
                made.sendall(data)
