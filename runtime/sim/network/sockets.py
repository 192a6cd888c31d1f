"""Simulated sockets: the transport under the channels of a world, in place of ZeroMQ over TCP.

Decides when a message of one side arrives at the other, and when a connection ends; knows nothing of the messages.
`conditions` has the weather of the paths between machines.

Theory of operation. A connection has two pipes, one for each direction. Messages arrive complete and in order, after
the time that their bytes take at the pace of the link, and the latency of the path; the two sockets of a peer are two
connections, which overtake each other. While the path is *cut* nothing arrives: messages wait, as in the buffers of
TCP, and arrive when the path is back, unless that takes UNHEARD; then both ends give the connection up. A *reset* ends
it at once, with everything under way. An end that is closed notifies the other one, which takes time, too; what it had
sent is lost, or still arrives before that where it `lingers`: a kernel goes on sending for a process that has ended. So
messages of a connection may arrive after those of a later one of the same two.

The end of a connection is reported as by ZeroMQ: a socket that has dialled calls `gone`, a bound one only notices that
sending fails. `run` of a host makes its callbacks, now, later, or never: it may be paused, or dead.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from isthmus.runtime.clock import Clock
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.protocol.messages import TOKEN_BYTES
from isthmus.runtime.sim.network.pipe import Message, Pipe, Weather
from isthmus.runtime.wire.sockets import Gone, Hear, Purpose

PORT_FIRST: Final = 1024

Run = Callable[[Callable[[], None]], None]


class Ether:
    """All sockets of a world. `lingers` is called for each end that closes: whether messages under way arrive."""

    def __init__(self, clock: Clock, weather: Weather, lingers: Callable[[], bool] = lambda: False) -> None:
        self.clock, self.weather, self.lingers = clock, weather, lingers
        self.connections: list[Connection] = []
        self.listeners: dict[str, EtherSocket] = {}
        self._numbers = 0

    def number(self) -> int:
        """A number that was not used before."""
        self._numbers += 1
        return self._numbers

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
        ether.connections.append(self)
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
        if self in self._ether.connections:
            self._ether.connections.remove(self)

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

    def __init__(self, ether: Ether, machine: str, purpose: Purpose, run: Run, hear: Hear, gone: Gone) -> None:
        self.machine, self.purpose = machine, purpose
        self._ether, self._run, self._hear, self._gone = ether, run, hear, gone
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
            self._hear(address, frames, None)

    def _tell(self, reason: str) -> None:
        if not self._is_closed:
            self._gone(reason)


class EtherSockets:
    """Makes the sockets of one host on `machine`, which is the host part of its endpoints. They have no keys."""

    keys: Final = None

    def __init__(self, ether: Ether, machine: str, run: Run, rng: random.Random) -> None:
        self._ether, self._machine, self._run, self._rng = ether, machine, run, rng
        self._made: list[EtherSocket] = []

    def dealer(self, purpose: Purpose, hear: Hear, gone: Gone) -> EtherSocket:
        return self._socket(purpose, hear, gone)

    def router(self, purpose: Purpose, hear: Hear, counts: Counter[str]) -> EtherSocket:
        return self._socket(purpose, hear, lambda reason: None)

    def token(self) -> bytes:
        """Bytes from the seed of the world."""
        return self._rng.randbytes(TOKEN_BYTES)

    def close(self) -> None:
        """Close every socket, like the end of a process."""
        for socket in self._made:
            socket.close()

    def _socket(self, purpose: Purpose, hear: Hear, gone: Gone) -> EtherSocket:
        self._made = [socket for socket in self._made if not socket._is_closed]
        self._made.append(EtherSocket(self._ether, self._machine, purpose, self._run, hear, gone))
        return self._made[-1]


def machine_of(endpoint: str) -> str:
    """The machine of an endpoint: its host part."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0]


def _as_bytes(frame: Any) -> Bytes:
    """A frame as its receiver gets it."""
    return memoryview(frame)
