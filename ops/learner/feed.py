"""The progress of one life of a learner in its slot's batches, as its answers report it.

Does not decide which batches are trained: it counts the batches that were taken, from the position at which the data
node starts this life, and keeps the states of a stream until their positions are reached.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from isthmus.ops.data.places import Cursor, State

STATES_MAX: Final = 16
"""States ahead of the batches taken: the data node makes at most eight batches a firing, with a state in each firing;
two may wait. The oldest of any more are dropped: an older state only costs batches that are read again and discarded.
"""


class Feed:
    """`reached` is the position after the last batch trained on; `is_placed` tells whether the start is known."""

    def __init__(self) -> None:
        self.reached = self._position = 0
        self.is_placed = True
        self._ahead: deque[tuple[int, State]] = deque(maxlen=STATES_MAX)
        self._state: tuple[int, State] | None = None

    def open(self, context: Any) -> None:
        """Start at 0 in a first life, and in every life of a graph without a `cursor` edge."""
        self.is_placed = context.member.incarnation == 1 or "cursor" not in context.connected

    @property
    def latest(self) -> int:
        """The position of the batch that was taken last."""
        return self._position - 1

    def hear(self, cursor: Cursor) -> None:
        """Store the position at which this life begins, and the state of a later batch."""
        if not self.is_placed:
            self.reached = self._position = cursor["begin"]
            self.is_placed = True
        if cursor["state"] is not None:
            self._ahead.append((cursor["position"], cursor["state"]))
            self._settle()

    def take(self, *, is_trained: bool = True) -> None:
        """Count a batch that was taken; at the end of a run it is not trained on."""
        self._position += 1
        if is_trained:
            self.reached = self._position
            self._settle()

    def told(self) -> list[Any] | None:
        """The newest state whose position is reached, as [position, state]."""
        return None if self._state is None else list(self._state)

    def _settle(self) -> None:
        while self._ahead and self._ahead[0][0] <= self.reached:
            self._state = self._ahead.popleft()
