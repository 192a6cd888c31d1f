"""The data node: a task's batches of one slot, in order."""

from __future__ import annotations

from typing import Any

from isthmus.ops.data import At


class Batches:
    """Emits the batches of this slot from position 0, one a firing; a Queue's capacity says how far ahead."""

    outputs = ("batch",)

    def __init__(self, task: Any) -> None:
        self._batch = task.batch
        self._seed = self._slot = self._position = 0

    def open(self, context: Any) -> None:
        """Learn which slot this is."""
        self._seed, self._slot = context.seed, context.member.replica.slot

    def __call__(self) -> dict[str, Any]:
        """The next batch."""
        batch = self._batch(At(self._seed, self._slot, self._position))
        self._position += 1
        return {"batch": batch}
