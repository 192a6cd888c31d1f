"""The rules of a merge: which of the answers to a round count, shortened or not, and how much of it each has.

A merge has a list of rules, in an order that matters and is in the fingerprint of its run. A rule is data, which the
graph carries; it *begins* a judge for each shard, which remembers what it needs. What every merge needs, whatever its
rules are, is in `merge`: that work is booked once, that values are those of the norms, that the model stays finite.

What every rule is, and those of any merge of learners, are here; nothing of one answer alone is decided that may be
decided when it arrives, no rule knows another one, and none knows the merge.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, final

import numpy as np

from isthmus.ops.exchange.adaptive import LEARNER
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.influence import capped
from isthmus.ops.exchange.merge_rules import Float64
from isthmus.ops.exchange.messages import Answer, Merging, Round
from isthmus.ops.kernels.bounds import (
    LEARNERS_MIN,
    MERGES_MIN,
    DissentCounter,
    agreements,
    cosine_of,
    stride_of,
)
from isthmus.ops.kernels.buffers import Float32

if TYPE_CHECKING:
    from types import ModuleType

    from isthmus.ops.kernels.averaging import Merged

BOUND: Final = 10.0
"""A gradient of more than so many times the usual length is shortened to that: a fault of one learner is to cost its
own work, not the model of all. Lengths of honest learners, and from round to round, differ by far smaller factors."""
REFUSED: Final = 1000.0
"""Beyond so many times the usual length it is refused."""
PAST: Final = 32
"""The number of lengths of merged answers of a fragment that are remembered: eight rounds of four learners."""
PAST_MIN: Final = 4
"""The number of past lengths that is needed for a comparison where there are no peers."""

ROUNDING: Final = 2.0**-20
"""What roundings of float32 may add to a length, of the values and on the way to the merged ones: sixteen of 2^-24."""
ROUNDINGS: Final = {"bf16": 2.0**-8}
"""By the format of an answer, where it is more: a value that is scaled is rounded to 8 bits again."""

SUM_SLACK: Final = 1e-9
"""By how much shares may miss their sum: roundings of float64 are some 1e-16 for each of a few thousand answers."""


def length(norms: Float32 | Float64) -> float:
    """The Euclidean length of a gradient whose units have these norms."""
    return math.sqrt(math.fsum(float(norm) ** 2 for norm in norms))


def shortened(vote: Answer, share: float, coding: ModuleType) -> Answer:
    """An answer with `share` of its length."""
    values = coding.scaled(coding.as_sent(vote, "gradient"), share)
    return {**vote, **coding.item_fields("gradient", values), "norms": vote["norms"] * np.float32(share)}


@final
@dataclass(slots=True)
class RoundTally:
    """The `answers` to a round that count so far, whose fragment has this `newest` version.

    Once all that count are known they have `weights`, by answer. Where a rule divides the merge otherwise, it gives
    `shares`, whose sum is `whole`; the rest counts as a gradient of zero.
    """

    round: Round
    record: Merging
    answers: list[Answer]
    newest: tuple[int, int]
    weights: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    whole: float = 1.0

    @property
    def parts(self) -> list[float]:
        """How much each answer counts: its share, or, where no rule has divided the merge, its weight."""
        return self.shares or self.weights

    def refuse(self, reason: str, is_refused: Callable[[Answer], bool]) -> None:
        """Leave the answers out of which that holds, and record the reason."""
        assert not self.weights  # Weights are by answer: once they are known, all that count are.
        left: list[Answer] = []
        for vote in self.answers:
            if is_refused(vote):
                self.record["refused"].append([vote["slot"], reason])
            else:
                left.append(vote)
        self.answers = left

    def divide(self, shares: list[float], whole: float) -> None:
        """Give each answer its share, which is 0 or more; their sum is `whole`, more than 0 and 1 at most."""
        assert len(shares) == len(self.answers) == len(self.weights)
        assert min(shares, default=0.0) >= 0, shares
        assert 0 < whole <= 1.0 + SUM_SLACK, whole
        assert abs(math.fsum(shares) - whole) <= SUM_SLACK, (shares, whole)
        self.shares, self.whole = shares, whole

    def voters(self) -> list[Answer]:
        """The answers that count for more than nothing."""
        return [vote for vote, part in zip(self.answers, self.parts, strict=True) if part > 0]


class JudgePlace(NamedTuple):
    """Where a judge is: the context of its node, the fragments of the model, and the kernels of coded values, and of
    those that are merged."""

    context: Any
    fragments: Sequence[Fragment]
    coding: ModuleType
    averaging: ModuleType


class AnswerJudge:
    """The judge of one rule, in one life of a shard. What its rule has no use for, it inherits.

    Where a shard keeps answers, `judge` sees all of them, with their values. Where it keeps their sum (`summed_merge`),
    a judge that `reads_values` is not asked then: it sees the values of one answer at a time, in `arrived`.
    """

    reads_values: ClassVar[bool] = False

    def begun(self, fragment: int, past: Sequence[float]) -> None:
        """A fragment begins with what the judges of a life before have `kept` of it."""

    def counts_as_it_is(self, vote: Answer) -> bool:
        """Whether an answer will be merged as it is, as far as that is seen before the round closes."""
        return True

    def judge(self, tally: RoundTally) -> None:
        """Refuse answers, or change them."""

    def share(self, tally: RoundTally) -> None:
        """Divide the merge (`RoundTally.divide`), or leave it as its answers weigh."""

    def arrived(self, tally: RoundTally, vote: Answer) -> float:
        """The share of its length with which an answer counts whose values have come; 0 refuses it. Who says so records
        why."""
        return 1.0

    def merged(self, tally: RoundTally) -> None:
        """The answers have been merged so."""

    def moved(self, fragment: int, merged: Merged) -> None:
        """That is the outer gradient of which the next version is made; only where a shard keeps sums."""

    def kept(self, fragment: int) -> list[float]:
        """What a life of this shard to come begins with. Of the rules of a merge one may have something."""
        return []


class AnswerRule(Protocol):
    """A rule, as data: frozen, with fields that have one meaning in every process."""

    sums_early: ClassVar[bool]
    """Whether answers may be summed before all are there."""

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge of it."""


# -- lengths -----------------------------------------------------------------------------------------------------------


class NormHistory:
    """The lengths of the merged answers of one fragment; `past` are those that a life before has merged."""

    def __init__(self, past: Sequence[float] = ()) -> None:
        self._past: deque[float] = deque(past, maxlen=PAST)

    @property
    def past(self) -> list[float]:
        """The lengths of the answers merged last, the oldest first."""
        return list(self._past)

    def usual(self, lengths: Sequence[float], own: int) -> float | None:
        """The usual length, for comparison with the answer number `own` of those with these `lengths`.

        It is the larger of the medians of the others and of the past; None where there is too little to compare with.
        """
        others = [each for at, each in enumerate(lengths) if at != own and each > 0]
        medians = [median(others)] if others else []
        if len(self._past) >= PAST_MIN:
            medians.append(median(self._past))
        return max(medians, default=None)

    def shares(self, lengths: Sequence[float]) -> list[float]:
        """The factor for each answer: 1, less where it is too long, 0 where it is refused."""
        return [self._share(each, self.usual(lengths, at)) for at, each in enumerate(lengths)]

    def merged(self, lengths: Sequence[float]) -> None:
        """Store the lengths of merged answers."""
        self._past.extend(each for each in lengths if each > 0)

    @staticmethod
    def _share(own: float, usual: float | None) -> float:
        if not usual or own <= BOUND * usual:
            return 1.0
        return 0.0 if own > REFUSED * usual else BOUND * usual / own


@final
@dataclass(frozen=True, slots=True)
class LengthBounds:
    """One learner's answer counts only in proportion to others': too long a one is shortened, or refused."""

    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge with a memory of lengths."""
        return _Lengths(place)


@final
class _Lengths(AnswerJudge):
    def __init__(self, place: JudgePlace) -> None:
        self._coding = place.coding
        self._histories: dict[int, NormHistory] = {}

    def begun(self, fragment: int, past: Sequence[float]) -> None:
        self._histories[fragment] = NormHistory(past)

    def judge(self, tally: RoundTally) -> None:
        """Refuse answers that are out of proportion, and shorten those that are merely too long."""
        shares = self._of(tally).shares([length(vote["norms"]) for vote in tally.answers])
        judged: list[Answer] = []
        for vote, share in zip(tally.answers, shares, strict=True):
            if share == 0.0:  # It is below 1, too, but not to be shortened to nothing.
                tally.record["refused"].append([vote["slot"], "out of proportion"])
                continue
            if share < 1.0:
                tally.record["shortened"].append([vote["slot"], share])
                vote = shortened(vote, share, self._coding)
            judged.append(vote)
        tally.answers = judged

    def merged(self, tally: RoundTally) -> None:
        self._of(tally).merged([length(vote["norms"]) for vote in tally.voters()])

    def kept(self, fragment: int) -> list[float]:
        return self._histories[fragment].past if fragment in self._histories else []

    def _of(self, tally: RoundTally) -> NormHistory:
        return self._histories.setdefault(tally.round["fragment"], NormHistory())


# -- dissent -----------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Dissent:
    """A learner that pulls against all others, merge after merge, is told of, or refused (`kernels.bounds`)."""

    then: Literal["tell", "refuse"] = "tell"
    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that counts."""
        return _Dissenters(place, refuses=self.then == "refuse")


@final
class _Dissenters(AnswerJudge):
    reads_values = True

    def __init__(self, place: JudgePlace, *, refuses: bool) -> None:
        self._place, self._refuses, self._counter = place, refuses, DissentCounter()
        self._last: dict[int, Float32] = {}
        """Of the last merge of each fragment, where answers come one at a time, what is sampled of an answer, too."""

    def judge(self, tally: RoundTally) -> None:
        """Compare the learners that answer on the newest version, and have stepped; others pull elsewhere anyway.

        Of two it is known how far they agree; which of them is against all others is not.
        """
        stepped = [vote for vote in tally.answers if _is_comparable(vote, tally)]
        if len(stepped) > 1:
            samples = [self._sample(vote) for vote in stepped]
            cosines = zip(stepped, agreements(samples), strict=False)
            tally.record["agreement"] = [[vote["slot"], round(cosine, 4)] for vote, cosine in cosines]
            if len(stepped) >= LEARNERS_MIN:
                tally.record["opposed"] = self._counter.observe(samples, [_life(vote) for vote in stepped])
        if self._refuses:
            tally.refuse(OPPOSED, lambda vote: self._counter.opposes(_life(vote)))

    def arrived(self, tally: RoundTally, vote: Answer) -> float:
        """Compare it with the last merge of its fragment: of the other answers to this round none is kept."""
        record, last, slot = tally.record, self._last.get(vote["fragment"]), vote["slot"]
        if last is not None and _is_comparable(vote, tally):
            sample = self._sample(vote)
            if (cosine := cosine_of(sample, last)) is not None:
                record.setdefault("agreement", []).append([slot, round(cosine, 4)])
                if (merges := self._counter.count(_life(vote), cosine, len(sample))) >= MERGES_MIN:
                    record["opposed"].append([slot, merges])
        if self._refuses and self._counter.opposes(_life(vote)):
            record["refused"].append([slot, OPPOSED])
            return 0.0
        return 1.0

    def moved(self, fragment: int, merged: Merged) -> None:
        """Keep a sample of it, to compare the next answers with."""
        of = self._place.fragments[fragment]
        at = np.arange(0, of.size, stride_of(of.size))
        units = np.searchsorted(of.offsets, at, side="right") - 1
        self._last[fragment] = merged.direction[at] * merged.scale[units]

    def _sample(self, vote: Answer) -> Float32:
        coding, fragment = self._place.coding, self._place.fragments[vote["fragment"]]
        sample: Float32 = coding.sampled(coding.as_sent(vote, "gradient"), fragment, stride_of(fragment.size))
        return sample


OPPOSED: Final = "against all others"


def _is_comparable(vote: Answer, tally: RoundTally) -> bool:
    """Whether an answer is on the newest version, and has stepped."""
    return tuple(vote["base"] or ()) == tally.newest and bool(vote["steps"])


def _life(vote: Answer) -> tuple[int, int]:
    return vote["slot"], vote["incarnation"]


# -- an absolute bound -------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class LengthCap:
    """No answer is longer than an absolute bound, whatever others' are: a longer one is scaled down to it.

    `length_max` is the Euclidean length of one answer for each fragment together. A fragment has its part of the square
    by its values: with n of the model's N values its answers are at most `length_max` sqrt(n / N) long. So the bound on
    what one site's data can do to the model does not depend on how it is cut. Of codes it
    holds for what they stand for.
    """

    length_max: float
    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that remembers nothing."""
        return _LengthCap(place, self.length_max)


@final
class _LengthCap(AnswerJudge):
    reads_values = True

    def __init__(self, place: JudgePlace, length_max: float) -> None:
        self._place = place
        whole = sum(fragment.size for fragment in place.fragments)
        self._most = [length_max * math.sqrt(fragment.size / whole) for fragment in place.fragments]

    def counts_as_it_is(self, vote: Answer) -> bool:
        return length(vote["norms"]) <= self._most[vote["fragment"]]

    def judge(self, tally: RoundTally) -> None:
        """Shorten answers that are longer than they may be."""
        judged = []
        for vote in tally.answers:
            share = self.arrived(tally, vote)
            judged.append(vote if share == 1.0 else shortened(vote, share, self._place.coding))
        tally.answers = judged

    def arrived(self, tally: RoundTally, vote: Answer) -> float:
        """The share of its length that it may have."""
        # Norms are those before coding, and by either rule of a merge one of the two is what counts.
        own, most = max(length(vote["norms"]), self._decoded(vote)), self._most[vote["fragment"]]
        if own <= most:
            return 1.0
        share = most / own * (1 - ROUNDINGS.get(vote.get("format", ""), ROUNDING))
        tally.record.setdefault("clipped", []).append([vote["slot"], share])
        return share

    def _decoded(self, vote: Answer) -> float:
        """The length of what an answer's values decode to."""
        values = self._place.coding.as_sent(vote, "gradient")
        return length(self._place.averaging.unit_norms(values, self._place.fragments[vote["fragment"]]))


# -- sites -------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class SiteWeights:
    """The answers of a site count together by its weight, 1 where none is given, and not by its tokens.

    A site is a machine, by its name; a learner on none is of one more, as in a run of one machine. `weights` are (site,
    weight), in order. Of the sites that are in a merge each has the share of its weight, which its answers divide as
    they weigh.
    """

    weights: tuple[tuple[str, float], ...] = ()
    sums_early: ClassVar[bool] = False
    """Shares follow from the answers of all."""

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that knows where learners are."""
        return _Sites(place.context, dict(self.weights))


@final
class _Sites(AnswerJudge):
    def __init__(self, context: Any, weights: Mapping[str, float]) -> None:
        self._context, self._weights = context, weights

    def share(self, tally: RoundTally) -> None:
        sites = [self._context.machine_of(LEARNER, vote["slot"]).name for vote in tally.answers]
        own: dict[str, float] = {}
        for site, part in zip(sites, tally.parts, strict=True):
            own[site] = own.get(site, 0.0) + part
        present = {site: self._weights.get(site, 1.0) for site, part in own.items() if part > 0}
        if len(present) < 2:  # The one has all of it, as its answers weigh.
            return
        whole = math.fsum(present.values())
        factors = {site: weight / whole / own[site] for site, weight in present.items()}
        # Of no part is no share, wherever it is.
        shares = [part and part * factors[site] for site, part in zip(sites, tally.parts, strict=True)]
        tally.divide(shares, 1.0)


# -- influence ---------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class InfluenceCap:
    """No owner has more of a merge than its own most, or than `share_max`: an owner with all its machines, a machine
    that has no owner, or, in a run of one machine, a learner (`exchange.influence`)."""

    share_max: float = 1.0
    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        """A judge that knows whose learners are."""
        return _Owners(place.context, self.share_max)


@final
class _Owners(AnswerJudge):
    def __init__(self, context: Any, share_max: float) -> None:
        self._context, self._share_max = context, share_max

    def counts_as_it_is(self, vote: Answer) -> bool:
        return owner_of(self._context, vote["slot"], self._share_max)[1] >= 1.0

    def share(self, tally: RoundTally) -> None:
        owners = [owner_of(self._context, vote["slot"], self._share_max) for vote in tally.answers]
        shares, whole, reduced = capped(tally.parts, [name for name, _ in owners], dict(owners))
        if reduced:  # Else the weights remain, as they are known when an answer arrives.
            tally.record["capped"] = [list(each) for each in reduced]
            tally.divide(shares, whole)


def owner_of(context: Any, slot: int, share_max: float) -> tuple[str, float]:
    """Whose a learner's share of a merge is, that of its machine's owner, or its own; and the most that it may be."""
    name, most = context.machine_of(LEARNER, slot).owner
    return name or f"{LEARNER} {slot}", most or share_max


def judging_rules(*, bounded: bool = True, opposed: Literal["tell", "refuse"] = "tell") -> tuple[AnswerRule, ...]:
    """The rules by which any merge refuses and shortens answers, by the settings of a program."""
    bounds: tuple[AnswerRule, ...] = (LengthBounds(),) if bounded else ()
    return (*bounds, Dissent(opposed))


def usual_rules(
    *,
    bounded: bool = True,
    opposed: Literal["tell", "refuse"] = "tell",
    share_max: float = 1.0,
    site_weight: Literal["equal"] | Mapping[str, float] | None = None,
    length_max: float | None = None,
    influence: AnswerRule | None = None,
) -> tuple[AnswerRule, ...]:
    """The rules of a merge of learners, by the settings of a program; `influence` is in the place of `InfluenceCap`.

    The absolute bound is last of those that judge: what is out of proportion is refused by its own length, and nothing
    makes an answer longer after it. What sites have comes before the most that an owner may have of it.
    """
    rules: list[AnswerRule] = [*judging_rules(bounded=bounded, opposed=opposed)]
    if length_max is not None:
        rules.append(LengthCap(length_max))
    if site_weight is not None:
        rules.append(SiteWeights(() if site_weight == "equal" else tuple(sorted(site_weight.items()))))
    return (*rules, InfluenceCap(share_max) if influence is None else influence)
