"""A merge of regions: their answers, each of the work of many learners, and the share that each has of a merge.

Nothing of how a region merges its own learners is here (`regional_step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.influence import capped
from isthmus.ops.exchange.messages import Answer, Round
from isthmus.ops.exchange.token_accounts import FragmentAccount
from isthmus.ops.step_tokens import StepTokens
from isthmus.ops.syncer.answer_kinds import CheckedWork
from isthmus.ops.syncer.answer_rules import AnswerJudge, JudgePlace, RoundTally
from isthmus.ops.syncer.answer_work import rows_of, work_of


@final
@dataclass(frozen=True, slots=True)
class RegionAnswers:
    """Those of regions, each of the work of many learners."""

    def form(self, fragments: Sequence[Fragment], step_tokens: StepTokens) -> Any:
        """As `AnswerKind` says."""
        return schemas.region_answer(fragments, step_tokens)

    def checked(self, account: FragmentAccount, base: tuple[int, int], vote: Answer) -> CheckedWork:
        """As `AnswerKind` says: the sums of an answer are those of its rows."""
        rows = rows_of(vote)
        refusal = account.refusal_of_work(base, rows)
        sums = sum(end - begin for *_, begin, end, _ in rows), sum(steps for *_, steps in rows)
        if sums != (vote["end"] - vote["begin"], vote["steps"]):
            refusal = refusal or "inconsistent"
        return CheckedWork(refusal, rows)


@final
@dataclass(frozen=True, slots=True)
class RegionShares:
    """A region has no more of a merge than its share of the run's tokens, of those of the regions that were asked.

    On a thin link the answers of two regions come to different rounds; each merged with the whole weight would have the
    model make both steps, where it is to make their mean.
    """

    regions: int
    sums_early: ClassVar[bool] = False
    """Shares follow from the answers of all."""

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that remembers nothing."""
        return _Regions(self.regions)


@final
class _Regions(AnswerJudge):
    def __init__(self, regions: int) -> None:
        self._regions = regions

    def share(self, tally: RoundTally) -> None:
        slots = [str(vote["slot"] % self._regions) for vote in tally.answers]
        # Not said in the record: it is so in every merge.
        shares, whole, _ = capped(tally.parts, slots, self._parts(tally.round, tally.answers))
        tally.divide(shares, whole)

    def _parts(self, round: Round, answers: Sequence[Answer]) -> dict[str, float]:
        """The share of the run's tokens that each region has which answers, of those that were asked."""
        tokens = dict.fromkeys([slot % self._regions for slot, _ in round["members"]], 0)
        for slot, _, trained in round["totals"]:
            if slot % self._regions in tokens:
                tokens[slot % self._regions] += trained
        for vote in answers:  # The totals may be older.
            region = vote["slot"] % self._regions
            tokens[region] = max(tokens.get(region, 0), work_of(vote)[0])
        whole = sum(tokens.values())
        return {str(region): tokens[region] / whole for region in {vote["slot"] % self._regions for vote in answers}}
