"""The hold node of a run's home: its versions are also on disk, so that a model outlives every process of its run.

Decides the contents of a snapshot (`keeping` its time): a version of every fragment. A hold that opens begins with the
contents of the last snapshot: for shards and learners it is a holder like any other, whose versions may be older than
those of live hosts. It receives whole states of shards (`ShardState`), and sends a shard in a new life the part of them
that no learner has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from isthmus.ops.exchange.messages import Kept, ShardState, Update
from isthmus.ops.exchange.schemas import STATE
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.recovery.hold import Hold
from isthmus.programs.snapshots.keeping import Keeping
from isthmus.programs.snapshots.snapshots import Found
from isthmus.programs.snapshots.urls import Place


class KeptHold(Hold):
    """A `Hold` of fragments of `sizes` values, kept in the run folder `folder`, every `seconds` seconds."""

    outputs = (*Hold.outputs, "kept")
    schemas: ClassVar[dict[str, Any]] = {"update": STATE}

    def __init__(
        self, folder: Path, seconds: float, place: Place | None, *, role: str, shards: int, sizes: Sequence[int]
    ) -> None:
        super().__init__(role=role, shards=shards)
        self._where = folder, seconds, place
        self._sizes = sizes
        self._recalled = Totals()
        """The progress of the run, from the snapshot that it began with, and the states it gave to shards."""

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        super().open(context)
        self._keeping = Keeping(*self._where, self._sizes, context)
        self._recall()

    def __call__(self, update: Mapping[Any, Update] | None = None) -> list[tuple[str, Any]] | None:
        """Act as a `Hold`, and take a snapshot when it is due."""
        self._recall()
        emitted = super().__call__(update)
        now = self._context.now()
        self._keep(now)
        self._keeping.store(now)
        return emitted

    def close(self) -> None:
        """Take the last snapshot."""
        self._take(self._context.now())
        self._keeping.close()

    def _recall(self) -> None:
        """Load the last snapshot, as soon as the disk can be read."""
        found = self._keeping.recall()
        if found is not None:
            self._recall_all(found)

    def _recall_all(self, found: Found) -> None:
        """Hold this."""
        self._held = found.held | self._held
        for state in found.held.values():
            self._recalled.hear(state["totals"])

    def _keep(self, now: int) -> None:
        """Take a snapshot, when it is due."""
        if self._keeping.is_due(now):
            self._take(now)

    def _take(self, now: int) -> None:
        """Take a snapshot, if there is a version of every fragment."""
        if len(self._held) == len(self._sizes):
            self._keeping.take(cast(dict[int, ShardState], self._held), {}, now)

    def _gifts(self, held: Update) -> list[tuple[str, Any]]:
        """A copy for learners; for the shard also its own tensors."""
        state = cast(ShardState, held)
        self._recalled.hear(state["totals"])
        kept = Kept(fragment=state["fragment"], version=state["version"], tensors=state["tensors"])
        return [*super()._gifts(held), *([("kept", kept)] if kept["tensors"] else [])]

    def _of_disk(self) -> dict[str, Any]:
        return {"totals": self._recalled.told(), **self._keeping.of_disk()}
