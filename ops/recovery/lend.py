"""The lend node: brings a learner that begins without moments those of another, through the host of the recorder.

Decides the lender of each loan, one loan at a time, so that this host never has more than one learner's leaves. Of the
learners with something to lend, it asks the one that has lent least often, the lowest slot first; one without good
leaves, or one that dies, it does not ask again. Messages are withdrawn once the borrower has what it asked for, no
longer wants it, or is gone: Latest keeps the last item for learners that connect again. All of that is checked when any
learner sends something new, because a loan is useful in the first steps only, and a timer that is as quick would fire
all day for it; so where an asked lender dies, the borrower may get none. The borrower steps meanwhile, and the lender
copies its leaves between two steps, once; no learner waits for another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final

from isthmus.ops.exchange.messages import Loan, Moments

Life: TypeAlias = tuple[int, int]
"""(slot, incarnation)."""


@dataclass(slots=True)
class _Deal:
    borrower: Life
    lender: Life
    is_given: bool = False


@final
class Lend:
    """Wants and offers of learners of `role` in; requests and loans out.

    Learners whose slots are equal modulo `period` lend to each other: others train another model.
    """

    outputs: ClassVar[tuple[str, ...]] = ("loan",)
    collects: ClassVar[tuple[str, ...]] = ("moments",)
    schemas: ClassVar[dict[str, Any]] = {"moments": Moments}

    def __init__(self, *, role: str, period: int = 1) -> None:
        self._role, self._period = role, period
        self._announced: dict[int, Moments] = {}
        self._deal: _Deal | None = None
        self._declined: set[tuple[Life, Life]] = set()
        """(borrower, lender): the lender had nothing for it, or died."""
        self._lent: Counter[int] = Counter()

    def open(self, context: Any) -> None:
        """Keep the context, for the live members."""
        self._context = context

    def __call__(self, moments: Mapping[Any, Moments] | None = None) -> list[tuple[str, Loan]] | None:
        """Continue the present loan, and begin the next."""
        for item in (moments or {}).values():
            last = self._announced.get(item["slot"])
            if last is None or item["incarnation"] >= last["incarnation"]:
                self._announced[item["slot"]] = item
        members = self._context.members()
        living = {(each.replica.slot, each.incarnation) for each in members if each.replica.role == self._role}
        self._announced = {
            slot: moments_of
            for slot, moments_of in self._announced.items()
            if (slot, moments_of["incarnation"]) in living
        }
        loans = [] if self._deal is None else self._gone_on(self._deal)
        if self._deal is None:
            loans += self._begun()
        return [("loan", loan) for loan in loans] or None

    def _gone_on(self, deal: _Deal) -> list[Loan]:
        """The next messages of the present loan."""
        borrower, lender = self._of(deal.borrower), self._of(deal.lender)
        if borrower is None or not borrower["lacks"]:
            return self._ended(deal)
        if deal.is_given:
            return []
        if lender is None or (_is_for(lender, deal.borrower) and not lender["leaves"]):
            self._declined.add((deal.borrower, deal.lender))
            return self._ended(deal)
        if not _is_for(lender, deal.borrower):
            return []
        deal.is_given = True
        return [_loan(deal.borrower, by=deal.lender, step=lender["step"], leaves=lender["leaves"])]

    def _ended(self, deal: _Deal) -> list[Loan]:
        """The messages that end a loan, to both."""
        self._deal = None
        return [_loan(life) for life in (deal.lender, deal.borrower)]

    def _begun(self) -> list[Loan]:
        """The request that begins the next loan."""
        announced = sorted(self._announced.items())
        lenders = [(slot, each["incarnation"]) for slot, each in announced if each["lends"]]
        for borrower in [(slot, each["incarnation"]) for slot, each in announced if each["lacks"]]:
            alike = [each for each in lenders if (each[0] - borrower[0]) % self._period == 0]
            able = [each for each in alike if (borrower, each) not in self._declined]
            if able:
                lender = min(able, key=lambda each: (self._lent[each[0]], each))
                self._lent[lender[0]] += 1
                self._deal = _Deal(borrower, lender)
                return [_loan(lender, to=borrower)]
        return []

    def _of(self, life: Life) -> Moments | None:
        """The last message of a life; None if it is gone."""
        moments = self._announced.get(life[0])
        return moments if moments is not None and moments["incarnation"] == life[1] else None


def _is_for(moments: Moments, borrower: Life) -> bool:
    return moments["to"] is not None and tuple(moments["to"]) == borrower


def _loan(life: Life, *, to: Life | None = None, by: Life | None = None, step: int = 0, leaves: Any = ()) -> Loan:
    slot, incarnation = life
    return Loan(
        slot=slot,
        incarnation=incarnation,
        to=None if to is None else list(to),
        by=None if by is None else list(by),
        step=step,
        leaves=list(leaves),
    )
