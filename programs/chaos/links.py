"""The links between the hosts of a run, where faults can be inflicted on them: a SOCKS5 proxy on loopback.

Learners and the evaluator dial all other hosts through this proxy if the environment names it; so all of their traffic
passes here. The kernel tells which host a connection belongs to: the socket's inode, and the process that has it. Each
host has a `Way`, with conditions for both directions that hold for all its connections together, and counts of the
bytes that passed and were held up.

A lost segment costs the time that TCP takes to send it again, as in the simulator (`runtime.sim.faults.Lose`): bytes
are late, in order, and none is missing. The same holds for a way that is mute for a while.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 16_384
"""Bytes of a read: eleven segments."""
SEGMENT_BYTES: Final = 1_448
AGAIN_SECONDS: Final = 0.2
"""Time until TCP sends a lost segment again: the minimum of Linux."""
HELD_BYTES_MAX: Final = 1 << 20
"""Limit in one direction of a connection; beyond it nothing is read, as with a socket's buffer."""
LOOK_SECONDS: Final = 0.01
START_SECONDS_MAX: Final = 10.0
_CONNECT: Final = b"\x05\x01\x00"
_IPV4, _NAME, _IPV6 = 1, 3, 4
_DONE: Final = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
_REFUSED: Final = b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"


@dataclass(slots=True)
class Conditions:
    """The conditions of a way: thousands of bits a second (None: unlimited), additional latency in seconds, the share
    of lost segments, whether nothing passes."""

    kbits: float | None = None
    latency: float = 0.0
    share: float = 0.0
    is_mute: bool = False


@dataclass(slots=True)
class Way:
    """The way of one host to all others. Counts: `passed_bytes` in both directions, `held_bytes` of those that waited
    for any condition, `lost_segments`."""

    conditions: Conditions
    passed_bytes: int = 0
    held_bytes: int = 0
    lost_segments: int = 0
    free_at: dict[str, float] = field(default_factory=dict)
    """Direction -> the time at which the bytes sent before have passed."""


class Links:
    """A proxy in a thread of its own; `owner_of(pid)` names the host of a process, and `usual` is how ways are at
    first."""

    def __init__(self, owner_of: Callable[[int], str], usual: Conditions) -> None:
        self._owner_of, self._usual = owner_of, usual
        self._ways: dict[str, Way] = {}
        self._rng = random.Random("links")
        self._loop = asyncio.new_event_loop()
        self._is_open = threading.Event()
        self.address = ""
        self._thread = threading.Thread(target=self._serve, name="links", daemon=True)
        self._thread.start()
        if not self._is_open.wait(START_SECONDS_MAX):
            raise OSError("the proxy on loopback did not begin")

    def way(self, host: str) -> Way:
        """The way of a host."""
        usual = self._usual
        made = Way(Conditions(usual.kbits, usual.latency, usual.share, usual.is_mute))
        return self._ways.setdefault(host, made)

    def close(self) -> None:
        """End every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        self._is_open.set()
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(LOOK_SECONDS))  # What was just accepted begins: it can be closed.
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # Completes the closing of connections.
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: SOCKS5 without a password, then bytes both ways."""
        try:
            # Cancelled at the end: asyncio's streams would log the error if it propagated.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                _, port = writer.get_extra_info("peername")[:2]
                way = self.way(self._owner_of(pid_of(port)))
                await self._connect(way, await _greeted(reader, writer), reader, writer)
        finally:
            writer.close()

    async def _connect(
        self, way: Way, endpoint: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Dial on behalf of a client, and pass bytes until one of both hangs up."""
        try:
            there, sending = await asyncio.open_connection(*endpoint)
        except OSError:
            writer.write(_REFUSED)
            return
        with closing(sending):
            writer.write(_DONE)
            for each in (writer, sending):
                each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            both = [
                asyncio.ensure_future(self._pass(way, "up", reader, sending)),
                asyncio.ensure_future(self._pass(way, "down", there, writer)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way_of_one in both:
                    way_of_one.cancel()
                await asyncio.gather(*both, return_exceptions=True)  # Is itself cancelled by `close`, at times.

    async def _pass(self, way: Way, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes of one direction of a connection, as late as the conditions of the way have it."""
        held: deque[tuple[float, bytes]] = deque()
        news = asyncio.Event()
        sender = asyncio.ensure_future(self._send(way, held, news, writer))
        due = 0.0
        try:
            while data := await reader.read(CHUNK_BYTES):
                while sum(len(each) for _, each in held) > HELD_BYTES_MAX:
                    await asyncio.sleep(LOOK_SECONDS)
                due = max(due, self._due(way, direction, len(data)))
                held.append((due, data))
                news.set()
            while held:
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            sender.cancel()

    def _due(self, way: Way, direction: str, size: int) -> float:
        """The time at which bytes that arrive now are delivered."""
        now, told = self._loop.time(), way.conditions
        due = now + told.latency
        if told.kbits is not None:
            free = max(now, way.free_at.get(direction, 0.0)) + size * 8 / (1e3 * told.kbits)
            way.free_at[direction] = free
            due = free + told.latency
        if told.share:
            lost = sum(self._rng.random() < told.share for _ in range(-(-size // SEGMENT_BYTES)))
            way.lost_segments += lost
            due += AGAIN_SECONDS * lost
        return due

    async def _send(
        self, way: Way, held: deque[tuple[float, bytes]], news: asyncio.Event, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while True:
                await news.wait()
                news.clear()
                while held:
                    due, data = held[0]
                    late = due - self._loop.time()
                    is_held = late > 0 or way.conditions.is_mute
                    if late > 0:
                        await asyncio.sleep(late)
                    while way.conditions.is_mute:
                        await asyncio.sleep(LOOK_SECONDS)
                    writer.write(data)
                    await writer.drain()
                    held.popleft()
                    way.passed_bytes += len(data)
                    way.held_bytes += len(data) * is_held


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
    """The address and port that a client requests (RFC 1928); OSError for anything but a CONNECT."""
    version, count = await reader.readexactly(2)
    await reader.readexactly(count)
    writer.write(b"\x05\x00")
    request = await reader.readexactly(4)
    if version != 5 or request[:3] != _CONNECT:
        raise OSError("no CONNECT of SOCKS5")
    if request[3] == _NAME:
        (size,) = await reader.readexactly(1)
        host = (await reader.readexactly(size)).decode("ascii", "replace")
    else:
        host = str(ipaddress.ip_address(await reader.readexactly(4 if request[3] == _IPV4 else 16)))
    return host, int.from_bytes(await reader.readexactly(2), "big")


def pid_of(port: int) -> int:
    """The process whose TCP socket on loopback has this port; 0 if no accessible process has it."""
    local = f":{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(local) and row[9] != "0"}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and inodes & set(_open_files(path / "fd")):
            return int(path.name)
    return 0


def _open_files(folder: Path) -> Iterator[str]:
    """The targets of a process's descriptors, as far as they are accessible."""
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(folder / name)
