"""Keeps the state that all learners of a program share: in memory, on disk, and for those that begin again.

Decides the state that is sent: the newest that arrived, of this life or of the snapshot with which it began; the
initial one, as long as there is none, and it is known that there is none. Each state that arrives is a snapshot,
because learners send one only when it is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from isthmus.ops.exchange.messages import BEGINNING, Held, WholeState, newest
from isthmus.programs.snapshots.keeping import Keeping
from isthmus.programs.snapshots.urls import Place


class KeptState:
    """States in, by timer; the newest out."""

    outputs = ("kept", "held")

    def __init__(self, folder: Path, seconds: float, place: Place | None) -> None:
        self._where = folder, seconds, place
        self._newest: WholeState | None = None
        self._given: WholeState | None = None
        self._told: Held | None = None
        self._recalled: list[list[int]] = []
        """The progress of the run by the snapshot that it began with."""

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        self._context = context
        self._keeping = Keeping(*self._where, (), context)
        self._recall()

    def __call__(self, state: Mapping[Any, WholeState] | None = None) -> list[tuple[str, Any]] | None:
        """Emit the newest state if it is new."""
        self._recall()
        now = self._context.now()
        if (came := newest(state)) is not None:
            self._newest = came
            self._keeping.take({}, {0: came}, now)
        self._keeping.store(now)
        emitted: list[tuple[str, Any]] = []
        if self._newest is not None and self._newest is not self._given:
            self._given = self._newest
            emitted.append(("kept", self._given))
        own = {"holder": self._context.member.replica.role, "totals": self._recalled}
        told = cast(Held, {**_NOTHING, **own, **self._keeping.of_disk()})
        if told != self._told:
            self._told = told
            emitted.append(("held", told))
        return emitted or None

    def close(self) -> None:
        """Close the store."""
        self._keeping.close()

    def _recall(self) -> None:
        found = self._keeping.recall()
        if found is not None:
            state = found.states.get(0, BEGINNING)
            self._recalled, self._newest = state["totals"], self._newest or state


_NOTHING: Final[dict[str, list[Any]]] = {"fragments": [], "merged": [], "lives": [], "given": []}
