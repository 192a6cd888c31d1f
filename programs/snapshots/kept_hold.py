"""The hold node of a run's home: what it holds is also on disk, so that a model outlives every process of its run.

Decides when a snapshot is taken: once every fragment has a version, and from then on at intervals in which one is
new. A hold that opens begins with what the last snapshot had: for shards and learners it is a holder like any
other, whose versions may be older than those of hosts that live. Nobody waits for it, and a disk that takes nothing
costs nothing but the snapshot: the one before stays. It is given whole states of shards (`State`), and gives a shard in
a new life what of that no learner has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from isthmus.ops.exchange.messages import Kept, State, Update
from isthmus.ops.exchange.schemas import STATE
from isthmus.ops.exchange.token_totals import Totals
from isthmus.ops.recovery.hold import Hold
from isthmus.programs.snapshots.snapshots import FOLDER, Snapshots


class KeptHold(Hold):
    """A `Hold` of fragments of `sizes` values, kept in the run folder `folder`, every so many `seconds`."""

    outputs = (*Hold.outputs, "kept")
    schemas: ClassVar[dict[str, Any]] = {"update": STATE}

    def __init__(self, folder: Path, seconds: float, *, role: str, shards: int, sizes: Sequence[int]) -> None:
        super().__init__(role=role, shards=shards)
        self._folder, self._sizes, self._every = folder, sizes, round(seconds * 1e9)
        self._recalled = Totals()
        """The progress of the run by the snapshot that it began with."""
        self._taken_at: int | None = None
        self._has_recalled = False
        self._told_of: dict[str, Any] = {"number": 0, "taken_at": None, "faults": [], "error": None}

    def open(self, context: Any) -> None:
        """Hold what the last snapshot has."""
        super().open(context)
        self._snapshots = Snapshots(self._folder / FOLDER, self._sizes, context.disk, context.member.incarnation)
        self._recall()

    def __call__(self, update: Mapping[Any, Update] | None = None) -> list[tuple[str, Any]] | None:
        """What a `Hold` does; and a snapshot, when it is due."""
        self._recall()
        emitted = super().__call__(update)
        now = self._context.now()
        if self._taken_at is None or now - self._taken_at >= self._every:
            self._take(now)
        return emitted

    def close(self) -> None:
        """Take the last snapshot."""
        self._take(self._context.now())

    def _recall(self) -> None:
        """Hold what the last snapshot has, as soon as the disk says what that is."""
        if self._has_recalled:
            return
        try:
            found = self._snapshots.read()
        except OSError as error:
            self._tell(error=error.strerror or str(error))
            return
        self._has_recalled = True
        self._held = found.held | self._held
        for state in found.held.values():
            self._recalled.hear(state["totals"])
        number = found.manifest.number if found.manifest is not None else 0
        self._tell(number=number, faults=found.faults, error=None)

    def _take(self, now: int) -> None:
        """Take a snapshot, if there is a version of every fragment, and it is known which snapshots there are."""
        if not self._has_recalled or len(self._held) < len(self._sizes):
            return
        self._taken_at = now
        try:
            self._tell(
                number=self._snapshots.write(cast(dict[int, State], self._held)).number, error=None, taken_at=now
            )
        except OSError as error:
            self._tell(error=error.strerror or str(error))

    def _gifts(self, held: Update) -> list[tuple[str, Any]]:
        """A copy for learners; for the shard, what it needs beside."""
        state = cast(State, held)
        kept = Kept(fragment=state["fragment"], version=state["version"], tensors=state["tensors"])
        return [*super()._gifts(held), *([("kept", kept)] if kept["tensors"] else [])]

    def _of_disk(self) -> dict[str, Any]:
        told = {name: self._told_of[name] for name in ("faults", "error")}
        return {"saved": self._snapshots.versions(), "totals": self._recalled.told(), **told}

    def _tell(self, **news: Any) -> None:
        self._told_of = {**self._told_of, **news}
        self._context.publish(self._told_of)
