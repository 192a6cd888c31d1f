"""The outer-step node: Nesterov on the merged outer gradient, and the publication of what comes of it.

Holds Theta and the momentum of this shard's fragments in float32. Without compression what is published is Theta bit
for bit, in a new buffer each time. A fragment is published again, unchanged, where an answer to it was refused (its
learner may have missed the version before), and once more as final at the end. A shard that comes back begins with the
version that learners hold, and with a momentum of zero; it publishes that version, for those who hold an older one or
none, and whoever holds it leaves it aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from isthmus.ops.fragment import Fragment
from isthmus.ops.items import Final as FinalItem
from isthmus.ops.items import Gradient, Merging, Update, Vector

if TYPE_CHECKING:
    from types import ModuleType


NOT_FINITE: Final = "the outer step was not finite"


class OuterStep:
    """Gradient in; Update to everybody, Merging to pacer and recorder, and, at the end, Final once."""

    outputs = ("update", "merged", "final")

    def __init__(self, fragments: Sequence[Fragment], *, lr: float, momentum: float) -> None:
        self._fragments = fragments
        self._lr, self._momentum = lr, momentum
        self._theta: dict[int, Vector] = {}
        self._velocity: dict[int, Vector] = {}
        self._now: Any = None

    def open(self, context: Any) -> None:
        """Load the kernel before the first gradient comes."""
        from isthmus.ops import merging, nesterov

        nesterov.warm()
        self._is_finite = merging.is_finite
        self._nesterov: ModuleType = nesterov
        self._now = context.now

    def __call__(self, gradient: Gradient) -> dict[str, Any]:
        """Step, and publish; where there is nothing to merge only the fact is told."""
        p = gradient["fragment"]
        merged = gradient["direction"] is not None and self._step(gradient)
        merging: Merging = {**gradient["merging"], "published_at": self._now()}
        if gradient["direction"] is not None and not merged:
            merging["refused"] = [*merging["refused"], *([slot, NOT_FINITE] for slot in merging["voters"])]
            merging["voters"], merging["weights"], merging["version"] = [], [], None
        emitted: dict[str, Any] = {"merged": merging}
        if merged or (p in self._theta and (gradient["kind"] == "final" or merging["refused"])):
            emitted["update"] = self._update(gradient)
        if gradient["kind"] == "final" and p in self._theta:
            emitted["final"] = self._final(p, emitted["update"])
        return emitted

    def _step(self, gradient: Gradient) -> bool:
        """Step; whether what comes of it is finite, and is the model from now on."""
        p, direction, scale = gradient["fragment"], gradient["direction"], gradient["scale"]
        assert direction is not None
        assert scale is not None
        if gradient["kind"] in ("initial", "recover"):
            self._theta[p] = direction
            self._velocity[p] = np.zeros(self._fragments[p].size, np.float32)
            return True
        theta, velocity = self._nesterov.outer_step(
            self._theta[p], self._velocity[p], direction, scale, self._fragments[p], self._lr, self._momentum
        )
        if not self._is_finite(theta):
            return False
        self._theta[p], self._velocity[p] = theta, velocity
        return True

    def _final(self, p: int, update: Update) -> FinalItem:
        fragment, values = self._fragments[p], update["values"]
        cuts = zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False)
        tensors = {unit.name: values[begin:end].reshape(unit.values_shape) for unit, begin, end in cuts}
        return FinalItem(fragment=p, version=update["version"], tensors=tensors)

    def _update(self, gradient: Gradient) -> Update:
        assert gradient["version"] is not None
        return Update(
            fragment=gradient["fragment"],
            version=gradient["version"],
            kind=gradient["kind"],
            values=self._theta[gradient["fragment"]],
            clock=gradient["clock"],
            totals=gradient["totals"],
        )
