"""The loans of one life of a learner: local leaves that it borrows from another, and lends to others.

The lend node is `ops.recovery.lend`. This module decides how long a loan is worth it. A life that begins with no local
leaves of its own steps at once, and takes those of another that arrive within `BORROW_STEPS` steps; later its own are
as good. It lends once it has found or borrowed some, or has made twice as many steps: where all begin together, none
has any to lend. It lends the leaves after its last step, unless its loss is not finite. Leaves that have the right form
but bad values lead to a loss that is not finite, and that creates them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, final

from isthmus.ops.exchange.lending import Loan, Moments
from isthmus.ops.exchange.token_accounts import Odometer
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.recovery.leaves import packed, unpacked

BORROW_STEPS: Final = 64
"""After so many steps a running mean with a decay of 0.95 has forgotten its initial value by 96 %."""


@final
class Lending:
    """The loans of the life that a host opens with `context`.

    `learner` is None where it neither borrows nor lends: an elastic island has copies of its own.
    """

    def __init__(self, context: Any, learner: LastingLearning | None, odometer: Odometer) -> None:
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._learner = learner if "moments" in context.connected else None
        self._odometer = odometer
        self._lacks: bool | None = None
        """None before the first step."""
        self._has_taken = False
        self._to: list[int] | None = None
        self._told: tuple[Any, ...] = ()

    def begin(self, *, is_anew: bool) -> None:
        """Record the first step, with local leaves that were created anew, or are those of a life before."""
        self._lacks, self._has_taken = is_anew, not is_anew

    def hear(self, loans: Mapping[Any, Loan]) -> list[Any] | None:
        """Take lent leaves, and requests to lend; returns ["peer", slot, step] of the life whose leaves were taken."""
        began = None
        for loan in loans.values():
            if (loan["slot"], loan["incarnation"]) != (self._slot, self._incarnation):
                continue
            self._to = loan["to"]
            if loan["by"] is not None and self._lacks and self._take(loan):
                began = ["peer", loan["by"][0], loan["step"]]
        return began

    def _take(self, loan: Loan) -> bool:
        self._lacks = False  # Leaves of another form are not requested again.
        with suppress(ValueError):
            self._has_taken = self._learner is not None and self._learner.borrow(
                [unpacked(each) for each in loan["leaves"]]
            )
        return self._has_taken

    def news(self, *, is_sick: bool) -> list[tuple[str, Moments]]:
        """The announcement of this life's loans, where it has changed."""
        if self._learner is None or self._lacks is None:
            return []
        self._lacks = self._lacks and self._odometer.steps < BORROW_STEPS
        lends = self._has_taken or self._odometer.steps >= 2 * BORROW_STEPS
        if self._told == (self._lacks, lends, self._to):
            return []
        self._told = self._lacks, lends, self._to
        leaves = self._learner.lend() if self._to is not None and lends and not is_sick else []
        told = Moments(
            slot=self._slot,
            incarnation=self._incarnation,
            lacks=self._lacks,
            lends=lends,
            to=self._to,
            step=self._odometer.steps,
            leaves=[packed(leaf) for leaf in leaves],
        )
        return [("moments", told)]
