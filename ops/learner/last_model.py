"""The last model in the leaves of a user's loop: what a script saves behind its `with` is what the run has trained.

A learner has the last model once it has adopted the last version of every fragment. It looks then whether its leaves
have these values, and reports a digest of each fragment, which the recorder compares with those of the model that it
has written. Comparable by construction is what an adoption writes: the published values, rounded to the dtype of the
leaf, which is the same on all islands. Leaves that are local are no part of it.

Steps that a script makes behind the last one are counted by nobody, and are in no model; so the last model is written
into the leaves once more as the script leaves its `with`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import ml_dtypes  # noqa: F401 (NumPy knows bfloat16 by it)
import numpy as np

from isthmus.ops.exchange import last_digests
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import CompanionReport, LastLeaves, Vector
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.learner.answers import HeldFragment
from isthmus.ops.learner.boundary import Boundary, Companion


@final
class LastModel(Companion):
    """The last versions that a loop's learner has adopted, of `fragments` of which it has `held` the newest version."""

    def __init__(
        self, learner: LastingLearning, fragments: Sequence[Fragment], held: Sequence[HeldFragment | None]
    ) -> None:
        self._learner, self._fragments, self._held = learner, fragments, held
        self._last = set[int]()
        self._looked_at: list[tuple[int, int]] = []
        self._leaves = LastLeaves(digests=[], leaf="")

    @classmethod
    def of(cls, boundary: Boundary) -> Self:
        """That of the learner of this boundary."""
        return cls(boundary.learner, boundary.fragments, boundary.held)

    def adopted(self, fragment: int, *, is_last: bool) -> None:
        """A version of a fragment was adopted; another one may follow the last one, where its shard has died."""
        (self._last.add if is_last else self._last.discard)(fragment)

    @property
    def is_there(self) -> bool:
        """Whether the last version of every fragment was adopted."""
        return len(self._last) == len(self._held)

    def reported(self) -> CompanionReport:
        return CompanionReport(last=self.leaves())

    def leaves(self) -> LastLeaves:
        """What the leaves have, as it was found when the last of these versions was adopted."""
        versions = [held.ledger.base for held in self._held if held is not None]
        if self.is_there and versions != self._looked_at:
            self._looked_at, self._leaves = versions, self._found()
        return self._leaves

    def write(self) -> str:
        """Write the last model into the leaves; returns the first leaf that has other values nevertheless, '' if none
        has. Does nothing where the last model is not there."""
        if not self.is_there:
            return ""
        for number, held in enumerate(self._held):
            assert held is not None  # Or it would not be there.
            self._learner.replace(number, held.anchor)
        return self._found()["leaf"]

    def _found(self) -> LastLeaves:
        digests, first = list[int](), ""
        for number, held in enumerate(self._held):
            assert held is not None
            values = np.asarray(self._learner.extract(number), np.float32)
            leaf = unlike(self._fragments[number], values, held.anchor)
            digests.append(last_digests.digest_of([values if leaf else held.anchor]))
            first = first or leaf
        return LastLeaves(digests=digests, leaf=first)


def unlike(fragment: Fragment, values: Vector, published: Any) -> str:
    """The first tensor whose `values` are not the published ones, rounded to its dtype, float32[n]; '' without any."""
    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        rounded = np.asarray(published[begin:end], np.float32).astype(np.dtype(unit.dtype)).astype(np.float32)
        if not np.array_equal(values[begin:end], rounded, equal_nan=True):
            return unit.tensor
    return ""
