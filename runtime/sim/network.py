"""The network of a universe: simulated sockets in place of ZeroMQ over TCP, and the conditions of the paths.

It decides when a message of one side arrives at the other, and when a connection ends; it knows nothing of the
messages. `Weather` has latencies, bandwidths and cuts of the paths between machines, from the seed and the present
faults; within one machine they are always fine.

Theory of operation. A connection has two pipes, one for each direction. Messages arrive complete and in order, after
the time that their bytes take at the pace of the link, and the latency of the path; the two sockets of a peer are two
connections, which overtake each other. While the path is *cut* nothing arrives: messages wait, as in the buffers of
TCP, and arrive when the path is back, unless that takes UNHEARD; then both ends give the connection up. A *reset* ends
it at once, with everything under way. An end that is closed notifies the other one, which takes time, too; what it had
sent is lost, or still arrives before that where it `lingers`: a kernel continues to send for a process that has ended.
So messages of a connection may arrive after those of a later one of the same two.

The end of a connection is reported as by ZeroMQ: a socket that has dialled calls `gone`, a bound one only notices that
sending fails. `run` of a host makes its callbacks, now, later, or never: it may be paused, or dead.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from isthmus.runtime.clock import Clock, Duration, Instant, milliseconds, seconds
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.wire.peers import Gone, OnMessage, Purpose, Reached
from isthmus.runtime.wire.protocol_messages import TOKEN_BYTES

LOOPBACK: Final = milliseconds(0.05)
RESENT: Final = milliseconds(200)
"""The shortest time after which Linux retransmits a lost segment."""
LOSSES_MAX: Final = 5
"""Losses in a row of one message."""


@dataclass(frozen=True, slots=True)
class Climate:
    """Network conditions without faults: a message takes `latency` plus up to `jitter` seconds, at `gbits` a second."""

    latency: float = 0.001
    jitter: float = 0.0005
    gbits: float = 2.0


class Weather:
    """The state of all paths between machines.

    `clogs`, `losses`, `paces` (in Gbit/s) are by machine, `cuts` and `mutes` (which let only messages between daemons
    through) by ordered pair of machines; each with the number of the fault that made it, so that it ends with the last
    one.
    """

    def __init__(self, climate: Climate, seed: int) -> None:
        self.climate = climate
        self.clogs: dict[str, dict[int, Duration]] = {}
        self.losses: dict[str, dict[int, float]] = {}
        self.paces: dict[str, dict[int, float]] = {}
        self.cuts: dict[tuple[str, str], set[int]] = {}
        self.mutes: dict[tuple[str, str], set[int]] = {}
        self._seed = seed
        self._rngs: dict[tuple[str, str], random.Random] = {}

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one machine to another."""
        return bool(self.cuts.get((source, target)))

    def is_mute(self, source: str, target: str) -> bool:
        """Whether nothing gets from the hosts of one machine to those of another."""
        return self.is_cut(source, target) or bool(self.mutes.get((source, target)))

    def latency(self, source: str, target: str) -> Duration:
        if source == target:
            return LOOPBACK
        rng = self._rng(source, target)
        took = seconds(self.climate.latency + self.climate.jitter * rng.random())
        for machine in (source, target):
            took = Duration(took + max(self.clogs.get(machine, {}).values(), default=0))
            share = max(self.losses.get(machine, {}).values(), default=0.0)
            lost = 0
            while share and lost < LOSSES_MAX and rng.random() < share:
                lost += 1
            took = Duration(took + lost * RESENT)
        return took

    def pace(self, source: str, target: str, size_bytes: int) -> Duration:
        if source == target:
            return Duration(0)
        slow = [pace for machine in (source, target) for pace in self.paces.get(machine, {}).values()]
        return Duration(round(8 * size_bytes / min([self.climate.gbits, *slow])))

    def clear(self) -> None:
        """End all faults."""
        self.clogs.clear()
        self.losses.clear()
        self.paces.clear()
        self.cuts.clear()
        self.mutes.clear()

    def _rng(self, source: str, target: str) -> random.Random:
        """Each path draws from a stream of its own, so that one path's messages do not change another's."""
        rng = self._rngs.get((source, target))
        if rng is None:
            rng = random.Random(zlib.crc32(f"{self._seed} {source} {target}".encode()))
            self._rngs[source, target] = rng
        return rng


REPEATED_AFTER: Final = seconds(0.3)


class ControlLinks:
    """The links of one universe. `losses` and `repeats` are shares of messages, by machine and number of a fault."""

    def __init__(self, clock: VirtualClock, weather: Weather, addresses: Mapping[str, str], seed: int) -> None:
        self.losses: dict[str, dict[int, float]] = {}
        self.repeats: dict[str, dict[int, float]] = {}
        self._clock, self._weather, self._addresses = clock, weather, addresses
        self._rng = random.Random(f"{seed} control links")
        self._last: dict[tuple[str, str], Instant] = {}

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Call `arrive` when a message from one machine reaches another."""
        here, there = self._addresses[source], self._addresses[target]
        if self._weather.is_cut(here, there) or self._happens(self.losses, source, target):
            return
        at = Instant(self._clock.now() + self._weather.latency(here, there))
        at = self._last[source, target] = max(at, self._last.get((source, target), at))
        self._clock.call_at(at, arrive)
        if self._happens(self.repeats, source, target):
            self._clock.call_at(Instant(at + REPEATED_AFTER), arrive)

    def _happens(self, shares: Mapping[str, Mapping[int, float]], *machines: str) -> bool:
        share = max((each for name in machines for each in shares.get(name, {}).values()), default=0.0)
        return bool(share) and self._rng.random() < share


UNHEARD: Final = seconds(5)
"""As on real sockets: TCP gives up when nothing is acknowledged for so long."""

Message = list[Bytes] | None
"""A pipe's message: frames, or None for the end of the sending side."""


class PathConditions(Protocol):
    """The present conditions of the path from one machine to another."""

    def is_mute(self, source: str, target: str) -> bool:
        """Whether nothing arrives."""

    def latency(self, source: str, target: str) -> Duration:
        """The time that an empty message takes; called once for each message."""

    def pace(self, source: str, target: str, size_bytes: int) -> Duration:
        """The time for which `size_bytes` occupy the link."""


class Pipe:
    """One direction of a connection."""

    def __init__(
        self,
        clock: Clock,
        weather: PathConditions,
        source: str,
        target: str,
        arrive: Callable[[Message], None],
        give_up: Callable[[], None],
    ) -> None:
        self._clock, self._weather, self._arrive, self._give_up = clock, weather, arrive, give_up
        self._source, self._target = source, target
        self._waiting: deque[tuple[Instant, Message]] = deque()
        self._arrives_last = self._is_free_at = Instant(0)
        self._cancel: Callable[[], None] | None = None
        self._is_stuck = False

    def put(self, message: Message) -> None:
        now, weather = self._clock.now(), self._weather
        took = weather.pace(self._source, self._target, sum(map(len, message or [])))
        self._is_free_at = Instant(max(self._is_free_at, now) + took)
        latency = weather.latency(self._source, self._target)
        self._arrives_last = Instant(max(self._arrives_last, self._is_free_at + latency))
        self._waiting.append((self._arrives_last, message))
        if self._cancel is None:
            self._wait()

    def __len__(self) -> int:
        """The number of messages under way."""
        return len(self._waiting)

    def changed(self) -> None:
        """Resume stuck messages, if the path allows it."""
        if self._is_stuck and not self._weather.is_mute(self._source, self._target):
            self._is_stuck = False
            self._stop()
            self._wait()

    def close(self) -> None:
        """Drop the messages under way."""
        self._waiting.clear()
        self._stop()

    def _wait(self) -> None:
        if self._waiting:
            self._cancel = self._clock.call_at(self._waiting[0][0], self._deliver)

    def _stop(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _deliver(self) -> None:
        self._cancel = None
        if self._weather.is_mute(self._source, self._target):
            self._is_stuck = True
            self._cancel = self._clock.call_at(Instant(self._clock.now() + UNHEARD), self._give_up)
            return
        _, message = self._waiting.popleft()
        self._arrive(message)
        if self._cancel is None:
            self._wait()


PORT_FIRST: Final = 1024

Run = Callable[[Callable[[], None]], None]


class Ether:
    """All sockets of a world. `lingers` is called for each end that closes: whether messages under way arrive."""

    def __init__(self, clock: Clock, weather: PathConditions, lingers: Callable[[], bool] = lambda: False) -> None:
        self.clock, self.weather, self.lingers = clock, weather, lingers
        self.connections: dict[Connection, None] = {}
        self._of: dict[str, dict[Connection, None]] = {}
        self.listeners: dict[str, EtherSocket] = {}
        self._numbers = 0

    def number(self) -> int:
        """A number that was not used before."""
        self._numbers += 1
        return self._numbers

    def of(self, machine: str) -> Collection[Connection]:
        """The connections that end at a machine."""
        return self._of.get(machine, ())

    def add(self, connection: Connection) -> None:
        """Have one more."""
        for place in (self.connections, *(self._of.setdefault(each, {}) for each in connection.machines)):
            place[connection] = None

    def remove(self, connection: Connection) -> None:
        """Have it no more. Idempotent."""
        for place in (self.connections, *(self._of[each] for each in connection.machines)):
            place.pop(connection, None)

    def changed(self) -> None:
        """The weather has changed: waiting messages may go on."""
        for connection in list(self.connections):
            connection.changed()


class Connection:
    """One connection, from a socket that dials to the one that listens when the handshake arrives at its endpoint."""

    def __init__(self, ether: Ether, client: EtherSocket, endpoint: str) -> None:
        self._ether, self._endpoint = ether, endpoint
        self._client: EtherSocket | None = client
        self._server: EtherSocket | None = None
        self._is_answered = False
        self.address = ether.number().to_bytes(5, "big")
        near, far = client.machine, machine_of(endpoint)
        self.machines, self.purpose = (near, far), client.purpose
        self._there = Pipe(ether.clock, ether.weather, near, far, self._arrive_there, self.reset)
        self._back = Pipe(ether.clock, ether.weather, far, near, self._arrive_back, self.reset)
        ether.add(self)
        self._there.put([])

    def send_there(self, frames: list[Bytes]) -> bool:
        """Send from the client; False if it knows that the connection is over."""
        if self._client is not None:
            self._there.put(frames)
        return self._client is not None

    def send_back(self, frames: list[Bytes]) -> bool:
        """Send from the server; False if it knows that the connection is over."""
        if self._server is not None:
            self._back.put(frames)
        return self._server is not None

    def close(self, end: EtherSocket) -> None:
        """Close one end; messages on their way to it are lost, and those that it has sent, too, unless it lingers."""
        is_client = end is self._client
        out, into = (self._there, self._back) if is_client else (self._back, self._there)
        into.close()
        lingers = self._ether.lingers()
        if not lingers:
            out.close()
        if is_client:
            self._client = None
        else:
            self._server = None
        is_still_to_arrive = is_client and lingers and not self._is_answered
        if self._client is None and self._server is None and not is_still_to_arrive:
            self._over()
        else:
            out.put(None)

    def reset(self, reason: str = "disconnected") -> None:
        """End the connection at both ends, with everything under way."""
        client, server = self._client, self._server
        self._client = self._server = None
        self._over()
        if server is not None:
            server.lost(self, reason)
        if client is not None:
            client.lost(self, reason)

    def under_way(self) -> tuple[int, int]:
        """The numbers of messages under way, in each direction."""
        return len(self._there), len(self._back)

    def changed(self) -> None:
        """The weather has changed."""
        self._there.changed()
        self._back.changed()

    def _over(self) -> None:
        self._there.close()
        self._back.close()
        self._ether.remove(self)

    def _arrive_there(self, message: Message) -> None:
        if message is None:
            self.reset()
        elif self._server is not None:
            self._server.came(self.address, message)
        elif not self._is_answered and (listener := self._ether.listeners.get(self._endpoint)) is not None:
            self._server, self._is_answered = listener, True
            listener.accepted(self)
        else:
            self._there.close()
            self._back.put(None)

    def _arrive_back(self, message: Message) -> None:
        if message is None:
            self.reset()
        elif self._client is not None:
            self._client.came(b"", message)


class EtherSocket:
    """A socket of a host on `machine`."""

    def __init__(
        self, ether: Ether, machine: str, purpose: Purpose, run: Run, on_message: OnMessage, gone: Gone
    ) -> None:
        self.machine, self.purpose = machine, purpose
        self._ether, self._run, self._on_message, self._gone = ether, run, on_message, gone
        self._endpoint = ""
        self._dialled: Connection | None = None
        self._accepted: dict[bytes, Connection] = {}
        self._is_closed = False

    def bind(self, endpoint: str) -> str:
        """Listen; returns the endpoint with its actual port. OSError if it is in use."""
        address, _, port = endpoint.rpartition(":")
        actual = f"{address}:{int(port) or PORT_FIRST + self._ether.number()}"
        if actual in self._ether.listeners:
            raise OSError(f"{actual} is in use")
        self._endpoint = actual
        self._ether.listeners[actual] = self
        return actual

    def connect(self, endpoint: str, server_key: str) -> None:
        self._dialled = Connection(self._ether, self, endpoint)

    def send(self, frames: Sequence[Any]) -> bool:
        if self._is_closed:
            return False
        if self._endpoint:
            connection = self._accepted.get(bytes(frames[0]))
            return connection is not None and connection.send_back(list(map(_as_bytes, frames[1:])))
        return self._dialled is not None and self._dialled.send_there(list(map(_as_bytes, frames)))

    def close(self) -> None:
        """Close at once, and drop everything; the other ends are notified."""
        self._is_closed = True
        if self._endpoint:
            del self._ether.listeners[self._endpoint]
            self._endpoint = ""
        connections = [*self._accepted.values(), *([self._dialled] if self._dialled else [])]
        self._accepted.clear()
        self._dialled = None
        for connection in connections:
            connection.close(self)

    def accepted(self, connection: Connection) -> None:
        """A connection to this bound socket was made."""
        self._accepted[connection.address] = connection

    def came(self, address: bytes, frames: list[Bytes]) -> None:
        self._run(partial(self._take, address, frames))

    def lost(self, connection: Connection, reason: str) -> None:
        self._accepted.pop(connection.address, None)
        if connection is self._dialled:
            self._dialled = None
            self._run(partial(self._tell, reason))

    def _take(self, address: bytes, frames: list[Bytes]) -> None:
        if not self._is_closed:
            self._on_message(address, frames, None)

    def _tell(self, reason: str) -> None:
        if not self._is_closed:
            self._gone(reason)


class EtherSockets:
    """Makes the sockets of one host on `machine`, which is the host part of its endpoints. They have no keys."""

    keys: Final = None
    desk: Final = None

    def __init__(self, ether: Ether, machine: str, run: Run, rng: random.Random) -> None:
        self._ether, self._machine, self._run, self._rng = ether, machine, run, rng
        self._made: list[EtherSocket] = []

    def dealer(
        self, purpose: Purpose, on_message: OnMessage, gone: Gone, *, porter: str = "", reached: Reached | None = None
    ) -> EtherSocket:
        assert not porter, "no machine has a porter here"
        return self._socket(purpose, on_message, gone)

    def router(self, purpose: Purpose, on_message: OnMessage, counts: Counter[str]) -> EtherSocket:
        return self._socket(purpose, on_message, lambda reason: None)

    def token(self) -> bytes:
        """Bytes from the seed of the world."""
        return self._rng.randbytes(TOKEN_BYTES)

    def close(self) -> None:
        """Close every socket, like the end of a process."""
        for socket in self._made:
            socket.close()

    def _socket(self, purpose: Purpose, on_message: OnMessage, gone: Gone) -> EtherSocket:
        self._made = [socket for socket in self._made if not socket._is_closed]
        self._made.append(EtherSocket(self._ether, self._machine, purpose, self._run, on_message, gone))
        return self._made[-1]


def machine_of(endpoint: str) -> str:
    """The machine of an endpoint: its host part."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0]


def _as_bytes(frame: Any) -> Bytes:
    """A frame as its receiver gets it."""
    return memoryview(frame)
