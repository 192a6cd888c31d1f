"""The node of a process that is part of an island, but does not lead it: it repeats the calls of its leader.

It has neither inputs nor outputs: the wire, the quorum and the token accounts know the leader alone. It computes its
part of every function, and its rows of every batch, which it makes as the leader does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from isthmus.ops.data.batches import first_batch
from isthmus.ops.data.batches_node import InOrder, source_of
from isthmus.ops.elastic.learner import HostWorker
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.contract import follower_of
from isthmus.ops.island.life import LearnerLife

if TYPE_CHECKING:
    from isthmus.ops.gang.orders import Following

ORDER_SECONDS: Final = 0.2
"""The time for which a firing waits for an order: the host receives its stop between two firings."""


class Follow:
    """Executes one order a firing, until the leader is gone.

    `fragments` and `alpha` are those of its inner-step, `learners` and `slots` those of its data.
    """

    outputs: Final = ()

    def __init__(
        self,
        task: Any,
        *,
        learners: int,
        slots: int,
        fragments: Sequence[Fragment] = (),
        alpha: float = 0.0,
        **_: Any,
    ) -> None:
        self._task, self._fragments, self._alpha = task, tuple(fragments), alpha
        self._learners, self._slots = learners, slots
        self._orders: Following | None = None
        self._attendance: HostWorker | None = None
        self.is_finished = False

    def open(self, context: Any) -> None:
        """Connect to the other processes, and compile every function, as the leader does."""
        if context.island is None:  # In a universe there are no devices, and so nothing to do until the end.
            return
        if context.island.elastic is not None:
            self._attendance = HostWorker(context.island.elastic)
            return
        from isthmus.ops.gang.orders import follow

        self._follow = follow
        slot, seed = context.member.replica.slot, context.seed
        life = LearnerLife(seed, slot, context.member.incarnation)
        self._learner, orders = follower_of(
            self._task, self._fragments, life=life, alpha=self._alpha, island=context.island
        )
        self._learner.compile(first_batch(self._task, seed, slot))
        orders.ready()
        self._orders = orders
        self._batches = InOrder(source_of(self._task, seed, slot, self._slots, self._learners))

    def work(self, spec: Mapping[str, Any], host: Any, *, seed: int, slot: int, place: Any) -> None:
        """Compute for the host of this body, in a process of its own: the loop of a worker of an elastic island."""
        from isthmus.ops.elastic.worker import work

        batches = InOrder(source_of(self._task, seed, slot, self._slots, self._learners))
        parts = self._task, self._fragments, self._alpha
        work(parts, spec, host, batches=batches, seed=seed, slot=slot, place=place)

    def __call__(self) -> None:
        """Execute the leader's next order, if one comes."""
        if self._attendance is not None:
            self._attendance.look(ORDER_SECONDS)
            return
        try:
            if self._orders is None:
                self.is_finished = True
            elif (order := self._orders.next(ORDER_SECONDS)) is not None:
                self._follow(self._learner, order, self._batches, self._orders)
        except EOFError:
            self.is_finished = True  # The daemon ends this host, too.
