"""What learners lend each other through the recorder: local leaves, for one that begins without any of its own."""

from __future__ import annotations

from typing import Any, TypedDict

from isthmus.ops.exchange.schemas import COUNT, LEAVES, LIFE, OWN


class Moments(TypedDict):
    """inner-step -> lend: `lacks` and `lends`, whether this life would borrow, and whether it has what is worth a loan;
    `to`, the life [slot, incarnation] that asked through the recorder, None where none does, and the `leaves` for it
    after so many of this life's steps, as [type, shape, bytes], none where it has none that are good."""

    slot: int
    incarnation: int
    lacks: bool
    lends: bool
    to: list[int] | None
    step: int
    leaves: list[list[Any]]


class Loan(TypedDict):
    """lend -> inner-step, of the life [slot, incarnation]: the life `to` which it is to lend, or what it is lent by the
    life `by`, after so many steps of that one, as `Moments` has it. With neither, what was said before is over."""

    slot: int
    incarnation: int
    to: list[int] | None
    by: list[int] | None
    step: int
    leaves: list[list[Any]]


_MEMBER = ("optional", ("row", COUNT, LIFE))
MOMENTS = {**OWN, "lacks": "flag", "lends": "flag", "to": _MEMBER, "step": COUNT, "leaves": LEAVES}
LOAN = {"slot": COUNT, "incarnation": LIFE, "to": _MEMBER, "by": _MEMBER, "step": COUNT, "leaves": LEAVES}
