"""The outer-step node: Nesterov on the merged outer gradient, and the publication of what comes of it.

Holds Theta and the momentum of this shard's fragments in float32. Without compression what is published is Theta bit
for bit, in a new buffer each time. A fragment is published again, unchanged, where an answer to it was refused: its
learner may have missed the version before, or hold what nobody can use, and begins again from this one, which names it;
the others leave it aside. It is published once more as final at the end. A shard that comes back begins with the
version that learners hold, and with a momentum of zero; it publishes that version, for those who hold an older one or
none, and whoever holds it leaves it aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Final as FinalItem
from isthmus.ops.exchange.messages import Gradient, Merging, Update, Vector

if TYPE_CHECKING:
    from types import ModuleType


class OuterStep:
    """Gradient in; Update to everybody, Merging to pacer and recorder, and, at the end, Final once."""

    outputs = ("update", "merged", "final")
    noted: ClassVar = {"merged": ("kind", "epoch", "round", "version", "voters")}

    def __init__(self, fragments: Sequence[Fragment], *, lr: float, momentum: float) -> None:
        self._fragments = fragments
        self._lr, self._momentum = lr, momentum
        self._theta: dict[int, Vector] = {}
        self._velocity: dict[int, Vector] = {}
        self._now: Any = None

    def open(self, context: Any) -> None:
        """Load the kernel before the first gradient comes."""
        from isthmus.ops.kernels import coding, nesterov

        nesterov.warm()
        self._is_finite = coding.is_finite
        self._nesterov: ModuleType = nesterov
        self._now = context.now

    def __call__(self, gradient: Gradient) -> dict[str, Any]:
        """Step, and publish; where there is nothing to merge only the fact is told."""
        p = gradient["fragment"]
        merged = gradient["direction"] is not None
        if merged:
            self._step(gradient)
        merging: Merging = {**gradient["merging"], "published_at": self._now()}
        emitted: dict[str, Any] = {"merged": merging}
        if merged or (p in self._theta and (gradient["kind"] == "final" or merging["refused"])):
            slots = {slot for slot, _ in merging["refused"]}
            emitted["update"] = self._update(gradient, [life for life in gradient["lives"] if life[0] in slots])
        if gradient["kind"] == "final" and p in self._theta:
            emitted["final"] = self._final(p, emitted["update"])
        return emitted

    def _step(self, gradient: Gradient) -> None:
        """Step. ArithmeticError if what comes of it is not finite: the merge has booked it, so this life ends, and the
        next one goes on from what learners hold."""
        p, direction, scale = gradient["fragment"], gradient["direction"], gradient["scale"]
        assert direction is not None
        assert scale is not None
        if gradient["kind"] in ("initial", "recover"):
            self._theta[p] = direction
            self._velocity[p] = np.zeros(self._fragments[p].size, np.float32)
            return
        theta, velocity = self._nesterov.outer_step(
            self._theta[p], self._velocity[p], direction, scale, self._fragments[p], self._lr, self._momentum
        )
        if not self._is_finite(theta):
            odd = np.count_nonzero(~np.isfinite(theta))
            raise ArithmeticError(
                f"the outer step of fragment {p}: expected finite values, found {odd} of {theta.size} that are not. "
                f"The merge should have refused answers of {gradient['merging']['voters']}; report this."
            )
        self._theta[p], self._velocity[p] = theta, velocity

    def _final(self, p: int, update: Update) -> FinalItem:
        fragment, values = self._fragments[p], update["values"]
        cuts = zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False)
        tensors = {unit.name: values[begin:end].reshape(unit.values_shape) for unit, begin, end in cuts}
        return FinalItem(fragment=p, version=update["version"], tensors=tensors)

    def _update(self, gradient: Gradient, refused: list[list[int]]) -> Update:
        assert gradient["version"] is not None
        return Update(
            fragment=gradient["fragment"],
            version=gradient["version"],
            kind=gradient["kind"],
            values=self._theta[gradient["fragment"]],
            clock=gradient["clock"],
            positions=gradient["positions"],
            totals=gradient["totals"],
            refused=refused,
        )
