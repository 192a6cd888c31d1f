"""Loans between learners through the recorder: local leaves, for one that begins without any of its own."""

from __future__ import annotations

from typing import Any, TypedDict

from isthmus.ops.exchange.schemas import COUNT, LEAVES, LIFE, OWN


class Moments(TypedDict):
    """inner-step -> lend: `lacks` and `lends` tell whether this life would borrow, and whether it can lend.

    `to` is the life [slot, incarnation] that asked through the recorder, None where none does, and `leaves` are for it,
    after so many (`step`) of this life's steps, as [type, shape, bytes]; none where it has no good ones.
    """

    slot: int
    incarnation: int
    lacks: bool
    lends: bool
    to: list[int] | None
    step: int
    leaves: list[list[Any]]


class Loan(TypedDict):
    """lend -> inner-step, of the life [slot, incarnation]: the life `to` which it is to lend, or a loan `by` another.

    A loan holds the `leaves` after so many (`step`) of that life's steps, as in `Moments`. With neither, the request
    before is void.
    """

    slot: int
    incarnation: int
    to: list[int] | None
    by: list[int] | None
    step: int
    leaves: list[list[Any]]


_MEMBER = ("optional", ("row", COUNT, LIFE))
MOMENTS = {**OWN, "lacks": "flag", "lends": "flag", "to": _MEMBER, "step": COUNT, "leaves": LEAVES}
LOAN = {"slot": COUNT, "incarnation": LIFE, "to": _MEMBER, "by": _MEMBER, "step": COUNT, "leaves": LEAVES}
