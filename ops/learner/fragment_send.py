"""The fragment-send node: turns a learner's capture into the answer that leaves the learner.

Decides the format of the outer gradient that leaves. It waits for the device in its own thread, so that inner-step does
not; where the learner has coded on its devices, it only waits for the codes. In NumPy, because a learner's process that
loads no numba starts half a second sooner. Which round is answered, and with which work, was decided before
(`answers`), and is not looked at here but for what the merge relies on.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import ml_dtypes
import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Answer, Capture, passed_on
from isthmus.ops.exchange.requested import Format
from isthmus.ops.kernels.buffers import Float32

if TYPE_CHECKING:
    from types import ModuleType


_PART_SIZE: Final = 1 << 15
"""Values computed at a time: 256 KiB of float64, which stay in the second-level cache."""


def outer_gradient(anchor: Float32, values: Float32, fragment: Fragment) -> Float32:
    """The outer gradient, the anchor as a learner holds it - values: float32[n] in memory of its own.

    A learner holds an anchor with each unit rounded to the dtype of its leaf, as adoption rounds it: what that took
    away was not trained. The memory is not recycled, because between two answers nothing would use it.

    A leaf of lower precision begins at the rounded anchor, so the values are subtracted from that: the part that
    adoption rounded away was not trained.
    """
    gradient = np.subtract(anchor, values)
    for unit, (begin, end) in zip(fragment.units, pairwise(fragment.offsets), strict=True):
        if unit.dtype != "float32":
            for at in range(begin, end, _PART_SIZE):
                part = slice(at, min(at + _PART_SIZE, end))
                np.subtract(anchor[part].astype(_dtype(unit.dtype)), values[part], out=gradient[part], dtype=np.float32)
    return gradient


def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name; ml_dtypes has those that NumPy lacks."""
    return np.dtype(getattr(ml_dtypes, name, name))


def norms(vector: Float32, fragment: Fragment) -> Float32:
    """The Euclidean length of each unit of a payload float32[n], as float32[units], summed in float64.

    The sums are NumPy's pairwise ones, not those of BLAS, which depend on the machine.
    """
    if vector.size <= _PART_SIZE:
        squares = vector.astype(np.float64)
        np.square(squares, out=squares)
        return np.sqrt(np.add.reduceat(squares, fragment.offsets[:-1])).astype(np.float32)
    lengths = [_length(vector[begin:end]) for begin, end in pairwise(fragment.offsets)]
    return np.array(lengths, np.float32)


def _length(values: Float32) -> float:
    parts = (values[at : at + _PART_SIZE].astype(np.float64) for at in range(0, values.size, _PART_SIZE))
    return math.sqrt(sum(float(np.square(part, out=part).sum()) for part in parts))


class FragmentSend:
    """Capture in, Answer out: the outer gradient anchor - values, and its norm per unit.

    `push` is its format on the wire; "auto" takes the format that the pull asks for. First and recovered versions leave
    as float32.

    An outer gradient may leave in fewer bits. Its norms are those before coding, so that where the merge uses direction
    and length, coding costs direction alone. The coding error is not carried over to the next answer: that was not
    needed at 4 bits, and a refused answer would have to restore it.
    """

    outputs: ClassVar[tuple[str, ...]] = ("answer",)
    collects: ClassVar[tuple[str, ...]] = ("fragment",)
    noted: ClassVar = {"answer": ("begin", "end", "former")}

    def __init__(self, fragments: Sequence[Fragment], *, push: Format | Literal["auto"] = "float32") -> None:
        self._fragments = fragments
        self._push = push

    def prepare(self) -> None:
        """Load the kernels that encode; float32 needs none."""
        self._load()
        if self._push != "float32":
            self._coding.warm_pushes()

    def open(self, context: Any) -> None:
        """Where no fork server has loaded them, the first answer does: no first step waits for it."""
        self._load()

    def _load(self) -> None:
        if self._push != "float32":
            from isthmus.ops.kernels import coding

            self._coding: ModuleType = coding

    def __call__(self, fragment: Mapping[Any, Capture]) -> Generator[list[tuple[str, Answer]], None, None]:
        """Yields the answers to all new captures, in order of their rounds.

        Each answer leaves when it is made, and its capture is released. Otherwise a learner would hold the captures and
        gradients of all rounds that it answers together, which at the end are those of all fragments.
        """
        captures = sorted(fragment.values(), key=itemgetter("round", "fragment"), reverse=True)
        del fragment
        while captures:
            yield [("answer", self._answer(captures.pop()))]

    def _answer(self, capture: Capture) -> Answer:
        fragment, anchor = self._fragments[capture["fragment"]], capture["anchor"]
        if (coded := capture.get("coded")) is not None:
            codes, scales, lengths, form = coded.fetch()
            gradient = self._coding.item_fields("gradient", self._coding.Coded(codes, scales, form))
        else:
            values = np.asarray(capture["values"], np.float32)
            whole = values if anchor is None else outer_gradient(anchor, values, fragment)
            lengths = norms(whole, fragment)
            gradient = self._gradient_fields(capture, whole)
        # As the merge demands of it at the other end: a norm for each unit, and no tokens without steps.
        tokens, steps = capture["end"] - capture["begin"], capture["steps"]
        assert len(lengths) == len(fragment.units)
        assert min(tokens, steps) >= 0, (tokens, steps)
        assert steps > 0 or tokens == 0, (tokens, steps)
        answer: Answer = passed_on(Answer, capture, norms=lengths, **gradient)
        return answer

    def _gradient_fields(self, capture: Capture, whole: Float32) -> dict[str, Any]:
        """The fields of an answer that have its outer gradient."""
        push = capture.get("push", "float32") if self._push == "auto" else self._push
        if push == "float32" or capture["anchor"] is None:
            return {"gradient": whole}
        fragment = self._fragments[capture["fragment"]]
        fields: dict[str, Any] = self._coding.item_fields("gradient", self._coding.encode(whole, fragment, push))
        return fields
