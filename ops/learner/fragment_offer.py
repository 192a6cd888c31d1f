"""Answers to shards that keep sums: each is told ahead, and its values follow when they are wanted.

Decides how long values are kept: until they are sent, or the next answer about their fragment replaces them. Here is
the fragment-send node of a learner; what an answer is made of does not come in: that is `fragment_send`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Answer, AnswerValues, Capture, WantedValues, passed_on
from isthmus.ops.exchange.requested import Format
from isthmus.ops.kernels.buffers import Float32
from isthmus.ops.learner.fragment_send import FragmentSend

NOTHING: Final[Float32] = np.empty(0, np.float32)
"""In the place of values that do not come with an answer."""
TOLD_AHEAD: Final = ("merge", "final")
"""The kinds of answers whose values follow: the first version, and one that is recovered, come whole."""


class KeptValues:
    """The values of answers that were told ahead, of the last one about each fragment."""

    def __init__(self) -> None:
        self._kept: dict[int, Answer] = {}

    def told(self, answer: Answer) -> Answer:
        """What is sent of an answer at once."""
        if answer["kind"] not in TOLD_AHEAD:
            return answer
        self._kept[answer["fragment"]] = answer
        told: Answer = {**answer, "gradient": NOTHING}
        told.pop("scales", None)
        return told

    def values(self, wanted: WantedValues) -> AnswerValues:
        """Those that are wanted, which are kept no longer; none where a later answer has replaced them."""
        kept = self._kept.get(wanted["fragment"])
        if kept is None or kept["round"] != wanted["round"]:
            nothing: AnswerValues = passed_on(AnswerValues, wanted, gradient=NOTHING)
            return nothing
        del self._kept[wanted["fragment"]]
        values: AnswerValues = passed_on(AnswerValues, kept)
        return values


class FragmentOffer:
    """Captures in; at once an answer without values, and these when they are wanted.

    Values that are wanted of an answer which this node has no more, because a later one has replaced it, are none.

    Arguments: as of `FragmentSend`, which makes the answers.
    """

    outputs = ("answer", "values")
    collects = ("fragment", "wanted")
    noted: ClassVar = FragmentSend.noted
    schemas: ClassVar = {"wanted": WantedValues}

    def __init__(self, fragments: Sequence[Fragment], *, push: Format | Literal["auto"] = "float32") -> None:
        self._send = FragmentSend(fragments, push=push)
        self._kept = KeptValues()

    def prepare(self) -> None:
        """Load the kernels that encode."""
        self._send.prepare()

    def open(self, context: Any) -> None:
        """Learn whose answers these are."""
        self._send.open(context)
        self._own = context.member.replica.slot, context.member.incarnation

    def __call__(
        self, fragment: Mapping[Any, Capture] | None = None, wanted: Mapping[Any, WantedValues] | None = None
    ) -> Generator[list[tuple[str, Answer | AnswerValues]], None, None]:
        """Yields values, then new answers, in order of their rounds."""
        for item in (wanted or {}).values():
            if (item["slot"], item["incarnation"]) == self._own:
                yield [("values", self._kept.values(item))]
        made, fragment = self._send(fragment or {}), None  # It lets go of each capture.
        for emitted in made:
            yield [(port, self._kept.told(answer)) for port, answer in emitted]
