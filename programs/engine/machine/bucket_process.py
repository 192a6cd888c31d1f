"""The process beside a daemon that carries connections through a bucket, to or from the home of its runs.

`python -m isthmus.programs.engine.machine.bucket_process [LISTENER] LINE`, started by a daemon (`bucket`), never by
hand. Each message of the daemon has a `BucketTask`, the same in all (`task`), and the keys that a home admits, and of
how many machines each may be (`admitted`). Its own are for people (`tell`), or count its requests (`use`). When the
daemon says no more, the process ends.

It decides when an object is written and when the next one is looked for, what becomes of passages that nobody goes on
with, and what is removed. `bucket_passage` decides what is in an object.

Theory of operation. The island's end listens where its daemon and hosts take the home's porter to be. It answers SOCKS
at once by itself, because each answer of the other end would take seconds, and opens a connection through the passage
with its first bytes; the home's end dials the porter of the home, which leads it on to the daemon, or to a host.
In each interval (`every`) an end writes at most one object, unless what waits fills more, and looks for the next one by
its name; after one that was there it looks again at once. What was read is removed, many at a time.

A store that cannot be reached is tried for as long as it takes; nothing is lost meanwhile, and connections stay. An end
gives a passage up when the other one has said nothing for a time in which the store could be reached; the island then
begins another one, after its own objects were removed. The home finds new ones by listing their hellos, and removes
what no passage goes on with. An illegal object ends its passage, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from isthmus.programs.engine.machine.bucket_keys import HELLO_BYTES_MAX, BoxSeal, HelloContents, hello_of, read_hello
from isthmus.programs.engine.machine.bucket_passage import (
    HELLO,
    IDENTITY_BYTES,
    OBJECT_BYTES_MAX,
    SEALED_BYTES_MAX,
    BucketPassage,
    Opened,
    PassageConnectionClosed,
    PassageEnded,
    PassageError,
    Received,
    identity_of,
)
from isthmus.programs.engine.machine.bucket_road import Road, RoadPlace
from isthmus.programs.engine.machine.socks_greeting import GREETING_BYTES_MAX, AskMore, SocksGreeting, ToDaemon, ToHost
from isthmus.programs.engine.snapshots.stored import words
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.system.children import serve_line
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.wire.porter_greeting import CONNECTED, GREETED
from isthmus.runtime.wire.security_keys import KeyPair

PASSAGES_MAX: Final = 256
PASSAGES_OF_MACHINE_MAX: Final = 4
"""A machine has one, and leaves another behind where its process is killed, until that has said nothing for long."""
PASSAGES_OF_KEY_MAX: Final = 192
"""Of an invitation for many machines: others keep a quarter of all."""
OVER_MAX: Final = 1 << 16
"""Passages that are over, whose hellos begin no other one: 10 MB."""
TELL_SECONDS: Final = 60.0
PIECE_BYTES: Final = 256 << 10
BACKLOG_BYTES: Final = 2 * OBJECT_BYTES_MAX
"""Of frames that wait; then sockets are read no further, and TCP slows their senders down."""
TAKEN_BYTES_MAX: Final = 64 << 20
"""For one connection that its own end does not read: the window of a session twice. Then it is closed."""
PUTS_MAX: Final = 4
"""Objects that are written at once: one that is alone fills a fifth of the time that a distant store takes."""
KEEP_SECONDS: Final = 5.0
"""An end with nothing to say still writes an object, so that the other one knows that it lives."""
HOME_SILENT_SECONDS: Final = 30.0
"""A home whose process was replaced knows none of its passages. The island waits as long for it before another one."""
ISLAND_SILENT_SECONDS: Final = 300.0
"""Longer than the home's patience with a machine that is reached so."""
LOST_SECONDS: Final = 20.0
"""The next object is missing, and one behind it is there: it was removed by somebody else."""
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 5.0
LOOK_INTERVALS: Final = 4
"""A home lists its bucket once in so many intervals: it finds a machine that joins two of these later, on average."""
LEFT_SECONDS: Final = 600.0
"""Objects that no passage goes on with, and hellos that are not admitted, are removed after it."""
REMOVE_SECONDS: Final = 5.0
REMOVED_MAX: Final = 500
USE_SECONDS: Final = 5.0
GREETING_SECONDS_MAX: Final = 5.0
DIAL_SECONDS_MAX: Final = 5.0
END_SECONDS_MAX: Final = 5.0
_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True)
class BucketTask:
    """What the process is for. `pairs` are the keys of this end, public and secret: of an island, those by one of which
    the home may know it; `home` is the public key of the home, empty where this is the home's end, whose porter is at
    `port` of `host`."""

    text: str
    every: float
    pairs: list[list[str]]
    home: str = ""
    host: str = ""
    port: int = 0


class CountedRoad:
    """A store through threads, with a count of requests, and with the times at which it answers."""

    def __init__(self, place: RoadPlace, tell: Callable[[str], None]) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._place, self._tell = place, tell
        self._road: Road | None = None
        self._threads = ThreadPoolExecutor(2 * PUTS_MAX + 4, "bucket")
        self._gone: set[str] = set()
        self.down_since: float | None = None
        self.up_seconds = 0.0
        """Time in which the store could be reached."""
        self._up_at = time.monotonic()

    async def put(self, name: str, data: bytes) -> None:
        """Put an object, however long that takes."""
        pause = RETRY_SECONDS
        while True:
            try:
                await self._call("put", lambda road: road.put(name, data))
            except OSError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            else:
                self.bytes["put"] += len(data)
                return

    async def fetch(self, name: str, bytes_max: int) -> bytes | None:
        """An object, as in `Road`."""
        data = await self._call("fetch", lambda road: road.fetch(name, bytes_max))
        self.bytes["fetch"] += len(data or b"")
        return data

    async def names(self) -> list[str]:
        return await self._call("list", lambda road: road.names())

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects soon."""
        self._gone.update(names)

    async def removing(self) -> None:
        """Remove, many at a time, for ever."""
        while True:
            await asyncio.sleep(REMOVE_SECONDS)
            with suppress(OSError):
                await self.remove_now()

    async def remove_now(self) -> None:
        """Remove what is to be removed; OSError if that fails."""
        while self._gone:
            await self._remove(sorted(self._gone)[:REMOVED_MAX])

    def close(self) -> None:
        """Begin nothing more; what is under way may hang, and is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _remove(self, names: list[str]) -> None:
        await self._call("remove", lambda road: road.remove(names))
        self._gone.difference_update(names)

    async def _call(self, kind: str, work: Callable[[Road], _T]) -> _T:
        def call() -> _T:
            if self._road is None:
                self._road = self._place.open()
            return work(self._road)

        self.requests[kind] += 1
        begun = time.monotonic()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except OSError as error:
            if self.down_since is None and begun >= self._up_at:
                self.down_since = time.monotonic()
                self._tell(f"{self._place.shown} cannot be reached: {words(error)}; goes on trying")
            raise
        now = time.monotonic()
        if self.down_since is None:
            self.up_seconds += now - self._up_at
        elif begun < self.down_since:  # What ends after a later call says nothing of the store as it is.
            return result
        else:
            self._tell(f"{self._place.shown} is reached again, after {now - self.down_since:.0f} s")
            self.down_since = None
        self._up_at = now
        return result


class Carried:
    """One connection of a passage: its socket, and the task that reads it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def close(self, *, at_once: bool = False) -> None:
        """Close, after what was written, unless `at_once`."""
        if at_once:
            self.writer.transport.abort()
        else:
            self.writer.close()


class PassageRun:
    """Drives one end of a passage: writes and reads its objects, and its connections' sockets.

    `dial` makes the connection that the other end opens, on the home's end.
    """

    def __init__(
        self,
        passage: BucketPassage,
        store: CountedRoad,
        every: float,
        silent_seconds: float,
        dial: Callable[[str], Awaitable[Carried]] | None = None,
    ) -> None:
        self.passage = passage
        self._store, self._every, self._silent_seconds, self._dial = store, every, silent_seconds, dial
        self._carried: dict[int, Carried] = {}
        self._early: dict[int, bytearray] = {}
        """Bytes for connections that are being dialled."""
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._is_displaced = asyncio.Event()
        self.heard_at = time.monotonic()
        self._puts = asyncio.Semaphore(PUTS_MAX)
        self._pending_puts = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_heard = self._is_ended_there = False

    async def run(self) -> str:
        """Serve until the passage ends; returns why. Then `part`; nothing is carried any more."""
        tasks = [asyncio.create_task(each) for each in (self._read(), self._write(), self._make_way())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            why = next(iter(done)).result()
        finally:
            for task in [*tasks, *self._tasks]:
                task.cancel()
            for carried in self._carried.values():
                carried.close(at_once=True)
            self._carried.clear()
            self._room.set()
        return why

    def displace(self) -> None:
        """End the passage, for a newer one of the same machine."""
        self._is_displaced.set()

    async def _make_way(self) -> str:
        await self._is_displaced.wait()
        return "a newer one has taken its place"

    async def part(self) -> None:
        """Tell the other end that the passage has ended, so that it does not wait, and remove what is left of it."""
        passage = self.passage
        left = passage.names_left()
        if not self._is_ended_there:
            passage.abort()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS_MAX):
                    await self._store.put(*passage.pop())
        self._store.remove(left)

    async def carry(self, target: str, carried: Carried, first: bytes) -> None:
        """Carry a connection of this end to a target, beginning with these bytes, until one end closes it."""
        try:
            connection = self.passage.open(target)
        except LocalProtocolError:
            carried.close(at_once=True)
            return
        self._carried[connection] = carried
        self.passage.send(connection, first)
        self._changed()
        await self._pass_on(connection, carried)

    async def finish(self) -> None:
        """Write what waits, and tell the other end that the passage ends; in END_SECONDS_MAX at most."""
        self.passage.end()
        self._changed()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                while self.passage.has_news or self._pending_puts:
                    await asyncio.sleep(0.02)
        self._is_ended_there = True

    # -- objects -------------------------------------------------------------------------------------------------------

    async def _write(self) -> str:
        passage, last = self.passage, -self._every
        while True:
            await self._due(last)
            await self._puts.acquire()
            last = time.monotonic()
            name, data = passage.pop()
            if passage.waiting_bytes < BACKLOG_BYTES:
                self._room.set()
            self._pending_puts += 1
            self._begin(self._put(name, data))

    async def _due(self, last: float) -> None:
        """Return when an object is to be written; the last one was at `last`."""
        passage = self.passage
        while not passage.is_full:
            if passage.has_news:
                at = last + self._every
            elif passage.may_write:
                at = last + KEEP_SECONDS
            else:
                at = float("inf")  # The other end has gone, or the store.
            if at <= time.monotonic():
                return
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if at == float("inf") else at - time.monotonic()):
                    await self._news.wait()

    async def _put(self, name: str, data: bytes) -> None:
        try:
            await self._store.put(name, data)
        finally:
            self._pending_puts -= 1
            self._puts.release()

    def _changed(self) -> None:
        self._news.set()
        if self.passage.waiting_bytes >= BACKLOG_BYTES:
            self._room.clear()

    async def _read(self) -> str:
        passage, store = self.passage, self._store
        heard = missing = store.up_seconds
        pause = RETRY_SECONDS
        while True:
            try:
                data = await store.fetch(passage.wanted(), SEALED_BYTES_MAX)
                if data is None and store.up_seconds - missing > LOST_SECONDS:
                    missing = store.up_seconds
                    if await store.fetch(passage.wanted(1), SEALED_BYTES_MAX) is not None:
                        # Once more: it may have come between the two.
                        data = await store.fetch(passage.wanted(), SEALED_BYTES_MAX)
                        if data is None:
                            return f"object {passage.taken} was removed by somebody else"
            except OSError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            pause = RETRY_SECONDS
            if data is None:
                if store.up_seconds - heard > self._silent_seconds:
                    return f"the other end has said nothing for {self._silent_seconds:.0f} s"
                await asyncio.sleep(self._every)
                continue
            heard = missing = store.up_seconds
            name = passage.wanted()
            store.remove([name])
            try:
                events = passage.accept(data)
            except PassageError as error:
                return f"refused an object: {error}"
            self.is_heard, self.heard_at = True, time.monotonic()
            for event in events:
                match event:
                    case Opened():
                        self._early[event.connection] = bytearray()  # Before its bytes, which may come next.
                        self._begin(self._open(event))
                    case Received():
                        self._deliver(event)
                    case PassageConnectionClosed():
                        self._close(event.connection)
                    case PassageEnded():
                        self._is_ended_there = True
                        return "ended by the other end"
            self._changed()

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _open(self, event: Opened) -> None:
        """Dial for the other end."""
        assert self._dial is not None
        connection = event.connection
        try:
            carried = await self._dial(event.target)
        except (OSError, TimeoutError, ValueError):
            self._early.pop(connection, None)
            self.passage.close(connection)
            self._changed()
            return
        early = self._early.pop(connection, None)
        if early is None:  # Closed meanwhile.
            carried.close(at_once=True)
            return
        self._carried[connection] = carried
        carried.writer.write(bytes(early))
        await self._pass_on(connection, carried)

    async def _pass_on(self, connection: int, carried: Carried) -> None:
        """Read a socket into the passage until either end closes the connection."""
        try:
            while data := await carried.reader.read(PIECE_BYTES):
                self.passage.send(connection, data)
                self._changed()
                await self._room.wait()
                if self._carried.get(connection) is not carried:
                    return
        except OSError:
            pass
        if self._carried.pop(connection, None) is not None:
            self.passage.close(connection)
            self._changed()
            carried.close(at_once=True)

    def _deliver(self, event: Received) -> None:
        early, carried = self._early.get(event.connection), self._carried.get(event.connection)
        if early is not None:
            early += event.data
            is_behind = len(early) > TAKEN_BYTES_MAX
        elif carried is not None:
            carried.writer.write(event.data)
            is_behind = carried.writer.transport.get_write_buffer_size() > TAKEN_BYTES_MAX
        else:
            return
        if is_behind:
            self._early.pop(event.connection, None)
            if carried is not None:
                del self._carried[event.connection]
                carried.close(at_once=True)
            self.passage.close(event.connection)

    def _close(self, connection: int) -> None:
        self._early.pop(connection, None)
        carried = self._carried.pop(connection, None)
        if carried is not None:
            carried.close()

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@final
class IslandEnd:
    """The end of a machine whose only way to its home is the bucket; `listener` is where its daemon and hosts dial."""

    def __init__(
        self, task: BucketTask, listener: socket.socket, store: CountedRoad, tell: Callable[[str], None]
    ) -> None:
        self._task, self._listener, self._store, self._tell = task, listener, store, tell
        self._pairs = [KeyPair(*each) for each in task.pairs]
        self._run: PassageRun | None = None
        self._is_ready = asyncio.Event()
        self._accepted: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """For ever: one passage after the other."""
        server = await asyncio.start_server(self._begin, sock=self._listener, limit=2 * PIECE_BYTES)
        async with server:
            while True:
                await self._pass()

    async def _pass(self) -> None:
        task, store = self._task, self._store
        identity, pair = os.urandom(IDENTITY_BYTES), KeyPair.draw()
        hello = hello_of(identity, self._pairs[0], task.home, pair.public)
        passage = BucketPassage(identity, BoxSeal(pair.secret, task.home), is_home=False)
        run = PassageRun(passage, store, task.every, HOME_SILENT_SECONDS)
        await store.put(f"{HELLO}{identity.hex()}", hello)
        self._run = run
        self._is_ready.set()
        try:
            why = await run.run()
        finally:  # At once: a connection that comes now is one for the next passage.
            self._is_ready.clear()
            self._run = None
            store.remove([f"{HELLO}{identity.hex()}"])
        await run.part()
        if run.is_heard:
            self._tell(f"connections through the bucket are made anew: {why}")
        else:
            self._pairs = [*self._pairs[1:], self._pairs[0]]
        await asyncio.sleep(task.every)

    async def end(self) -> None:
        """Tell the home, and remove what is left."""
        if self._run is not None:
            run = self._run
            await run.finish()
            if not run.is_heard:  # Perhaps no home will ever read it.
                identity = run.passage.identity
                self._store.remove([f"{HELLO}{identity.hex()}", *run.passage.names_left()])

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _prepare(writer)
        carried = Carried(reader, writer)
        task = asyncio.create_task(self._accept(carried))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)
        task.add_done_callback(lambda done: carried.close() if not done.cancelled() else carried.close(at_once=True))

    async def _accept(self, carried: Carried) -> None:
        reader, writer = carried.reader, carried.writer
        try:
            async with asyncio.timeout(GREETING_SECONDS_MAX):
                target, first = await _greet(reader, writer)
            first = first or await reader.read(PIECE_BYTES)
        except (OSError, TimeoutError):
            first = b""
        if not first:  # One that was only tried.
            carried.close(at_once=True)
            return
        await self._is_ready.wait()
        if self._run is None:
            carried.close(at_once=True)
        else:
            await self._run.carry(target, carried, first)


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, bytes]:
    """The target of a connection, and its first bytes so far; no bytes where there is none."""
    greeting = SocksGreeting(lambda host, port: True)
    while data := await reader.read(GREETING_BYTES_MAX):
        verdict = greeting.receive(data)
        if isinstance(verdict, ToDaemon):
            return "", verdict.received
        writer.write(verdict.answer)
        if isinstance(verdict, ToHost):
            writer.write(CONNECTED)
            host = f"[{verdict.host}]" if ":" in verdict.host else verdict.host
            return f"{host}:{verdict.port}", verdict.received
        if not isinstance(verdict, AskMore):
            break
    raise ConnectionError("no target")


@final
class HomeEnd:
    """The end of a home: a passage for each machine whose hello has a key that is in `admitted`, which has of how many
    machines a key may be.

    A key may have some passages for each machine. Beyond them, one that was never heard makes way, or else the one that
    was silent for longest: its machine has begun another one, or somebody has put an old hello there again.
    """

    def __init__(self, task: BucketTask, store: CountedRoad, tell: Callable[[str], None]) -> None:
        self.admitted: Mapping[str, int] = {}
        self._task, self._store, self._tell = task, store, tell
        self._secret = task.pairs[0][1]
        self._runs: dict[bytes, asyncio.Task[None]] = {}
        self._passages: dict[bytes, PassageRun] = {}
        self._senders: dict[bytes, str] = {}
        """The keys of those that have passages."""
        self._told: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._over: dict[bytes, None] = {}
        self._hellos: dict[str, HelloContents] = {}

    async def serve(self) -> None:
        """For ever."""
        while True:
            with suppress(OSError):
                await self._look(await self._store.names())
            await asyncio.sleep(LOOK_INTERVALS * self._task.every)

    async def end(self) -> None:
        """Tell the islands, which look for the next process of this home."""
        await asyncio.gather(*(run.finish() for run in self._passages.values()))

    async def _look(self, names: list[str]) -> None:
        """Begin passages whose hellos are there, and remove what no passage goes on with."""
        now = self._store.up_seconds
        self._seen = {name: self._seen.get(name, now) for name in names}
        self._hellos = {name: hello for name, hello in self._hellos.items() if name in self._seen}
        for name in [each for each in names if each.startswith(HELLO)]:
            with suppress(OSError):  # Of this one: the store has told, and the others are greeted.
                await self._greet(name)
        for name, since in self._seen.items():
            if now - since > LEFT_SECONDS and identity_of(name) not in self._runs:
                self._store.remove([name])

    async def _greet(self, name: str) -> None:
        identity = identity_of(name)
        if identity is None or identity in self._runs or identity in self._over:
            self._store.remove([name])
            return
        hello = self._hellos.get(name)
        if hello is None:
            data = await self._store.fetch(name, HELLO_BYTES_MAX)
            if data is None:
                return
            try:
                hello = self._hellos[name] = read_hello(identity, data, self._secret)
            except ValueError:
                self._store.remove([name])
                return
        if hello.sender not in self.admitted or not self._has_room(hello.sender):
            return  # It may be admitted later; what stays is removed after a time.
        passage = BucketPassage(identity, BoxSeal(self._secret, hello.key), is_home=True)
        self._store.remove([name])
        self._senders[identity] = hello.sender
        run = PassageRun(passage, self._store, self._task.every, ISLAND_SILENT_SECONDS, self._dial)
        self._passages[identity] = run
        self._runs[identity] = asyncio.create_task(self._serve(run))

    def _has_room(self, sender: str) -> bool:
        """Whether one more passage of a key may begin now; where it has its share, one of them makes way first."""
        bound = min(PASSAGES_OF_MACHINE_MAX * self.admitted[sender], PASSAGES_OF_KEY_MAX)
        of_key = [each for each, key in self._senders.items() if key == sender]
        if len(of_key) >= bound:
            self._tell_full("key", f"a machine has {bound} passages through the bucket, and begins another one: "
                                   "the one that was silent for longest ends")  # fmt: skip
            runs = [self._passages[each] for each in of_key]
            min(runs, key=lambda run: (run.is_heard, run.heard_at)).displace()
            return False  # Until it has ended.
        if len(self._runs) >= PASSAGES_MAX:
            self._tell_full("all", f"{PASSAGES_MAX} machines are connected through the bucket; further ones wait")
            return False
        return True

    def _tell_full(self, kind: str, line: str) -> None:
        """Tell of a bound that is reached, once a minute."""
        now = time.monotonic()
        if now - self._told.get(kind, float("-inf")) >= TELL_SECONDS:
            self._told[kind] = now
            self._tell(line)

    async def _serve(self, run: PassageRun) -> None:
        identity = run.passage.identity
        try:
            await run.run()
            await run.part()
        except Exception as error:  # Of one machine's passage: those of the others go on.
            self._tell(f"a passage through the bucket has failed: {type(error).__name__}: {error}")
        finally:
            for each in (self._runs, self._passages, self._senders):
                del each[identity]
            self._over[identity] = None
            if len(self._over) > OVER_MAX:
                del self._over[next(iter(self._over))]

    async def _dial(self, target: str) -> Carried:
        """A connection to the porter of this home, or its daemon, that leads to the target."""
        async with asyncio.timeout(DIAL_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(self._task.host, self._task.port, limit=2 * PIECE_BYTES)
            _prepare(writer)
            if target:
                host, _, port = target.rpartition(":")
                name = host.strip("[]").encode()
                if not port.isdigit() or not 0 < int(port) < 1 << 16 or not 0 < len(name) < 256:
                    writer.transport.abort()
                    raise ValueError(f"no target: {target!r}")
                writer.write(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + int(port).to_bytes(2, "big"))
                answer = await reader.readexactly(len(GREETED) + len(CONNECTED))
                if answer != GREETED + CONNECTED:
                    writer.transport.abort()
                    raise ConnectionError(f"{target} cannot be reached")
        return Carried(reader, writer)


def _prepare(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _serve(line: ProcessLine, listener: socket.socket | None) -> None:
    loop, has_come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(line.fileno(), has_come.set)

    async def heard() -> Mapping[str, Any] | None:
        """The newest state that the daemon has told; None once it says no more."""
        while not (messages := line.hear()) and not line.is_over:
            has_come.clear()
            await has_come.wait()
        return messages[-1] if messages else None

    def tell(text: str) -> None:
        line.offer({"tell": text})

    def use() -> None:
        line.offer({"use": {"requests": store.requests, "bytes": store.bytes, "up_seconds": store.up_seconds}})

    state = await heard()
    if state is None:
        return
    task = BucketTask(**state["task"])
    store = CountedRoad(RoadPlace(task.text, task.every), tell)
    end = HomeEnd(task, store, tell) if listener is None else IslandEnd(task, listener, store, tell)

    async def follow(state: Mapping[str, Any] | None) -> None:
        while state is not None:
            if isinstance(end, HomeEnd):
                end.admitted = state["admitted"]
            state = await heard()

    async def count() -> None:
        while True:
            await asyncio.sleep(USE_SECONDS)
            use()

    following = asyncio.create_task(follow(state))
    tasks = [asyncio.create_task(each) for each in (end.serve(), store.removing(), count())]
    await asyncio.wait([following, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for each in tasks:
        if each.done():
            each.result()
    await end.end()
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(END_SECONDS_MAX):
            await store.remove_now()
    store.close()
    use()


def main(arguments: list[str]) -> None:
    """Serve until the daemon has gone."""
    line = serve_line("bucket", arguments[-1])
    listener = socket.socket(fileno=int(arguments[0])) if arguments[1:] else None
    asyncio.run(_serve(line, listener))
    os._exit(0)  # A thread may wait for a store that does not answer.


if __name__ == "__main__":
    main(sys.argv[1:])
