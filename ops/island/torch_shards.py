"""What leaves the devices of several ranks as one vector: each rank's part crosses to rank 0 beside the loops.

Decides that no loop waits for it. Each rank captures its part on its device, and lets it leave. From there on a thread
of each rank waits for the copy, sends it, or takes those of the others, over a group of their own: no message of a
loop's group comes between, and parts cross in the order in which they were captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.distributed as dist

CLOSE_SECONDS_MAX = 5.0
"""For parts that are on their way when a rank closes."""


class RankPiece(NamedTuple):
    """A piece of a rank: its place in the vector, as a slice of it that has `shape`, and a box in that."""

    where: slice
    shape: tuple[int, ...]
    box: tuple[slice, ...]

    def of(self, vector: torch.Tensor) -> torch.Tensor:
        """The piece itself, in a vector."""
        return vector[self.where].view(self.shape)[self.box]


@final
class GatheredParts:
    """The vector that all parts make up; NumPy waits for it."""

    def __init__(self) -> None:
        self._future: Future[np.ndarray[Any, Any]] = Future()

    def settle(self, make: Callable[[], np.ndarray[Any, Any]]) -> None:
        """Make it; what that raises is raised where the vector is read."""
        try:
            self._future.set_result(make())
        except BaseException as error:
            self._future.set_exception(error)

    def is_ready(self) -> bool:
        """Whether NumPy would not wait."""
        return self._future.done()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self._future.result()
        return np.array(array, dtype) if copy else array.astype(array.dtype if dtype is None else dtype, copy=False)


Job = Callable[[], None]


@final
class OwnThread:
    """Does jobs in their order, in a thread that ends with its process."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="shards", daemon=True)
        self._thread.start()

    def __call__(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Do what there is, for some seconds at most."""
        self._jobs.put(None)
        self._thread.join(CLOSE_SECONDS_MAX)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


@final
class PartCrossing:
    """The way of parts to rank 0, in each rank; all have to make it together. Nobody waits for a part for longer."""

    def __init__(self, rank: int, wait_max: timedelta) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=wait_max)
        self._rank, self._work = rank, OwnThread()

    def gather(self, size: int, parts: Sequence[Sequence[RankPiece]], own: Any) -> Any:
        """In rank 0 a vector, float32[size], of the `parts` of each rank; an empty one in the others. `own` is this
        rank's, in their order, on its way to the host."""
        if self._rank:
            self._work(lambda: self._send(own))
            return np.empty(0, np.float32)
        gathered = GatheredParts()
        self._work(lambda: gathered.settle(lambda: self._gathered(size, parts, own)))
        return gathered

    def close(self) -> None:
        """Let the others notice that nothing comes any more."""
        self._work.close()
        group, self._group = self._group, None
        with suppress(Exception):  # The user may have ended all groups.
            dist.destroy_process_group(group)

    def _send(self, own: Any) -> None:
        sent = torch.from_numpy(np.require(np.asarray(own), requirements=["C", "W"]))
        if sent.numel():
            with suppress(RuntimeError):  # Rank 0 is gone: the loop finds that, too.
                dist.send(sent, 0, group=self._group)

    def _gathered(self, size: int, parts: Sequence[Sequence[RankPiece]], own: Any) -> np.ndarray[Any, Any]:
        values = np.empty(size, np.float32)
        vector = torch.from_numpy(values)
        for rank, pieces in enumerate(parts):
            count = sum(part.of(vector).numel() for part in pieces)
            sent = torch.from_numpy(np.array(own)) if rank == 0 else torch.empty(count)
            if rank and count:
                dist.recv(sent, rank, group=self._group)
            at = 0
            for part in pieces:
                piece = part.of(vector)
                piece.copy_(sent[at : at + piece.numel()].view(piece.shape))
                at += piece.numel()
        return values
