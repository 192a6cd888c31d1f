"""Whose answers a merge gets: what form they have, and which accounts their work is booked in.

How much an answer counts does not come in: that is for rules (`answer_rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, final

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.adaptive import LEARNER
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Answer
from isthmus.ops.exchange.token_accounts import FragmentAccount
from isthmus.ops.step_tokens import StepTokens


class CheckedWork(NamedTuple):
    """Why the accounts refuse the work in an answer, None if they do not, and the ranges whose tokens are still to be
    compared with their steps: [slot, incarnation, begin, end, steps]."""

    refusal: str | None
    rows: list[list[int]]


class AnswerKind(Protocol):
    """Who answers, as data: frozen."""

    role: ClassVar[str]
    """That of the hosts which answer."""

    def form(self, fragments: Sequence[Fragment], step_tokens: StepTokens) -> Any:
        """The form of the answers."""

    def checked(self, account: FragmentAccount, base: tuple[int, int], vote: Answer) -> CheckedWork:
        """What the account of its fragment says of an answer on that base."""


@final
@dataclass(frozen=True, slots=True)
class LearnerAnswers:
    """Those of learners, each of its own work."""

    role: ClassVar[str] = LEARNER

    def form(self, fragments: Sequence[Fragment], step_tokens: StepTokens) -> Any:
        """As `AnswerKind` says."""
        return schemas.answer(fragments, step_tokens)

    def checked(self, account: FragmentAccount, base: tuple[int, int], vote: Answer) -> CheckedWork:
        """As `AnswerKind` says."""
        former, tokens = vote.get("former", ()), vote["end"] - vote["begin"]
        begin, end, steps = vote["begin"], vote["end"], vote["steps"]
        refusal = account.refusal(vote["slot"], vote["incarnation"], base, begin, end, steps, tokens, former)
        return CheckedWork(refusal, [[vote["slot"], *each] for each in former])
