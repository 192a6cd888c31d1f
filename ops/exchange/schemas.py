"""What a node's arguments add to the types of the items at its ports.

Decides nothing: bodies name the types of the items that come to their ports (`schemas`), and the runtime refuses
violations, by their sender (`runtime.items.schemas`, which lists the rules). So a body may rely on fields, types and
sizes of its inputs, and on `slot` and `incarnation` being those of the sender. Other contents of an item may still be
wrong: accounts, norm histories and relayed totals judge those. A vector that is not finite is such a case: a learner
that has diverged sends one and then recovers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Union

import numpy as np
import numpy.typing as npt

from isthmus.ops.exchange.formats import CODE_BLOCK, CODED, FORMATS
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Answer, AnswerValues, CodedState, Progress, RegionAnswer, Update, Vector, Vote
from isthmus.ops.exchange.requested import Count
from isthmus.ops.step_tokens import AtMost, StepTokens, tokens_now

NOTHING: Final = Annotated[Vector, ("sizes", 0)]
"""A vector without values."""


def tokens_of(steps: str, step_tokens: StepTokens, *start: str) -> Any:
    """The tokens of so many steps: tokens are weights, so they must be those that the steps can have."""
    now = tokens_now(step_tokens)
    if isinstance(now, AtMost):
        return Annotated[int, ("at most times", steps, now.tokens, *start)]
    return Annotated[int, ("times", steps, now, *start)]


def sized(kind: Any, sizes: Iterable[int]) -> Any:
    """An array of this type, whose size follows from the item's fragment."""
    return Annotated[kind, ("sizes", ("by", "fragment", tuple(sizes)))]


def blocks(fragments: Sequence[Fragment]) -> list[int]:
    """The number of blocks of codes, by fragment."""
    return [sum(-(-unit.size // CODE_BLOCK) for unit in fragment.units) for fragment in fragments]


def vector(name: str, fragments: Sequence[Fragment], *others: Any) -> dict[str, Any]:
    """The types of values of one of these fragments, as float32 or as codes of any format (`kernels.coding`), or of one
    of the `others`."""
    kinds = dict.fromkeys((FORMATS[each].dtype.type, FORMATS[each].values) for each in CODED)
    codes: list[Any] = []
    for kind, values in kinds:
        sizes = [sum(-(-unit.size // values) for unit in fragment.units) for fragment in fragments]
        codes.append(sized(npt.NDArray[kind], sizes))  # type: ignore[valid-type]
    floats = sized(npt.NDArray[np.float32], [fragment.size for fragment in fragments])
    return {name: Union[(floats, *codes, *others)], "scales": sized(Vector, blocks(fragments))}


def progress(fragments: int, step_tokens: StepTokens) -> Any:
    """The schema of a learner's progress, in a program of `fragments` fragments."""
    return Annotated[
        Progress,
        {
            "step": Annotated[Count, "firings"],
            "tokens": tokens_of("step", step_tokens),
            "epochs": Annotated[list[Count], ("length", fragments)],
        },
    ]


def answer(fragments: Sequence[Fragment], step_tokens: StepTokens) -> Any:
    """The schema of a learner's answer about one of these fragments."""
    return Annotated[
        Answer,
        {
            "fragment": Annotated[int, ("range", 0, len(fragments) - 1)],
            "end": tokens_of("steps", step_tokens, "begin"),
            "norms": sized(Vector, [len(fragment.units) for fragment in fragments]),
            **vector("gradient", fragments),
        },
    ]


def told(form: Any, fragments: Sequence[Fragment]) -> Any:
    """The schema of an answer of this form whose values may follow."""
    return Annotated[form.__origin__, {**form.__metadata__[0], **vector("gradient", fragments, NOTHING)}]


def answer_values(fragments: Sequence[Fragment]) -> Any:
    """The schema of these values."""
    within = Annotated[int, ("range", 0, len(fragments) - 1)]
    return Annotated[AnswerValues, {"fragment": within, **vector("gradient", fragments, NOTHING)}]


def region_answer(fragments: Sequence[Fragment], step_tokens: StepTokens) -> Any:
    """The schema of a region's answer about one of these fragments, of slots whose batches may differ."""
    now = tokens_now(step_tokens)
    fields: Any = answer(fragments, AtMost(max(now)) if isinstance(now, tuple) else now).__metadata__[0]
    return Annotated[RegionAnswer, fields]


def vote(whole: Sequence[Fragment], tokens_most: int) -> Any:
    """The schema of a learner's vote with a gradient of the whole model, of at most so many tokens."""
    size = sum(fragment.size for fragment in whole)
    values, tokens = Annotated[Vector, ("sizes", size)], Annotated[int, ("range", 1, tokens_most)]
    return Annotated[Vote, {"tokens": tokens, "values": values}]


def coded_state(fragments: Sequence[Fragment]) -> Any:
    """The schema of a shard's state beside its updates."""
    codes = sized(npt.NDArray[np.int8], [fragment.size for fragment in fragments])
    scales = sized(Vector, blocks(fragments))
    return Annotated[CodedState, {"momentum": codes, "momentum_scales": scales, "theta": codes, "theta_scales": scales}]


def coded_update(fragments: Sequence[Fragment]) -> Any:
    """The schema of a shard's updates where they may be coded; empty where a copy is withdrawn."""
    return Annotated[Update, vector("values", fragments, NOTHING)]
