"""The work in an answer: the ranges of tokens and steps that it is the sum of, of a learner or of a region.

The one place that reads it: who makes an answer, checks it, weighs it and books it counts the same. No values come in.
"""

from __future__ import annotations

from typing import Any, cast

from isthmus.ops.exchange.messages import Answer


def ranges_of(vote: Answer) -> list[list[int]]:
    """The ranges in an answer, by life, those before its own first: [incarnation, begin, end, steps]."""
    own = [vote["incarnation"], vote["begin"], vote["end"], vote["steps"]]
    return [*vote.get("former", ()), *([own] if vote["steps"] else [])]


def rows_of(vote: Answer) -> list[list[int]]:
    """The ranges in an answer of a learner, or of a region: [slot, incarnation, begin, end, steps]."""
    work: list[list[int]] | None = cast(Any, vote).get("work")
    return [[vote["slot"], *row] for row in ranges_of(vote)] if work is None else work


def work_of(vote: Answer) -> tuple[int, int]:
    """The tokens and the steps in an answer, of all lives."""
    rows = rows_of(vote)
    return sum(end - begin for *_, begin, end, _ in rows), sum(steps for *_, steps in rows)
