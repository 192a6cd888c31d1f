"""The data node: a task's batches of one slot, in order, and how many of them a firing makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from isthmus.ops.data import At

MAKING_NS: Final = 1_000_000
"""What a firing may take: its first batch leaves with its last, and the consumer may be waiting for the first."""
BATCHES_MAX: Final = 8
"""Every firing costs hops between threads, and its first batch meets cold caches: 200 us, and 50 us each after it, with
the shipped task. In a row of eight little of that is left."""
AHEAD_SIZE_BYTES_MAX: Final = 1 << 20
"""Of the batches that a firing makes beyond the first."""


class Batches:
    """Emits the batches of this slot from position 0, one to eight a firing.

    As many as take about 1 ms, by what each took in the last firing, and no more than 1 MiB beyond the first: whatever
    is slow or large is made one at a time. The capacity of the Queue says how many may wait at the consumer; the rest
    of a firing is held here until there is room, and nothing is made meanwhile. So at most capacity + 7 batches are
    ahead of the consumer.
    """

    outputs = ("batch",)

    def __init__(self, task: Any) -> None:
        self._batch = task.batch
        self._position = 0
        self._count = 1

    def open(self, context: Any) -> None:
        """Learn which slot this is."""
        self._seed, self._slot, self._now = context.seed, context.member.replica.slot, context.now

    def __call__(self) -> list[tuple[str, Any]]:
        """The next batches."""
        begun = self._now()
        positions = range(self._position, self._position + self._count)
        batches = [self._batch(At(self._seed, self._slot, position)) for position in positions]
        self._position = positions.stop
        self._count = _count(len(batches), self._now() - begun, max(map(_size_bytes, batches)))
        return [("batch", batch) for batch in batches]


def _count(made: int, duration_ns: int, size_bytes: int) -> int:
    """How many batches to make in a firing, when the last one made `made`, the largest of `size_bytes` (both from 1),
    in `duration_ns`; of time that stands still, as many as there may be."""
    in_time = MAKING_NS * made // duration_ns if duration_ns else BATCHES_MAX
    in_memory = 1 + AHEAD_SIZE_BYTES_MAX // size_bytes
    return max(1, min(in_time, in_memory, BATCHES_MAX))


def _size_bytes(batch: Any) -> int:
    """Bytes of the arrays of a batch, and eight for everything else in it."""
    size_bytes: int | None = getattr(batch, "nbytes", None)
    if size_bytes is not None:
        return size_bytes or 8
    if isinstance(batch, Mapping):
        return sum(map(_size_bytes, batch.values())) or 8
    if isinstance(batch, list | tuple):
        return sum(map(_size_bytes, batch)) or 8
    return 8
