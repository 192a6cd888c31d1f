"""The books of a merge: what any merge needs, whatever it keeps of answers.

Decides whether an answer counts, by its account and its values: tokens that no version has, of a base that the shard
has published, norms that are those of the values, and a model that stays within float32. It begins fragments, asks the
rules for the shares of a merge, and books the work of one that is made. Which answers are there at once, and how their
values are added, is not here: that is `merge`, where all of them are kept, and `summed_merge`, where none is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.data.life_tokens import tokens_of_life
from isthmus.ops.data.positions import by_slot, position_of
from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.merge_rules import Float64, Method
from isthmus.ops.exchange.messages import (
    MERGES_KEPT,
    Answer,
    Begun,
    Gradient,
    Merging,
    ReachedPositions,
    Round,
    Update,
    Vector,
    is_withdrawn,
)
from isthmus.ops.exchange.token_accounts import FragmentAccount, weight
from isthmus.ops.kernels.buffers import Float32, given
from isthmus.ops.recovery.hold import Claim, believed, digest_of, is_denied
from isthmus.ops.step_tokens import AtMost, StepTokens
from isthmus.ops.syncer.answer_kinds import AnswerKind, LearnerAnswers
from isthmus.ops.syncer.answer_rules import SUM_SLACK, AnswerRule, JudgePlace, RoundTally, usual_rules
from isthmus.ops.syncer.answer_work import ranges_of, rows_of, work_of

if TYPE_CHECKING:
    from types import ModuleType

    from isthmus.ops.kernels.averaging import Merged
    from isthmus.ops.kernels.coding import Values


LEARNERS: Final = LearnerAnswers()
"""Whose the answers of a merge are where its graph does not say."""
USUAL: Final = usual_rules()
"""The rules of a merge whose graph has none of its own: those of the settings' defaults."""
TINY: Final = 1e-30
"""A norm this small is lost in float32."""
NOT_FINITE: Final = "the outer step would not be finite"
VALUE_MAX: Final = float(np.finfo(np.float32).max) / 2
"""The limit for a value and for the intermediate results on the way to it: half of what float32 holds, for a million
roundings."""
KEPT_MAX: Final = 1e12
"""The limit for a value of the momentum with which a shard that comes back continues: a larger one starts from zero, so
that a momentum from elsewhere takes no room that answers need."""
NORM_SLACK: Final = 3.0
"""The factor by which a merged value may exceed the largest claimed norm: more than the least of `length_least` allows,
and roundings."""


def are_own(claimed: Float32, actual: NDArray[np.float64], form: str = "float32") -> bool:
    """Whether the norms (float32[units]) that came with values match the `actual` ones, of codes in a format."""
    entry, norms = FORMATS[form], claimed.astype(np.float64)
    is_within = (entry.length_least * actual - TINY <= norms) & (norms <= entry.length_most * actual + TINY)
    return bool((is_within & (norms >= 0)).all())


class Extent:
    """An upper bound of the values of a fragment and of its momentum, after all outer steps so far.

    The merged gradient is no larger than the largest norm of a unit in it, by either rule, so |b'| <= mu |b| + G and
    |Theta'| <= |Theta| + eta (G + mu |b'|): see `kernels.nesterov`.
    """

    def __init__(self, largest: float, lr: float, momentum: float, *, velocity: float = 0.0) -> None:
        """Start at values of at most `largest`, with a momentum of at most `velocity`."""
        self._theta, self._velocity = largest, velocity
        self._lr, self._momentum = lr, momentum

    def holds(self, norms: Float32) -> bool:
        """Whether an outer step stays in float32, if no answer in it exceeds these norms (float32[units])."""
        return self._after(norms) is not None

    def stepped(self, loudest: Sequence[Float32]) -> None:
        """Record the outer step of answers with these norms, for each of which `holds` is true."""
        after = [extent for extent in map(self._after, loudest) if extent is not None]
        assert len(after) == len(loudest) > 0
        self._theta, self._velocity = max(after)

    def _after(self, norms: Float32) -> tuple[float, float] | None:
        gradient = NORM_SLACK * float(norms.max(initial=0.0))
        velocity = self._momentum * self._velocity + gradient
        ahead = gradient + self._momentum * velocity
        theta = self._theta + self._lr * ahead
        return (theta, velocity) if max(velocity, ahead, theta) <= VALUE_MAX else None


class FirstVersion(NamedTuple):
    """What a fragment begins with in this life: float32[n] values, the version that they are of, None for the first of
    all, and the work in them, as in Update."""

    values: Vector
    base: list[int] | None
    clock: list[list[int]]
    positions: list[list[int]]


class MergeBooks:
    """The books of one shard's merges.

    Fragments may begin as `begun` says, without an answer; one that no learner has any more begins again from the
    `copy` of a host that holds it.

    Arguments:
        fragments: those of the model.
        method: 'rda' or 'average'.
        lr: that of the outer step.
        momentum: likewise.
        step_tokens: the tokens of a step, by slot where they differ.
        rules: which answers count, and how much, in this order (`answer_rules`).
        answers: whose they are.
    """

    def __init__(
        self,
        fragments: Sequence[Fragment],
        *,
        method: Method,
        lr: float,
        momentum: float,
        step_tokens: StepTokens = 1,
        rules: Sequence[AnswerRule] = USUAL,
        answers: AnswerKind = LEARNERS,
    ) -> None:
        self._fragments, self._rules, self._kind = fragments, tuple(rules), answers
        self._method = method
        self._step_tokens = step_tokens
        self._lr, self._momentum = lr, momentum
        self._accounts: dict[int, FragmentAccount] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._states: dict[int, tuple[int, Any]] = {}
        self._extents: dict[int, Extent] = {}
        self._copies: dict[int, Update] = {}
        """The newest copy of each fragment that has not begun."""
        self._epoch = self._shard = self._merges = self._votes = 0

    def open(self, context: Any) -> None:
        """Load the kernels before the first round closes; code that only builds the graph needs none."""
        from isthmus.ops.kernels import averaging, coding

        self._shard, self._epoch = context.member.replica.slot, context.member.incarnation
        averaging.warm()
        coding.warm_answers()
        self._context = context
        self._merging: ModuleType = averaging
        self._coding: ModuleType = coding
        place = JudgePlace(context, self._fragments, coding, averaging)
        self._judges = [rule.begin(place) for rule in self._rules]

    def _emitted(self, gradient: Gradient) -> dict[str, Gradient | ReachedPositions]:
        states = [[slot, position, state] for slot, (position, state) in sorted(self._states.items())]
        p, clock = gradient["fragment"], gradient["clock"]
        reached = ReachedPositions(fragment=p, clock=clock, positions=gradient["positions"], states=states)
        return {"reached": reached, "gradient": gradient}

    def _values(self, vote: Answer) -> Values:
        """The values of an answer, in the form that kernels take."""
        values: Values = self._coding.as_sent(vote, "gradient")
        return values

    def _is_held(self, vote: Answer) -> bool:
        """Whether the model is still finite after an answer."""
        return self._extents[vote["fragment"]].holds(vote["norms"])

    def _begin(self, round: Round, answers: list[Answer], record: Merging) -> Gradient:
        """The first version, unchanged: of the one learner that was asked, or the newest that learners still hold."""
        p = round["fragment"]
        # A fragment begins once: of a later round of this kind no answer is judged, and no learner accused.
        if p in self._accounts:
            return self._gradient(round, record, None)
        answer, copy = self._newest(round, answers, record), self._copies.get(p)
        newest_held = max(([epoch, count] for epoch, count, *_ in round["known"]), default=[0, 0])
        given, base = round.get("given", [0, 0]), [0, 0] if answer is None else answer["base"] or [0, 0]
        if given > base:
            # Its neighbour has a newer one than any learner: it is here, or on its way.
            newest_held, answer = given, None
        if answer is not None:
            record["voters"], record["weights"] = [answer["slot"]], [1.0]
            newest = FirstVersion(answer["gradient"], answer["base"], answer["clock"], answer["positions"])
        # An older one may come first, of the two holders; the newer one is then on its way.
        elif copy is not None and round["kind"] == "recover" and copy["version"] >= newest_held:
            newest = FirstVersion(copy["values"], copy["version"], copy["clock"], copy["positions"])
        else:
            return self._gradient(round, record, None)
        self._copies.pop(p, None)
        epoch, count = newest.base or (self._epoch, 0)
        self._accounts[p] = FragmentAccount((epoch, count), round["interval"], newest.clock)
        self._positions[p] = by_slot(newest.positions) if newest.base else {}
        largest = self._coding.largest(newest.values)
        velocity = KEPT_MAX if round["kind"] == "recover" and self._momentum else 0.0
        self._extents[p] = Extent(largest, self._lr, self._momentum, velocity=velocity)
        histories = [lengths for *version, _, lengths in round["known"] if version == [epoch, count]]
        for judge in self._judges:
            judge.begun(p, max(histories, key=len, default=()))
        merged = self._merging.Merged(newest.values, np.ones(len(self._fragments[p].units), np.float32))
        return self._gradient(round, record, merged)

    def _take_copy(self, copy: Update) -> None:
        """Keep a copy of a fragment that has not begun, or forget it: copies are withdrawn."""
        p, version = copy["fragment"], copy["version"]
        if is_withdrawn(copy):
            self._copies.pop(p, None)
            return
        known, fits = self._copies.get(p), len(copy["values"]) == self._fragments[p].size
        is_newer = p not in self._accounts and (known is None or version > known["version"])
        if is_newer and fits and version[0] < self._epoch and self._is_version(copy["values"]):
            self._copies[p] = copy

    def _begin_as(self, begun: Begun, interval: int) -> None:
        """Begin a fragment as a version that was published without an answer."""
        p, (epoch, count) = begun["fragment"], begun["version"]
        if p not in self._accounts:
            self._accounts[p] = FragmentAccount((epoch, count), interval, begun["clock"])
            self._positions[p] = by_slot(begun["positions"])
            self._extents[p] = Extent(begun["largest"], self._lr, self._momentum)

    def _is_version(self, values: Vector) -> bool:
        """Whether values are finite and not coded."""
        return values.dtype == np.float32 and self._coding.is_finite(values)

    def _newest(self, round: Round, answers: list[Answer], record: Merging) -> Answer | None:
        """The answer to begin from; an answer that differs from the holders' digest of its version is refused."""
        digests = {(epoch, count): digest for epoch, count, digest, _ in round["known"]}
        claims: dict[Claim, Answer] = {}
        for vote in answers:
            epoch, count = vote["base"] or (self._epoch, 0)
            # Before the digest, which takes whole values.
            if vote["fragment"] != round["fragment"] or not self._is_version(vote["gradient"]):
                continue
            # Before the claim is compared: holders can only know the versions of this shard's former lives.
            if vote["base"] is not None and epoch >= self._epoch:
                record["refused"].append([vote["slot"], "unknown base"])
                continue
            claim = Claim((epoch, count), digest_of(vote["gradient"], vote["clock"], vote["positions"]), vote["slot"])
            if is_denied(claim, digests):
                record["refused"].append([vote["slot"], "not as published"])
                expected = f"version {[epoch, count]} as it was published, {digests[epoch, count]}"
                self._context.refuse(
                    "answer", (vote["slot"], vote["incarnation"]), ("gradient", expected, claim.digest)
                )
                continue
            claims[claim] = vote
        newest = believed(list(claims), digests)
        return None if newest is None else claims[newest]

    def _weigh(self, tally: RoundTally) -> bool:
        """Divide the merge among the answers that count; whether any of them has trained."""
        accepted = tally.answers
        weights = [weight(*work_of(vote)) for vote in accepted]
        if not any(weights):
            return False
        tally.weights = weights
        for judge in self._judges:
            judge.share(tally)
            # A rule that shares divides the merge among the answers that are there (`RoundTally.divide`).
            assert tally.answers is accepted, type(judge).__name__
            assert tally.weights is weights, type(judge).__name__
        assert len(tally.parts) == len(accepted)
        return True

    def _booked(self, tally: RoundTally, merged: Merged) -> Gradient:
        """Book the work of the answers of which that is the merge; the next version is that."""
        round, record, accepted, weights = tally.round, tally.record, tally.answers, tally.weights
        account = self._accounts[round["fragment"]]  # Or all would have been refused.
        work, booked = [row for vote in accepted for row in rows_of(vote)], sum(account.merged.values())
        for slot, incarnation, begin, end, _ in work:
            account.merge(slot, incarnation, begin, end)
        # The tokens that answers have (`answer_work`, asserted where they are made) are those that the merge counts.
        assert sum(account.merged.values()) - booked == sum(work_of(vote)[0] for vote in accepted)
        for vote in accepted:
            self._reach(vote)
        account.publish((self._epoch, account.newest[1] + 1))  # `_gradient` names this version.
        self._extents[round["fragment"]].stepped([vote["norms"] for vote in tally.voters()])
        for judge in self._judges:
            judge.merged(tally)
        shares = tally.shares or [each / sum(weights) for each in weights]
        voted = [(vote["slot"], share) for vote, share in zip(accepted, shares, strict=True) if share > 0]
        record["voters"] = [slot for slot, _ in voted]
        record["weights"] = [share for _, share in voted]
        assert abs(sum(record["weights"]) - tally.whole) <= SUM_SLACK  # What the recorder tells of influence.
        if round["kind"] == "merge":  # The record has the counts with this merge.
            self._merges += 1
            self._votes += len(voted)
        given(merged.direction)
        return self._gradient(round, record, merged, work)

    def _reach(self, vote: Answer) -> None:
        """Record the positions up to which the batches of learners are merged now."""
        positions, slot = self._positions[vote["fragment"]], vote["slot"]
        for each in dict.fromkeys(row[0] for row in rows_of(vote)):
            positions[each] = max(positions.get(each, 0), position_of(vote["positions"], each))
        if not ranges_of(vote):
            return
        if vote["state"] is not None and vote["state"][0] >= self._states.get(slot, (0, None))[0]:
            self._states[slot] = vote["state"][0], vote["state"][1]

    def _refusal(self, round: Round, vote: Answer) -> str | None:
        """The reason why an answer is not merged, whatever its values are."""
        if (vote["fragment"], vote["kind"]) != (round["fragment"], round["kind"]):
            return "another round"
        account = self._accounts.get(round["fragment"])
        if account is None or vote["base"] is None:
            return "unknown base"
        account.interval = round["interval"]  # What is stale is judged by this round's interval.
        base = vote["base"][0], vote["base"][1]
        refusal, checked = self._kind.checked(account, base, vote)
        if not all(self._are_tokens_of(slot, life, steps, end - begin) for slot, life, begin, end, steps in checked):
            refusal = refusal or "inconsistent"
        return refusal

    def _are_tokens_of(self, slot: int, life: int, steps: int, tokens: int) -> bool:
        """Whether so many steps of a life can have made so many tokens."""
        of_step = tokens_of_life(self._step_tokens, slot, life)
        if isinstance(of_step, AtMost):
            return 0 <= tokens <= steps * of_step.tokens
        return tokens == steps * of_step

    def _fault(self, vote: Answer, lengths: Float64 | None = None) -> str | None:
        """The fault in the values and norms of an answer; `lengths` are those of its units, if they are known."""
        values, fragment = self._values(vote), self._fragments[vote["fragment"]]
        # Before the kernels, which rely on a scale for each block.
        if not self._coding.is_whole(values, fragment):
            return "codes without their scales"
        lengths = self._merging.unit_norms(values, fragment) if lengths is None else lengths
        # Squares of float32 stay in float64: lengths tell of all values, but not of the scales of codes for 0.
        is_finite = np.isfinite(lengths).all() and (isinstance(values, np.ndarray) or self._coding.is_finite(values))
        # Before the norms are compared: those of values that are not finite match nothing, and the reason would be
        # wrong.
        if not (is_finite and np.isfinite(vote["norms"]).all()):
            return "not finite"
        if not are_own(vote["norms"], lengths, vote.get("format", "float32")):
            return "norms of other values"
        return None

    def _gradient(
        self, round: Round, record: Merging, merged: Merged | None, work: list[list[int]] | None = None
    ) -> Gradient:
        p = round["fragment"]
        account = self._accounts.get(p)
        version = None if account is None else list(account.newest)
        record["version"] = version if merged is not None else None
        record["merges"], record["votes"] = self._merges, self._votes
        if account is not None:
            record["origin"] = list(account.origin)
            record["merged_tokens"] = [[*life, tokens] for life, tokens in sorted(account.merged.items())]
        return Gradient(
            fragment=p,
            round=round["round"],
            kind=round["kind"],
            version=version,
            direction=None if merged is None else merged.direction,
            scale=None if merged is None else merged.scale,
            clock=[] if account is None else account.clock(),
            positions=[[slot, position] for slot, position in sorted(self._positions.get(p, {}).items())],
            totals=round["totals"],
            lives=[],
            work=work or [],
            lengths=self._kept(p),
            merging=record,
        )

    def _kept(self, fragment: int) -> list[float]:
        """What a life to come begins with. It is one list: two rules that keep would read each other's."""
        kept = [of_rule for judge in self._judges if (of_rule := judge.kept(fragment))]
        assert len(kept) <= 1, "only one rule of a merge may keep something for a life to come"
        return kept[0] if kept else []

    def _record(self, round: Round, decision: Mapping[str, Any]) -> Merging:
        record = Merging(
            shard=self._shard,
            epoch=self._epoch,
            round=round["round"],
            place=round["round"] % MERGES_KEPT,
            fragment=round["fragment"],
            kind=round["kind"],
            version=None,
            origin=None,
            momentum=None,
            voters=[],
            weights=[],
            left_out=list(decision.get("left_out", [])),
            refused=[],
            shortened=[],
            opposed=[],
            capped=[],
            reason=str(decision.get("reason", "")),
            opened_at=int(decision.get("opened_at", 0)),
            quorum_at=int(decision.get("quorum_at", 0)),
            closed_at=int(decision.get("closed_at", 0)),
            published_at=0,
            merged_tokens=[],
            merges=0,
            votes=0,
        )
        if "asked" in round:
            record["asked"] = round["asked"]
        return record
