"""The fragment-send node: turns what a learner captured into the answer that leaves the learner.

It waits for the device in its own thread, so that inner-step does not; anchors belong to whoever decodes updates, and
here they are only subtracted from. A leaf of lower precision begins at what it can hold of the anchor, so that is what
is subtracted from: what adopting rounded away was not trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Answer, Capture
from isthmus.ops.learner.outer_gradient import as_held, norms, subtract


class FragmentSend:
    """Capture in, Answer out: the outer gradient anchor - values, and its norm per unit."""

    outputs = ("answer",)
    noted: ClassVar = {"answer": ("begin", "end")}

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._fragments = fragments

    def __call__(self, fragment: Mapping[Any, Capture]) -> list[tuple[str, Answer]]:
        """The answers to all captures that are new, in order of their rounds."""
        captures = sorted(fragment.values(), key=itemgetter("round", "fragment"))
        return [("answer", self._answer(capture)) for capture in captures]

    def _answer(self, capture: Capture) -> Answer:
        values = np.asarray(capture["values"], np.float32)
        anchor = capture["anchor"]
        # A copy, because the device may hand out a view of memory that is its own.
        fragment = self._fragments[capture["fragment"]]
        gradient = np.array(values) if anchor is None else subtract(as_held(anchor, fragment), values)
        return Answer(
            fragment=capture["fragment"],
            round=capture["round"],
            kind=capture["kind"],
            slot=capture["slot"],
            incarnation=capture["incarnation"],
            base=capture["base"],
            begin=capture["begin"],
            end=capture["end"],
            steps=capture["steps"],
            clock=capture["clock"],
            gradient=gradient,
            norms=norms(gradient, fragment),
            positions=capture["positions"],
            state=capture["state"],
        )
