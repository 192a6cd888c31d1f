"""The learner of an island of several processes: announces every call to the others before it makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np

from isthmus.ops.data.batches_node import InOrder
from isthmus.ops.data.places import Step
from isthmus.ops.exchange.kept_state import Taken
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.gang.orders import Following, Order, Orders


class Led(Protocol):
    """The functions that are called on every process of an island."""

    @property
    def device_kind(self) -> str: ...

    def begin(self) -> None: ...

    def compile(self, batch: Any) -> None: ...

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]: ...

    def extract(self, fragment: int) -> Any: ...

    def adopt(self, fragment: int, values: Vector | None) -> None: ...

    def replace(self, fragment: int, values: Vector | None) -> None: ...

    def restart(self) -> None: ...

    def local(self) -> Iterable[Any]: ...

    def fits(self, what: Taken, leaves: Sequence[Any]) -> bool: ...

    def forms(self, what: Taken) -> list[Any]: ...

    def take_local(self, leaves: Sequence[Any]) -> bool: ...

    def lend(self) -> list[Any]: ...

    def borrow(self, leaves: Sequence[Any]) -> bool: ...

    def own(self, *, whole: bool) -> list[Any]: ...

    def take_own(self, leaves: Sequence[Any]) -> bool: ...


@final
class Leader:
    """The leader, for inner-step. `where` returns the position of the batch that comes with a step."""

    def __init__(self, learner: Led, orders: Orders, where: Callable[[], Step]) -> None:
        self._learner, self._orders, self._where = learner, orders, where
        self._has_stepped = False

    @property
    def device_kind(self) -> str:
        return self._learner.device_kind

    def compile(self, batch: Any) -> None:
        """Compile everything, and wait until the others have: a collective operation waits for them only briefly."""
        self._learner.compile(batch)
        self._orders.wait()

    def begin(self) -> None:
        self._orders.give("begin")
        self._learner.begin()

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        where = self._where()
        if not self._has_stepped and where.known is not None:
            position, state = where.known
            self._orders.give("know", position, state.tobytes())
        self._has_stepped = True
        self._orders.give("step", where.position, progress)
        return self._learner.step(batch, progress)

    def extract(self, fragment: int) -> Any:
        self._orders.give("extract", fragment)
        return self._learner.extract(fragment)

    def adopt(self, fragment: int, values: Vector) -> None:
        self._orders.give("adopt", fragment)
        self._learner.adopt(fragment, values)

    def replace(self, fragment: int, values: Vector) -> None:
        self._orders.give("replace", fragment)
        self._learner.replace(fragment, values)

    def restart(self) -> None:
        self._orders.give("restart")
        self._learner.restart()

    def local(self) -> Iterable[Any]:
        self._orders.give("local")
        return self._learner.local()

    def take_local(self, leaves: Sequence[Any]) -> bool:
        return self._take("local", leaves) and self._learner.take_local(leaves)

    def lend(self) -> list[Any]:
        self._orders.give("lend")
        return self._learner.lend()

    def borrow(self, leaves: Sequence[Any]) -> bool:
        return self._take("lent", leaves) and self._learner.borrow(leaves)

    def own(self, *, whole: bool) -> list[Any]:
        self._orders.give("own", whole)
        return self._learner.own(whole=whole)

    def take_own(self, leaves: Sequence[Any]) -> bool:
        is_whole = self._learner.fits("whole", leaves)
        return self._take("whole" if is_whole else "own", leaves) and self._learner.take_own(leaves)

    def _take(self, what: Taken, leaves: Sequence[Any]) -> bool:
        """Send these leaves to the other processes, unless their forms differ; whether they were sent."""
        if not self._learner.fits(what, leaves):
            return False
        self._orders.give("take", what)
        self._orders.send(leaves)
        return True


def follow(learner: Led, order: Order, batches: InOrder, leader: Following) -> None:
    """Make the leader's call, with a batch from `batches`; ValueError for an unknown order.

    Leaves that belong to an order are read from `leader`.
    """
    match order:
        case ["begin"]:
            learner.begin()
        case ["step", int(position), float(progress)]:
            learner.step(batches.batch(position), progress)
        case ["know", int(position), bytes(state)]:
            batches.know(position, np.frombuffer(state, np.uint8))
        case ["extract", int(fragment)]:
            learner.extract(fragment)
        case ["adopt", int(fragment)]:
            learner.adopt(fragment, None)
        case ["replace", int(fragment)]:
            learner.replace(fragment, None)
        case ["restart"]:
            learner.restart()
        case ["local"]:
            learner.local()
        case ["lend"]:
            learner.lend()
        case ["own", bool(whole)]:
            learner.own(whole=whole)
        case ["take", "local"]:
            learner.take_local(leader.receive(learner.forms("local")))
        case ["take", "lent"]:
            learner.borrow(leader.receive(learner.forms("lent")))
        case ["take", "own" | "whole" as what]:
            learner.take_own(leader.receive(learner.forms(what)))
        case _:
            raise ValueError(f"no order of a leader: {order!r}")
