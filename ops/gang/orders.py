"""The orders of a gang's leader: the next call of every process of its island, in one order for all of them.

Functions over an island of several processes run only where each of them calls the same ones in the same order. So the
leader announces each call, and the others make the same. An order is a name and numbers: values of fragments cross
between devices, and each process makes its own batches. A follower learns from the connection that the leader is gone.

Leaves from which a new life continues are on the leader's host alone: they follow their order on the same connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

import msgpack  # type: ignore[import-untyped]
import numpy as np

from isthmus.ops.data.places import STATE_SIZE_BYTES_MAX

Order: TypeAlias = list[Any]
"""A name, and numbers or short texts."""
ORDER_BYTES_MAX: Final = 512 + STATE_SIZE_BYTES_MAX
"""An order is a name and two numbers; the first one has an address, another one the state of a stream."""
_LENGTH: Final = struct.Struct("!I")


@final
class Orders:
    """The leader's end, with connections to the others.

    `copies` names each process's copy of the island's state, its own first.
    """

    def __init__(self, others: Sequence[socket.socket], copies: Sequence[tuple[int, int]] = ()) -> None:
        self._others, self.copies = tuple(others), tuple(copies)

    def give(self, *order: Any) -> None:
        """Announce a call; OSError if one of the others is gone."""
        data = msgpack.packb(order)
        for other in self._others:
            other.sendall(_LENGTH.pack(len(data)) + data)

    def give_one(self, number: int, *order: Any) -> None:
        """Send an order to one of the others, from 1."""
        data = msgpack.packb(order)
        self._others[number - 1].sendall(_LENGTH.pack(len(data)) + data)

    def link(self, number: int) -> socket.socket:
        """The connection with process `number`, from 1, for other data."""
        return self._others[number - 1]

    def send(self, leaves: Sequence[Any]) -> None:
        """Send the leaves that belong to the last order to all others, who know their forms."""
        for leaf in leaves:
            data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data
            for other in self._others:
                other.sendall(data)

    def wait(self) -> None:
        """Return once all others have reported that they are ready; EOFError if one is gone.

        There is no time limit: its daemon judges how long a process may compile, and whether it is alive.
        """
        for other in self._others:
            if not other.recv(1):
                raise EOFError("a process of this island is gone")

    def close(self) -> None:
        for other in self._others:
            other.close()


@final
class Following:
    """A follower's end, with a connection to its leader."""

    def __init__(self, leader: socket.socket) -> None:
        self._leader, self._data = leader, b""

    def ready(self) -> None:
        """Report that everything is compiled, and the next order can be followed at once."""
        self._leader.settimeout(None)
        self._leader.sendall(b"!")

    def next(self, seconds: float) -> Order | None:
        """The next order, None if none comes within `seconds`; EOFError without a leader, ValueError for bad data."""
        self._leader.settimeout(seconds)
        while True:
            if len(self._data) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
                if end > ORDER_BYTES_MAX:
                    raise ValueError(f"an order of {end} bytes: expected at most {ORDER_BYTES_MAX}")
                if len(self._data) >= end:
                    told, self._data = self._data[_LENGTH.size : end], self._data[end:]
                    order: Order = msgpack.unpackb(told)
                    return order
            try:
                data = self._leader.recv(ORDER_BYTES_MAX)
            except TimeoutError:
                return None
            except OSError:
                data = b""
            if not data:
                raise EOFError("the leader of this island is gone")
            self._data += data

    def recv_into(self, data: memoryview) -> int:
        """Receive data other than orders from the leader, like a socket."""
        if self._data:
            count = min(len(data), len(self._data))
            data[:count], self._data = self._data[:count], self._data[count:]
            return count
        self._leader.settimeout(None)
        return self._leader.recv_into(data)

    def receive(self, forms: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """The leaves that belong to an order, of these shapes and dtypes; EOFError if the leader is gone."""
        leaves = [np.empty(form.shape, form.dtype) for form in forms]
        for leaf in leaves:
            data, at = leaf.reshape(-1).view(np.uint8).data, 0
            while at < len(data):
                if not (count := self.recv_into(data[at:])):
                    raise EOFError("the leader of this island is gone")
                at += count
        return leaves

    def sendall(self, data: bytes | memoryview) -> None:
        """Send requested data to the leader, like a socket."""
        self._leader.settimeout(None)
        self._leader.sendall(data)

    def close(self) -> None:
        self._leader.close()
