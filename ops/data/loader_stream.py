"""A Stream from a torch DataLoader, or anything like it; torch itself is not imported.

Decides what an epoch is: one pass over the loader, after which the next begins. Where a sampler has `set_epoch`, or the
loader a `generator`, its order follows from the seed and the number of the epoch, so that an epoch can be read again. A
loader that has a state of its own (`state_dict`, as torchdata's StatefulDataLoader) keeps it; of any other the state is
the epoch and the number of its batches, and to go back there those batches are read and discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import numpy as np

from isthmus.ops.data.files import DataError

_DOING: Final = "Making a LoaderStream"


@final
class LoaderStream:
    """The batches of a loader, epoch after epoch, as numpy arrays.

    `loader` can be iterated over and over, and is of one slot: `DataLoader(dataset, batch_size=8, drop_last=True,
    sampler=DistributedSampler(dataset, slots, slot))`, for example. DataError for one that shuffles without a
    generator, whose order cannot be repeated, and for one without batches.
    """

    def __init__(self, loader: Any, *, seed: int = 0) -> None:
        if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
            found, do = f"a {type(loader).__name__}", "Pass the DataLoader itself, not iter(loader)."
            raise DataError(_DOING, "a loader that can be iterated again and again", found, do)
        shuffles = type(getattr(loader, "sampler", None)).__name__ == "RandomSampler"
        if shuffles and getattr(loader, "generator", None) is None:
            do = "Pass generator=torch.Generator() to the DataLoader, or a sampler with set_epoch."
            raise DataError(_DOING, "an order that can be repeated", "shuffle=True without a generator", do)
        self._loader, self._seed = loader, seed
        self._epoch = self._count = 0
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        """The next batch, of this epoch or the next."""
        if self._batches is None:
            self._batches = self._begun()
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._count:
                do = "Use fewer slots, a smaller batch, or more data."
                raise DataError("Reading a LoaderStream", "batches in an epoch", "none", do) from None
            self._epoch, self._count, self._batches = self._epoch + 1, 0, None
            return next(self)
        self._count += 1
        return as_numpy(batch)

    def get_state(self) -> dict[str, Any]:
        """The epoch, and the position in it."""
        own = self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
        return {"epoch": self._epoch, "count": self._count, "loader": own}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to that position."""
        self._epoch, self._count, self._batches = state["epoch"], 0, None
        if state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])
            self._count = state["count"]
            return
        for _ in range(state["count"]):
            next(self)

    def _begun(self) -> Iterator[Any]:
        sampler, generator = getattr(self._loader, "sampler", None), getattr(self._loader, "generator", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._epoch)
        if generator is not None:
            generator.manual_seed(self._seed + self._epoch)
        return iter(self._loader)


def as_numpy(batch: Any) -> Any:
    """A batch with each tensor as a numpy array; dicts stay dicts, lists and tuples become lists."""
    if isinstance(batch, Mapping):
        return {name: as_numpy(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [as_numpy(value) for value in batch]
    return batch.numpy() if hasattr(batch, "numpy") else np.asarray(batch)
