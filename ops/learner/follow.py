"""The node of a process that is part of an island, but does not lead it: it repeats the calls of its leader.

It has neither inputs nor outputs: the wire, the quorum and the token accounts know the leader alone. It computes its
part of every function, and its rows of every batch, which it makes as the leader does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from isthmus.ops.data.batches import first_batch
from isthmus.ops.data.batches_node import InOrder, source_of
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.kind import Attending, Computed, LearnerParts, kind_of
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.learner.fragment_exchange import PLAIN, FragmentExchange

ATTEND_SECONDS: Final = 0.2
"""The time for which a firing waits for an order: the host receives its stop between two firings."""


class Follow:
    """Executes one order a firing, until the leader is gone.

    `fragments` and `exchange` are those of its inner-step, `learners` and `slots` those of its data; `others` are what
    its inner-step has beside.
    """

    outputs: Final = ()

    def __init__(
        self,
        task: Any,
        *,
        learners: int,
        slots: int,
        fragments: Sequence[Fragment] = (),
        exchange: FragmentExchange = PLAIN,
        **others: Any,
    ) -> None:
        self._task, self._fragments, self._alpha = task, tuple(fragments), exchange.alpha
        self._learners, self._slots = learners, slots
        self._attendance: Attending | None = None
        self.is_finished = False

    def open(self, context: Any) -> None:
        """Connect to the other processes, and compile every function, as the leader does."""
        if context.island is None:  # In a universe there are no devices, and so nothing to do until the end.
            return
        seed, slot = context.seed, context.member.replica.slot
        life = LearnerLife(seed, slot, context.member.incarnation)
        parts = LearnerParts(self._task, self._fragments, life, self._alpha)
        self._attendance = kind_of(context.island).attendance(
            parts, lambda: first_batch(self._task, seed, slot), lambda: self._batches(seed, slot)
        )

    def computes(self, seed: int, slot: int) -> Computed:
        """What a process of such an island needs that does not lead."""
        return Computed(self._task, self._fragments, self._alpha, self._batches(seed, slot))

    def __call__(self) -> None:
        """Execute the leader's next order, if one comes."""
        if self._attendance is None or not self._attendance.attend(ATTEND_SECONDS):
            self.is_finished = True  # The daemon ends this host, too.

    def _batches(self, seed: int, slot: int) -> InOrder:
        return InOrder(source_of(self._task, seed, slot, self._slots, self._learners))
