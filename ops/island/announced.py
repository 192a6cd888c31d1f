"""What a loop of the user's own has announced before its `with`, and what differs from it at a boundary.

Fragments are fixed when a run starts. What a loop trains beside them would be trained by each island for itself, and
islands would differ at the end. So the leaves that take part, merged and frozen ones, are compared at each boundary
with those that were announced, and a difference ends the run. Local leaves are nobody else's: they are not compared.

Frozen leaves are compared by their digests, for which each has to be read, from a device, too, and many gigabytes below
adapters: at steps 1, 4, 16, 64 and so on, and at the last one. So of a million steps 11 pay for it, all ranks of an
island in the same ones, and what is written in every step is found at the first. A framework adds what it can tell
without reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, final

from isthmus.ops.exchange.frozen_leaves import Digests

Kind: TypeAlias = Literal["place", "requires-grad", "form", "values", "groups", "optimizer"]
"""Of a leaf where the module has it, whether it needs a gradient, its form, or its values; or of what trains it."""


class Unannounced(NamedTuple):
    """A difference, and the leaves that it is about; in words what was announced and what was found, and how to
    announce it before the `with`."""

    kind: Kind
    leaves: tuple[str, ...]
    expected: str
    found: str
    do: str


_LEAVE_FROZEN: Final = (
    'Leave frozen leaves as they are. What changes in training is announced by merge=: as "rda", "average" or "mean" '
    'it is merged, as "local" it stays with its island.'
)


@final
class FrozenLeaves:
    """The frozen leaves of a loop, as `digests` reads them now; they were announced when this was made."""

    def __init__(self, digests: Callable[[], Digests]) -> None:
        self._digests = digests
        self.announced = digests()
        self._steps = 0

    def after_step(self) -> Unannounced | None:
        """The first leaf that has other values after a step, where this is one of the steps that look."""
        self._steps += 1
        is_power_of_two = self._steps & (self._steps - 1) == 0
        return self.change() if is_power_of_two and self._steps.bit_length() % 2 else None  # Of four.

    def change(self) -> Unannounced | None:
        """The first leaf that has other values."""
        if not self.announced:
            return None
        now = dict(self._digests())
        return changed_values([name for name, digest in self.announced if now.get(name) != digest])


def changed_values(leaves: Sequence[str]) -> Unannounced | None:
    """That these frozen leaves have other values than before; None if none has."""
    if not leaves:
        return None
    found = f"{leaves_in_words(leaves)} with other values"
    return Unannounced("values", tuple(leaves), "frozen leaves as before the with", found, _LEAVE_FROZEN)


def leaves_in_words(paths: Sequence[str]) -> str:
    """'head/weight', or 'head/weight' and 3 more."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]!r}{more}"
