"""Merges in a program of two levels: the answers of regions, each of the work of many learners, the share that each
region has of a merge, and the most that an owner of learners has, in a region and over all.

Nothing of how a region adopts and answers is here (`regional_step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast, final

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.influence import capped
from isthmus.ops.exchange.messages import Answer, RegionAnswer, Round
from isthmus.ops.exchange.token_accounts import FragmentAccount
from isthmus.ops.step_tokens import StepTokens
from isthmus.ops.syncer.answer_kinds import CheckedWork
from isthmus.ops.syncer.answer_rules import AnswerJudge, JudgePlace, RoundTally, owner_of
from isthmus.ops.syncer.answer_work import rows_of, work_of
from isthmus.programs.program_graph import REGION


@final
@dataclass(frozen=True, slots=True)
class RegionAnswers:
    """Those of regions, each of the work of many learners."""

    role: ClassVar[str] = REGION

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


# -- owners ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class OwnersWithin:
    """In a region no owner has more of a merge than gives it the most that it may have of the model: that, divided by
    the region's share of the run's tokens.

    An owner that has learners in several regions has that in each: `OwnersAmong` bounds it over all of them.
    """

    share_max: float
    regions: int
    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that knows whose learners are."""
        return _OwnersWithin(place.context, self.share_max, self.regions)


@final
class _OwnersWithin(AnswerJudge):
    def __init__(self, context: Any, share_max: float, regions: int) -> None:
        self._context, self._share_max, self._regions = context, share_max, regions
        self._region = context.member.replica.slot % regions

    def counts_as_it_is(self, vote: Answer) -> bool:
        return owner_of(self._context, vote["slot"], self._share_max)[1] >= 1.0

    def share(self, tally: RoundTally) -> None:
        owners = [owner_of(self._context, vote["slot"], self._share_max) for vote in tally.answers]
        if all(most >= 1.0 for _, most in owners):  # The weights remain, as they are known when an answer arrives.
            return
        within = self._share(tally.round)
        most_within = {name: 1.0 if most >= within else most / within for name, most in owners}
        shares, whole, reduced = capped(tally.parts, [name for name, _ in owners], most_within)
        if reduced:
            tally.record["capped"] = [list(each) for each in reduced]
            tally.divide(shares, whole)

    def _share(self, round: Round) -> float:
        """The region's share of the run's tokens, as it knows them; the whole where nothing is known."""
        own = sum(tokens for slot, _, tokens in round["totals"] if slot % self._regions == self._region)
        whole = sum(tokens for *_, tokens in round["totals"])
        return own / whole if whole else 1.0


@final
@dataclass(frozen=True, slots=True)
class OwnersAmong:
    """Over all regions no owner has more of a merge than it may: the answers in which one that would have more has
    work count as much less. What is missing counts as a gradient of zero.

    What an owner has of a region's answer the region says, whose syncers are believed.
    """

    sums_early: ClassVar[bool] = False

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that remembers nothing."""
        return _OwnersAmong()


@final
class _OwnersAmong(AnswerJudge):
    def share(self, tally: RoundTally) -> None:
        most: dict[str, float] = {}
        own: dict[str, float] = {}
        parts, owners = [part / sum(tally.parts) * tally.whole for part in tally.parts], []
        for vote, part in zip(tally.answers, parts, strict=True):
            told = cast(RegionAnswer, vote).get("owners", [])
            owners.append([(name, share) for name, share, _ in told if share > 0])
            for name, share, bound in told:
                own[name] = own.get(name, 0.0) + part * share
                most[name] = min(bound, most.get(name, bound))
        over = {name: most[name] / share for name, share in own.items() if share > most[name]}
        if not over:
            return
        factors = [min((over.get(name, 1.0) for name, _ in each), default=1.0) for each in owners]
        shares = [part * factor for part, factor in zip(parts, factors, strict=True)]
        now = dict.fromkeys(over, 0.0)
        for share, each in zip(shares, owners, strict=True):
            for name in over.keys() & dict(each).keys():
                now[name] += share * dict(each)[name]
        tally.record["capped"] = [[name, own[name], now[name]] for name in sorted(over)]
        tally.divide(shares, sum(shares))
