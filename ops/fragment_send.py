"""The fragment-send node: turns what a learner captured into the answer that leaves the learner.

It waits for the device in its own thread, so that inner-step does not; anchors belong to whoever decodes updates, and
here they are only subtracted from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from isthmus.ops.fragment import Fragment
from isthmus.ops.items import Answer, Capture
from isthmus.ops.outer_gradient import norms, subtract


class FragmentSend:
    """Capture in, Answer out: the outer gradient anchor - values, and its norm per unit."""

    outputs = ("answer",)

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
        gradient = np.array(values) if anchor is None else subtract(anchor, values)
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
            norms=norms(gradient, self._fragments[capture["fragment"]]),
        )
