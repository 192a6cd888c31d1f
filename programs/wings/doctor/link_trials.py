"""Trials of the link between two daemons, for `isthmus doctor --link`: bandwidth, round trip and loss, both ways.

Decides who may have one, how many there are at once, how much each sends, and for how long. An operator has a machine
measure; the other end may be any machine that admits this one, since hosts of a run would meet in the same way.

Theory of operation. The *opener* listens for one peer as a host does, with a channel of its own, and tells the other
daemon where; that one, the *dialler*, dials it, straight or through the porter, sends some small items, whose arrivals
are the round trip, and then for PUSH_SECONDS larger ones, a few under way at once, which grow as long as they arrive
quickly. Then it tells the opener to do the same, which answers with what it has measured. Loss is the share of TCP's
segments that the kernel sent again on these connections, at the side that sent them; through a porter they are others',
so that it is unknown. Everything is on the loop of the daemon, as its links are.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

import numpy as np

from isthmus.programs.engine.cluster.cluster_file import checked_address
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.request.spec import is_one_port
from isthmus.programs.wings.doctor import tcp_info
from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import Encoded, encode
from isthmus.runtime.system import addresses
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.wire import loopback_marks
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.peers import Limits
from isthmus.runtime.wire.security_keys import Keyring, is_loopback
from isthmus.runtime.wire.zmq_sockets import ZmqSockets

OPEN_TRIAL: Final = "open-link-trial"
MEASURE: Final = "measure-link"
OPENER: Final = Member(Replica("link", 0), 1)
DIALLER: Final = Member(Replica("link", 1), 1)
TRIAL_SECONDS: Final = 9.0
"""A trial as a whole: the command says ten."""
PUSH_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 1.0
"""For what is under way at the end of a push."""
PUSH_BYTES_MAX: Final = 256 << 20
"""In one direction of a trial: half a second of 4 Gbit/s."""
PAUSE_SECONDS: Final = 5.0
"""Between two trials that one machine opens here: at most a twentieth of a day's traffic of a fast link."""
CALLERS_MAX: Final = 256
PINGS: Final = 8
PING_SECONDS: Final = 0.05
SIZES: Final = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Of items: the least arrives within a second at 130 kbit/s, the largest is a chunk of the wire."""
AHEAD: Final = 4
"""Items under way: 16 MiB fill a link of 1 Gbit/s whose round trip is 130 ms."""
QUICK_NS: Final = 50_000_000
"""An item that takes less, beside two round trips, is followed by larger ones."""
WARM_SHARE: Final = 0.3
"""The share of a push in which TCP finds its rate, which does not count where enough follows."""
PING, LOAD, GO, DONE = range(4)
"""The edges of a trial."""
_LIMITS: Final = Limits(heartbeat=milliseconds(50))
_FINGERPRINT: Final = "link"


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link: `bytes` arrived within `seconds` and were `bytes_per_second`; None where that was not
    measured. Of `segments` of TCP so many were `resent`; None where others share the connection."""

    bytes: int
    seconds: float
    bytes_per_second: float | None
    round_trip_seconds: float | None
    segments: int | None
    resent: int | None


def rate(arrivals: list[tuple[int, int]], begun: int) -> float | None:
    """Bytes a second of items that `arrivals`, (nanoseconds, bytes), say; None without two of them.

    The first ones do not count, where enough follow: TCP finds its rate with them.
    """
    if len(arrivals) < 2:
        return None
    arrivals = sorted(arrivals)
    warm = begun + WARM_SHARE * (arrivals[-1][0] - begun)
    first = next(number for number, (at, _) in enumerate(arrivals) if at >= warm)
    first = min(first, len(arrivals) - 2)
    took = arrivals[-1][0] - arrivals[first][0]
    return sum(size for _, size in arrivals[first + 1 :]) / (max(took, 1) / 1e9)


@final
class TrialEnd:
    """One end of a trial: `member` on one side of a channel that is named `run`. `machine` is the other's, if known."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, keys: Keyring | None, member: Member, run: str, machine: str | None
    ) -> None:
        self._clock = LoopClock(loop)
        self._peer = DIALLER if member == OPENER else OPENER
        self._arrivals: list[tuple[int, int]] = []
        self._pings: list[int] = []
        self._is_quick = False
        self._changed, self.is_up, self.is_asked, self.is_gone = (asyncio.Event() for _ in range(4))
        self.result: asyncio.Future[Any] = loop.create_future()
        self.reason = ""
        self.is_relayed = False
        """Whether a porter passes on what crosses, as the end says that has dialled."""
        self._encoded: dict[int, Encoded] = {}
        self.channel = WireChannel(
            member,
            clock=self._clock,
            sockets=ZmqSockets(loop, keys),
            run=run,
            fingerprint=_FINGERPRINT,
            limits=_LIMITS,
            watch=self._carried,
            on_peer_up=lambda peer: self.is_up.set(),
            on_peer_lost=self._lost,
            machine_of=lambda member: machine,
        )
        self.channel.open(self)

    def close(self) -> None:
        """Hang up; idempotent."""
        self.channel.close()
        self.result.cancel()

    # -- the receiver of the channel -----------------------------------------------------------------------------------

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        if parcel.edge == GO:
            self.is_relayed = bool(parcel.item)
            self.is_asked.set()
        elif parcel.edge == DONE and not self.result.done():
            self.result.set_result(parcel.item)

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """Items of a trial need no credit but the channel's."""

    # -- measuring -----------------------------------------------------------------------------------------------------

    async def push(self, local_port: int | None, remote_port: int | None) -> Direction:
        """Measure the direction from here; of a connection the ports that are its alone, None where none is."""
        await self._ping()
        begun, size_at, sent, sent_bytes = self._clock.now(), 0, 0, 0
        until = begun + round(PUSH_SECONDS * 1e9)
        while self._clock.now() < until and sent_bytes < PUSH_BYTES_MAX:
            while sent - len(self._arrivals) < AHEAD and sent_bytes < PUSH_BYTES_MAX:
                self._send(LOAD, SIZES[size_at])
                sent, sent_bytes = sent + 1, sent_bytes + SIZES[size_at]
            self._is_quick = False
            await self._change((until - self._clock.now()) / 1e9)
            size_at = min(size_at + self._is_quick, len(SIZES) - 1)
        drained = self._clock.now() + round(DRAIN_SECONDS * 1e9)
        while len(self._arrivals) < sent and self._clock.now() < drained:
            await self._change((drained - self._clock.now()) / 1e9)
        arrived = sum(size for _, size in self._arrivals)
        took = (max((at for at, _ in self._arrivals), default=self._clock.now()) - begun) / 1e9
        segments, resent = _segments(local_port, remote_port)
        trip = min(self._pings) / 1e9 if self._pings else None
        return Direction(arrived, took, rate(self._arrivals, begun), trip, segments, resent)

    def tell(self, edge: int, item: Any) -> None:
        """Send an item to the other end."""
        encoded = encode(item)
        self.channel.send(self._peer, Parcel(edge, None, item, None, 0, encoded.size_bytes, encoded), replaces=False)

    async def _ping(self) -> None:
        """The round trip: of small items, which arrive and are told so with the next heartbeat, less its delay."""
        for _ in range(PINGS):
            self.tell(PING, None)
            await asyncio.sleep(PING_SECONDS)
        until = self._clock.now() + round(DRAIN_SECONDS * 1e9)
        while not self._pings and self._clock.now() < until:
            await self._change((until - self._clock.now()) / 1e9)

    def _send(self, edge: int, size: int) -> None:
        encoded = self._encoded.get(size)
        if encoded is None:
            encoded = self._encoded[size] = encode(np.frombuffer(os.urandom(size), np.uint8))
        self.channel.send(self._peer, Parcel(edge, None, None, None, 0, size, encoded), replaces=False)

    async def _change(self, seconds_max: float) -> None:
        """Wait until something has arrived at the other end, or for so long."""
        self._changed.clear()
        try:
            async with asyncio.timeout(max(0.0, seconds_max)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _carried(
        self, edge: int, source: Member, target: Member, size_bytes: int, begun: Instant, arrived: Instant
    ) -> None:
        if edge == PING:
            self._pings.append(arrived - begun)
        elif edge == LOAD:
            self._arrivals.append((arrived, size_bytes))
            self._is_quick |= arrived - begun < QUICK_NS + 2 * min(self._pings, default=0)
        self._changed.set()

    def _lost(self, peer: Member, reason: str) -> None:
        self.reason = reason
        if self.is_up.is_set():
            self.is_gone.set()


def _segments(local_port: int | None, remote_port: int | None) -> tuple[int | None, int | None]:
    """(segments, resent) of the connections with one of these ports; None where none is known."""
    if local_port is None and remote_port is None:
        return None, None
    known = [
        each
        for each in tcp_info.connections()
        if local_port in (None, each.local[1]) and remote_port in (None, each.remote[1])
    ]
    return (sum(each.segments for each in known), sum(each.resent for each in known)) if known else (None, None)


def _port(endpoint: str) -> int:
    return int(addresses.host_and_port(endpoint)[1])


@final
class LinkTrials(DaemonService):
    """The trials of a daemon, one at a time."""

    messages = MappingProxyType({OPEN_TRIAL: "open", MEASURE: "measure"})
    home_messages = MappingProxyType({MEASURE: "answer"})

    def __init__(self) -> None:
        self._end: TrialEnd | None = None
        self._listening: list[str] = []
        self._mark: socket.socket | None = None
        self._opened_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancel: Callable[[], object] = lambda: None

    def start(self, machine: ServedMachine) -> None:
        self._machine, self._name, self._keys, self._loop = machine, machine.name, machine.keys, machine.loop

    def listening(self) -> list[str]:
        """The endpoints of the trial that goes on."""
        return self._listening

    def close(self) -> None:
        """End the trial that goes on."""
        self._cancel()
        if self._end is not None:
            self._end.close()
        if self._mark is not None:
            self._mark.close()
        self._end, self._mark, self._listening = None, None, []
        present = asyncio.current_task(self._loop)
        for task in self._tasks:
            if task is not present:
                task.cancel()

    def open(self, message: Message) -> Message:
        """Open a trial for a machine: the answer says where it has to dial. ConfigError where there is one already."""
        caller = self._machine.caller()
        name = str(message["name"]) if caller is None else caller
        doing = f"Opening a trial of the link from {name} at the daemon {self._name!r}"
        since = time.monotonic() - self._opened_at.get(name, float("-inf"))
        if since < PAUSE_SECONDS:
            do = f"Try again in {PAUSE_SECONDS:.0f} s."
            raise ConfigError(doing, f"one in {PAUSE_SECONDS:.0f} s", f"the last one {since:.1f} s ago", do)
        offer = self._offer(name, doing)
        self._opened_at[name] = time.monotonic()
        if len(self._opened_at) > CALLERS_MAX:
            del self._opened_at[next(iter(self._opened_at))]
        return offer

    async def measure(self, message: Message) -> Message:
        """Measure the link to a peer, both ways: one that has an address, or one that is linked here."""
        peer = HomeAddress(**{name: str(value) for name, value in dict(message["peer"]).items()})
        doing = f"Measuring the link from {self._name} to {peer.name}"
        if peer.address:
            checked_address(peer.address, doing, has_keys=self._keys is not None)
            offer = await self._asked(peer, doing)
            there, back = await self._dial(offer, peer, doing)
            return self._measured(peer.name, there, back, offer)
        if not self._machine.neighbours.links.is_up(peer.name):
            do = "Write its address into the cluster file, or start its daemon and let it join."
            raise ConfigError(doing, f"an address of {peer.name}, or its link to {self._name}", "neither", do)
        offer = self._offer(peer.name, doing)
        try:
            request = {"type": MEASURE, "offer": offer}
            answer = await self._machine.neighbours.links.request(peer.name, request, TRIAL_SECONDS)
            return self._measured(peer.name, dict(answer["back"]), dict(answer["there"]), answer)
        finally:
            self.close()

    async def answer(self, home: HomeAddress, message: Message) -> Message:
        """A home that this machine is linked to has it dial a trial there."""
        offer = dict(message["offer"])
        there, back = await self._dial(offer, home, f"Measuring the link from {self._name} to {home.name}")
        return {"type": "measured", "there": there, "back": back, "is_relayed": offer["is_relayed"]}

    def _measured(
        self, peer: str, there: Mapping[str, Any], back: Mapping[str, Any], told: Mapping[str, Any]
    ) -> Message:
        ends = {"source": self._name, "target": peer}, {"source": peer, "target": self._name}
        directions = [{**ends[0], **there}, {**ends[1], **back}]
        return {"type": "measured", "is_relayed": bool(told["is_relayed"]), "directions": directions}

    # -- both ends -----------------------------------------------------------------------------------------------------

    def _begin(self, member: Member, run: str, machine: str | None, doing: str) -> TrialEnd:
        if self._end is not None:
            do = f"Try again in {TRIAL_SECONDS:.0f} s."
            raise ConfigError(doing, f"no other trial at the daemon {self._name!r}", "one that goes on", do)
        self._end = TrialEnd(self._loop, self._keys, member, run, machine)
        self._cancel = self._loop.call_later(TRIAL_SECONDS + DRAIN_SECONDS, self.close).cancel
        return self._end

    def _offer(self, name: str, doing: str) -> Message:
        """Listen for one machine, and answer what it asks for."""
        run = secrets.token_hex(16)
        end, is_inside = self._begin(OPENER, run, name, doing), is_one_port(self._machine.config.ports)
        host, _ = addresses.host_and_port(self._machine.endpoint)
        try:
            where = "tcp://127.0.0.1:0" if is_inside else f"tcp://{host}:{self._machine.config.ports or 0}"
            endpoints = end.channel.bind(where)
        except ConfigError:
            self.close()
            raise
        self._listening = list(endpoints[:2])
        if not is_inside:
            self._mark = loopback_marks.mark(run, endpoints.control)
        end.channel.expect(DIALLER)
        task = self._loop.create_task(self._serve(end, _port(endpoints.data)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"type": "trial", "name": self._name, "run": run, "endpoints": self._listening,
                "has_porter": self._machine.config.has_porter}  # fmt: skip

    async def _serve(self, end: TrialEnd, port: int) -> None:
        """The opener's part: push back once it is asked to."""
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                await end.is_asked.wait()
                end.tell(DONE, asdict(await end.push(None if end.is_relayed else port, None)))
                await end.is_gone.wait()
        except TimeoutError:
            return
        finally:
            if self._end is end:
                self.close()

    async def _asked(self, peer: HomeAddress, doing: str) -> Message:
        """Another daemon's offer of a trial; ConfigError, which names it, where it refuses or cannot be reached."""
        call = partial(
            ask,
            peer.address,
            {"type": OPEN_TRIAL, "name": self._name},
            DRAIN_SECONDS * 3,
            keys=self._keys,
            server_key=peer.public_key,
        )
        try:
            answer = await self._loop.run_in_executor(None, call)
        except ConfigError as error:
            raise ConfigError.of([Fault(f"{doing}: {each[0]}", *each[1:]) for each in error.faults]) from None
        if answer is None:
            do = f"Look at its daemon, and at the network between: isthmus doctor on {self._name}."
            raise ConfigError(doing, f"an answer of {peer.name} at {peer.address}", "none", do)
        if answer["type"] == "refused":
            raise ConfigError.of([Fault(*map(str, fault)) for fault in answer["faults"]])
        if peer.name and answer["name"] != peer.name:
            do = f"Write name = {answer['name']!r} in the cluster file, or the address of {peer.name!r}."
            raise ConfigError(doing, f"the name {peer.name!r}", repr(answer["name"]), do)
        return answer

    async def _dial(self, offer: Message, peer: HomeAddress, doing: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The dialler's part: both directions, from here and back."""
        end, there = self._begin(DIALLER, str(offer["run"]), None, doing), None
        try:
            control, data = map(str, offer["endpoints"])
            porter = peer.address if offer["has_porter"] else ""
            inside = bool(porter) and is_loopback(control) and not loopback_marks.is_here(str(offer["run"]), control)
            end.channel.connect(OPENER, Endpoints(control, data, peer.public_key, porter, inside))
            async with asyncio.timeout(TRIAL_SECONDS):
                await end.is_up.wait()
                offer["is_relayed"] = bool(end.channel.reachability().relayed)
                there = asdict(await end.push(None, None if offer["is_relayed"] else _port(data)))
                end.tell(GO, offer["is_relayed"])
                back = dict(await end.result)
        except TimeoutError:
            if there is not None:
                return there, asdict(Direction(0, TRIAL_SECONDS, None, None, None, None))
            reason = end.reason or "no connection, or one that was too slow to be measured"
            do = "Look at the network between: isthmus doctor --cluster FILE."
            raise ConfigError(doing, f"a trial within {TRIAL_SECONDS:.0f} s", reason, do) from None
        finally:
            self.close()
        return there, back
