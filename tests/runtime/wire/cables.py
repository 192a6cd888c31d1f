"""Channels on loopback for tests: a loop that runs until something holds, receivers that note what comes, and cables
that can be cut, stalled and joined again."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import uvloop

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.clock import Duration, Instant, milliseconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.peers import Limits
from isthmus.runtime.wire.zmq_sockets import ZmqSockets
from tests.loops import run_until
from tests.patience import PATIENCE

SYNCER = Member(Replica("syncer", 0), 1)
LEARNERS = tuple(Member(Replica("learner", slot), 1) for slot in range(4))
MIB = 1 << 20
PATIENT = Limits(retry_min=milliseconds(10), retry_max=milliseconds(100))
"""For tests in which nobody is to be lost because the machine is busy."""
HASTY = Limits(
    heartbeat=milliseconds(50), silence_max=milliseconds(600), handshake_max=milliseconds(600),
    retry_min=milliseconds(10), retry_max=milliseconds(100),
)  # fmt: skip
RUN = {"run": "run-1", "fingerprint": "fingerprint-1"}


class JumpingClock(LoopClock):
    """The clock of a loop, which can lose time as a process does that is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lost = 0
        super().__init__(loop)

    def now(self) -> Instant:
        return Instant(super().now() + self.lost)


class End:
    """A channel, and everything that it said."""

    def __init__(self, world: World, member: Member, limits: Limits | None = None, **changes: Any) -> None:
        self.member = member
        self.items: list[tuple[Member, Parcel]] = []
        self.credit: Counter[tuple[Member, int]] = Counter()
        self.ups: list[Member] = []
        self.losses: list[tuple[Member, str]] = []
        self.snapshots: list[tuple[Member, int]] = []
        self.transfers: list[tuple[Any, ...]] = []
        self.channel = WireChannel(
            member,
            clock=world.clock,
            sockets=ZmqSockets(world.loop, changes.pop("keys", None), desk=changes.pop("desk", None)),
            limits=limits,
            watch=lambda *transfer: self.transfers.append(transfer),
            on_peer_up=self.ups.append,
            on_peer_lost=lambda peer, reason: self.losses.append((peer, reason)),
            on_snapshot=lambda peer, number: self.snapshots.append((peer, number)),
            **(RUN | changes),
        )
        self.channel.open(self)

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        self.items.append((source, parcel))

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        self.credit[target, edge] += count

    def send(self, target: Member, edge: int, item: Any, *, key: Any = None, replaces: bool = False) -> None:
        self.channel.send(target, Parcel(edge, key, item, None, 0, 8, encode(item)), replaces=replaces)

    def got(self, edge: int) -> list[Any]:
        return [parcel.item for _, parcel in self.items if parcel.edge == edge]

    def count(self, name: str) -> int:
        return self.channel.statistics().get(name, 0)


class World:
    """One loop, and everything on it."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.clock = JumpingClock(self.loop)
        self.ends: list[End] = []
        self.cables: list[Cable] = []
        self.channels: list[WireChannel] = []
        self.failures: list[str] = []
        self.loop.set_exception_handler(lambda loop, context: self.failures.append(str(context)))

    def end(self, member: Member, limits: Limits | None = None, **changes: Any) -> End:
        self.ends.append(End(self, member, limits, **changes))
        return self.ends[-1]

    def channel(self, member: Member, limits: Limits, **changes: Any) -> WireChannel:
        """A channel that says nothing of itself, and is closed with the world."""
        sockets = ZmqSockets(self.loop, changes.pop("keys", None), desk=changes.pop("desk", None))
        made = WireChannel(member, clock=self.clock, sockets=sockets, limits=limits, **(RUN | changes))
        self.channels.append(made)
        return made

    def cable(self, endpoints: Endpoints) -> Cable:
        self.cables.append(Cable(self, endpoints))
        return self.cables[-1]

    def until(self, holds: Callable[[], bool], seconds_max: float = PATIENCE) -> None:
        """Run the loop until something holds."""
        run_until(self.loop, lambda: self.failures or holds(), seconds_max)
        assert not self.failures, self.failures

    def pass_time(self, duration: Duration) -> None:
        """Run the loop for a while."""
        until = self.clock.now() + duration
        self.until(lambda: self.clock.now() >= until)

    def close(self) -> None:
        for end in self.ends:
            end.channel.close()
        for channel in self.channels:
            channel.close()
        for cable in self.cables:
            cable.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        assert not self.failures, self.failures


class Cable:
    """Two TCP servers between a dialler and the real `endpoints`. `carried` counts bytes on the data side."""

    def __init__(self, world: World, endpoints: Endpoints) -> None:
        self._loop = world.loop
        self._endpoints = endpoints
        self._halves: set[Half] = set()
        self.stalled: set[str] = set()
        self.carried = 0
        self.connections = 0
        self.is_down = False
        self._servers = {name: self._serve(name) for name in ("control", "data")}
        ports = {name: server.sockets[0].getsockname()[1] for name, server in self._servers.items()}
        here = (f"tcp://127.0.0.1:{ports[name]}" for name in ("control", "data"))
        self.endpoints = Endpoints(*here, endpoints.key)

    def _serve(self, name: str) -> asyncio.Server:
        return self._loop.run_until_complete(
            self._loop.create_server(lambda: Half(self, name, None), "127.0.0.1", 0, family=socket.AF_INET)
        )

    def join(self, half: Half) -> None:
        self._halves.add(half)
        if self.is_down:
            half.abort()
        elif half.other is None:
            self.connections += 1
            port = int(getattr(self._endpoints, half.name).rpartition(":")[2])
            self._loop.create_task(self._reach(half, port))

    async def _reach(self, half: Half, port: int) -> None:
        try:
            await self._loop.create_connection(lambda: Half(self, half.name, half), "127.0.0.1", port)
        except OSError:
            half.abort()

    def cut(self) -> None:
        """End every connection, in whatever state."""
        for half in list(self._halves):
            half.abort()

    def leave(self, half: Half) -> None:
        self._halves.discard(half)

    def stall(self, *names: str) -> None:
        """Carry nothing on these sides, without ending a connection."""
        self.stalled = set(names)
        for half in self._halves:
            half.follow()

    def close(self) -> None:
        self.is_down = True
        self.cut()
        for server in self._servers.values():
            server.close()


class Half(asyncio.Protocol):
    """One TCP connection of a cable."""

    def __init__(self, cable: Cable, name: str, other: Half | None) -> None:
        self.name = name
        self.is_dialling = other is None
        self.other = other
        self._cable = cable
        self._transport: Any = None
        self._early: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self.other is not None:
            self.other.meet(self)
        self._cable.join(self)
        self.follow()

    def meet(self, other: Half) -> None:
        self.other = other
        early, self._early = self._early, []
        for data in early:
            other.write(data)

    def data_received(self, data: bytes) -> None:
        if self.name == "data":
            self._cable.carried += len(data)
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.follow()

    def follow(self) -> None:
        """Read or not, as the cable says."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.name in self._cable.stalled:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._cable.leave(self)
        if self.other is not None:
            self.other.abort()


def pair(world: World, limits: Limits | None = None) -> tuple[End, End, Cable]:
    """A syncer that listens, a learner that dials it, and the cable between them."""
    syncer, learner = world.end(SYNCER, limits), world.end(LEARNERS[0], limits)
    cable = world.cable(syncer.channel.bind("tcp://127.0.0.1:0"))
    syncer.channel.expect(LEARNERS[0])
    learner.channel.connect(SYNCER, cable.endpoints)
    return syncer, learner, cable


def connected(world: World, limits: Limits | None = None) -> tuple[End, End, Cable]:
    """The same, once both are up."""
    syncer, learner, cable = pair(world, limits)
    world.until(lambda: bool(syncer.ups and learner.ups))
    return syncer, learner, cable


def floats(mib: int, fill: float = 0.0) -> Any:
    """An array of so many MiB."""
    return np.full(mib * MIB // 4, fill, np.float32)
