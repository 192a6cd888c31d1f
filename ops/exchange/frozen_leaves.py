"""Frozen leaves: what every island makes for itself, and nobody sends. Their digests are part of the run.

A digest is that of dtype, shape and bytes, so equal digests mean equal values, whatever framework has made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import xxhash

Digests: TypeAlias = tuple[tuple[str, str], ...]
"""(name, digest) of each frozen leaf, sorted by name."""


class FrozenLeafError(ValueError):
    """A frozen leaf that has other values here than in the run: `expected` and `found`."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(
            f"Making the frozen leaves: expected {expected}, found {found}. Load them from the same files everywhere."
        )
        self.expected, self.found = expected, found


@runtime_checkable
class HasFrozen(Protocol):
    """A learner, or an evaluation, of a model with frozen leaves."""

    def frozen(self) -> Digests:
        """Their digests, as they are here."""


def digest_of(array: Any) -> str:
    """32 hexadecimal digits."""
    values = np.require(array, requirements="C")
    hasher = xxhash.xxh3_128(f"{values.dtype}{list(values.shape)}".encode())
    hasher.update(values.reshape(-1).view(np.uint8))
    return hasher.hexdigest()


def digests_of(leaves: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Digests:
    """The digests of frozen leaves, which are read one after the other."""
    pairs = leaves.items() if isinstance(leaves, Mapping) else leaves
    return tuple(sorted((name, digest_of(array)) for name, array in pairs))


def difference(expected: Digests, found: Digests) -> tuple[str, str] | None:
    """The first leaf that is not the same, as it should be and as it is, in words; None if all are the same."""
    there, here = dict(expected), dict(found)
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            return _in_words(name, there.get(name)), _in_words(name, here.get(name))
    return None


def _in_words(name: str, digest: str | None) -> str:
    return f"no frozen leaf {name!r}" if digest is None else f"frozen leaf {name!r} with digest {digest}"


def check(expected: Digests, learner: Any) -> None:
    """FrozenLeafError unless a learner, or an evaluation, has frozen leaves with these digests, and no others."""
    if expected or isinstance(learner, HasFrozen):
        found = learner.frozen() if isinstance(learner, HasFrozen) else ()
        if (pair := difference(expected, found)) is not None:
            raise FrozenLeafError(*pair)
