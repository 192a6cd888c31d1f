"""How far one life of a learner is in its slot's batches, as its answers tell it.

Decides nothing of what is trained: it counts what was taken, from where the data node says that this life begins, and
keeps the states of a stream until they are of the past.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from isthmus.ops.data.places import Cursor, State

STATES_MAX: Final = 16
"""States ahead of what was taken: the data node makes at most eight batches a firing, and tells a state in each; two
may wait. Of those beyond, the oldest are let go: an older state costs batches that are wound over, no more."""


class Feed:
    """`reached` is the position after the last batch that was trained on; `is_placed` says whether it is known where
    this life begins."""

    def __init__(self) -> None:
        self.reached = self._position = 0
        self.is_placed = True
        self._ahead: deque[tuple[int, State]] = deque(maxlen=STATES_MAX)
        self._state: tuple[int, State] | None = None

    def open(self, context: Any) -> None:
        """A first life begins at 0, and so does every life of a graph in which nobody says otherwise."""
        self.is_placed = context.member.incarnation == 1 or "cursor" not in context.connected

    @property
    def latest(self) -> int:
        """The position of the batch that was taken last."""
        return self._position - 1

    def hear(self, cursor: Cursor) -> None:
        """Take where this life begins, and a state of a batch that is yet to come."""
        if not self.is_placed:
            self.reached = self._position = cursor["begin"]
            self.is_placed = True
        if cursor["state"] is not None:
            self._ahead.append((cursor["position"], cursor["state"]))
            self._settle()

    def take(self, *, is_trained: bool = True) -> None:
        """Count a batch that was taken; at the end of a run nothing is trained on it."""
        self._position += 1
        if is_trained:
            self.reached = self._position
            self._settle()

    def told(self) -> list[Any] | None:
        """The newest state of a position that is reached, as [position, state]."""
        return None if self._state is None else list(self._state)

    def _settle(self) -> None:
        while self._ahead and self._ahead[0][0] <= self.reached:
            self._state = self._ahead.popleft()
