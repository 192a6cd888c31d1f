"""A digest of the data with which a user's loop begins: where two islands have the same, their data are the same.

It is that of the first batch, where the loop takes its batches from the island and the batch has data in it; otherwise,
that of the first losses. The home compares the digests that hosts have in their status (`runtime.supervision.watch`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

import numpy as np
import xxhash

from isthmus.ops.learner.answers import FIRST_LOSSES
from isthmus.ops.learner.boundary import Boundary, Companion

VALUES_MAX: Final = 1 << 16
"""Of an array so many values are compared: two batches of samples differ in them, and they are read in no time."""
DEPTH_MAX: Final = 8
_INTEGERS: Final = re.compile(r"int|bool")


@final
class FirstData(Companion):
    """The digest of one life. `first_batch` returns that of its first batch, 0 for none."""

    def __init__(self, boundary: Boundary, first_batch: Callable[[], int] = lambda: 0) -> None:
        self._metrics, self._first_batch = boundary.metrics, first_batch

    def published(self) -> Mapping[str, int]:
        """The digest, 60 bits, once it is known."""
        if digest := self._first_batch():
            return {"data_digest": digest}
        losses = self._metrics.first_losses
        if len(losses) < FIRST_LOSSES:
            return {}
        return {"data_digest": xxhash.xxh3_64_intdigest(np.array(losses, np.float64).tobytes()) >> 4}


def batch_digest(batch: Any) -> int:
    """The digest of a batch, 60 bits; 0 if there is nothing in it that only data have.

    Texts, floating-point arrays, and integer arrays of two axes and more are data. Numbers, and integers in a row, may
    be places in a part of the data that only this island has: they are the same on all islands.
    """
    parts, digest = list(_parts(batch, DEPTH_MAX)), xxhash.xxh3_64()
    if not any(is_data for is_data, _ in parts):
        return 0
    for _, content in parts:
        digest.update(content)
    return digest.intdigest() >> 4


def _parts(value: Any, depth: int) -> Iterator[tuple[bool, bytes]]:
    """Whether a part of a batch is data, and its content, in order; what cannot be read is left out."""
    if isinstance(value, str | bytes):
        yield bool(value), value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    elif isinstance(value, Mapping | list | tuple):
        for each in (value.values() if isinstance(value, Mapping) else value) if depth else ():
            yield from _parts(each, depth - 1)
    elif isinstance(value, bool | int | float):
        yield False, repr(value).encode()
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        try:
            content = _first_values(value)
        except (TypeError, ValueError, RuntimeError):
            return  # Random keys of jax, sparse tensors, shards that lie elsewhere.
        is_data = len(value.shape) > 1 or (len(value.shape) == 1 and not _INTEGERS.search(str(value.dtype)))
        yield is_data, str(tuple(value.shape)).encode() + content


def _first_values(value: Any) -> bytes:
    """The first values of an array of any framework."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1)[:VALUES_MAX].cpu().contiguous()
        return bytes(flat.view(torch.uint8).numpy())  # NumPy does not have all of torch's types.
    return np.asarray(value).reshape(-1)[:VALUES_MAX].tobytes()
