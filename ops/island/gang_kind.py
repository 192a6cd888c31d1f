"""The kind of an island of several processes that live and end together.

One of them leads: it announces each call, and the others make the same (`orders`). They meet before jax starts
(`meeting`). jax is imported by the calls below only, in the processes that compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from isthmus.ops.data.batches_node import InOrder
from isthmus.ops.data.positions import Step
from isthmus.ops.gang.mesh_island import Gang, LearnerDevices
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.island.kind import LearnerParts
from isthmus.ops.island.life import lower_priority

if TYPE_CHECKING:
    from isthmus.ops.gang.orders import Following, Led


@final
class GangKind:
    """The kind of the island that the processes of this `gang` make up, with these devices in each."""

    def __init__(self, gang: Gang, devices: LearnerDevices) -> None:
        self._gang, self._devices = gang, devices

    def learner(self, parts: LearnerParts, where: Callable[[], Step], now: Callable[[], int]) -> LastingLearning:
        """The leader; GangError if the others do not connect. They make their part of a batch from its position."""
        from isthmus.ops.gang.meeting import lead
        from isthmus.ops.gang.orders import Leader

        lower_priority()
        orders = lead(self._gang)
        return Leader(self._own_part(parts), orders, where)

    def attendance(self, parts: LearnerParts, first: Callable[[], Any], batches: Callable[[], InOrder]) -> GangFollower:
        """The part of another process, which has compiled every function; GangError if the leader is not found."""
        from isthmus.ops.gang.meeting import join

        lower_priority()
        orders = join(self._gang)
        learner = self._own_part(parts)
        learner.compile(first())
        orders.ready()
        return GangFollower(learner, orders, batches())

    def _own_part(self, parts: LearnerParts) -> Any:
        from isthmus.ops.island.jax_learner import Learner

        return Learner(parts.task, parts.fragments, life=parts.life, alpha=parts.alpha, island=self._devices)


@final
class GangFollower:
    """A process that makes each call of its leader, by its own `learner`, with its rows of the `batches`."""

    def __init__(self, learner: Led, orders: Following, batches: InOrder) -> None:
        self._learner, self._orders, self._batches = learner, orders, batches

    def attend(self, seconds: float) -> bool:
        from isthmus.ops.gang.orders import follow

        try:
            order = self._orders.next(seconds)
            if order is not None:
                follow(self._learner, order, self._batches, self._orders)
        except EOFError:
            return False
        return True
