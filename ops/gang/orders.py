"""The orders of a gang's leader: the next call of every process of its island, in one order for all of them.

Functions over an island of several processes run only where each of them calls the same ones in the same order. So the
leader announces each call, and the others make the same. An order is a name and numbers: values of fragments cross
between devices, and each process makes its own batches. A follower learns from the connection that the leader is gone.

Leaves from which a new life continues are on the leader's host alone: they follow their order on the same connection.

The learner of an island of several processes: announces every call to the others before it makes it.
"""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

import msgpack  # type: ignore[import-untyped]
import numpy as np

from isthmus.ops.data.batches_node import InOrder
from isthmus.ops.data.positions import STATE_SIZE_BYTES_MAX, Step
from isthmus.ops.exchange.messages import Taken, Vector

Order: TypeAlias = list[Any]
"""A name, and numbers or short texts."""
ORDER_BYTES_MAX: Final = 512 + STATE_SIZE_BYTES_MAX
"""An order is a name and two numbers; the first one has an address, another one the state of a stream."""
_LENGTH: Final = struct.Struct("!I")


@final
class LeaderOrders:
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
                    body, self._data = self._data[_LENGTH.size : end], self._data[end:]
                    order: Order = msgpack.unpackb(body)
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


class Led(Protocol):
    """A learner's part in each process of an island: the calls of a `RemoteLearner`, and these."""

    @property
    def device_kind(self) -> str: ...

    @property
    def host_waits(self) -> Any: ...

    def compile(self, batch: Any) -> None: ...

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]: ...

    def fits(self, what: Taken, leaves: Sequence[Any]) -> bool: ...

    def forms(self, what: Taken) -> list[Any]: ...


CALLS: Final[Mapping[str, tuple[type, ...]]] = {
    "begin": (),
    "extract": (int,),
    "adopt": (int,),
    "replace": (int,),
    "restart": (),
    "count_from": (int,),
    "local": (),
    "lend": (),
    "own": (bool,),
}
"""The calls that an order has as they are, and the types of their numbers. Values of fragments stay with the leader."""
TAKES: Final[Mapping[Taken, str]] = {"local": "take_local", "lent": "borrow", "own": "take_own", "whole": "take_own"}
"""The calls whose leaves follow their order."""


def call(learner: Any, name: str, *arguments: Any) -> Any:
    """The result of a call of a `RemoteLearner` by a learner here."""
    if name == "own":
        return learner.own(whole=arguments[0])
    return getattr(learner, name)(*arguments)


class RemoteLearner(ABC):
    """A learner of several processes, as inner-step calls it (`island.contract.LastingLearning`)."""

    @abstractmethod
    def _change(self, name: str, *arguments: Any) -> Any:
        """The result of a call that changes the state, in all processes."""

    def _read(self, name: str, *arguments: Any) -> Any:
        """The result of a call that leaves it as it is."""
        return self._change(name, *arguments)

    def begin(self) -> None:
        self._change("begin")

    def extract(self, fragment: int) -> Any:
        return self._read("extract", fragment)

    def adopt(self, fragment: int, values: Vector) -> None:
        self._change("adopt", fragment, values)

    def replace(self, fragment: int, values: Vector) -> None:
        self._change("replace", fragment, values)

    def restart(self) -> None:
        self._change("restart")

    def count_from(self, steps: int) -> None:
        self._change("count_from", steps)

    def local(self) -> Iterable[Any]:
        return self._read("local")  # type: ignore[no-any-return]

    def take_local(self, leaves: Sequence[Any]) -> bool:
        return bool(self._change("take_local", list(leaves)))

    def own(self, *, whole: bool) -> list[Any]:
        return self._read("own", whole)  # type: ignore[no-any-return]

    def take_own(self, leaves: Sequence[Any]) -> bool:
        return bool(self._change("take_own", list(leaves)))

    def lend(self) -> list[Any]:
        return self._read("lend")  # type: ignore[no-any-return]

    def borrow(self, leaves: Sequence[Any]) -> bool:
        return bool(self._change("borrow", list(leaves)))


@final
class Leader(RemoteLearner):
    """The leader, for inner-step. `where` returns the position of the batch that comes with a step."""

    def __init__(self, learner: Led, orders: LeaderOrders, where: Callable[[], Step]) -> None:
        self._learner, self._orders, self._where = learner, orders, where
        self._has_stepped = False

    @property
    def device_kind(self) -> str:
        return self._learner.device_kind

    @property
    def host_waits(self) -> Any:
        """What the host of this process waits for on its devices (`island.host_waits`)."""
        return self._learner.host_waits

    def compile(self, batch: Any) -> None:
        """Compile everything, and wait until the others have: a collective operation waits for them only briefly."""
        self._learner.compile(batch)
        self._orders.wait()

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        where = self._where()
        if not self._has_stepped and where.stream_state is not None:
            position, state = where.stream_state
            self._orders.give("know", position, state.tobytes())
        self._has_stepped = True
        self._orders.give("step", where.position, progress)
        return self._learner.step(batch, progress)

    def _change(self, name: str, *arguments: Any) -> Any:
        """Announce a call, and make it; one with leaves is made nowhere if their forms differ."""
        if name in CALLS:
            self._orders.give(name, *arguments[: len(CALLS[name])])
        else:
            (leaves,) = arguments
            what = next(what for what, each in TAKES.items() if each == name)
            if what == "own" and self._learner.fits("whole", leaves):
                what = "whole"
            if not self._learner.fits(what, leaves):
                return False
            self._orders.give("take", what)
            self._orders.send(leaves)
        return call(self._learner, name, *arguments)


def follow(learner: Led, order: Order, batches: InOrder, leader: Following) -> None:
    """Make the leader's call, with a batch from `batches`; ValueError for an unknown order.

    Leaves that belong to an order are read from `leader`.
    """
    match order:
        case ["step", int(position), float(progress)]:
            learner.step(batches.batch(position), progress)
        case ["know", int(position), bytes(state)]:
            batches.know(position, np.frombuffer(state, np.uint8))
        case ["take", ("local" | "lent" | "own" | "whole") as what]:
            call(learner, TAKES[what], leader.receive(learner.forms(what)))
        case [str(name), *numbers] if tuple(map(type, numbers)) == CALLS.get(name):
            call(learner, name, *numbers, *([None] if name in ("adopt", "replace") else ()))
        case _:
            raise ValueError(f"no order of a leader: {order!r}")
