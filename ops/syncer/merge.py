"""The merge node: one firing per closed round, from answers to one outer gradient.

Decides which of a round's answers count, and how much. It refuses answers that the books refuse (`merge_books`): by
their accounts and values. By its `rules` it refuses and shortens others, and divides the merge among the rest, by
tokens * (tokens / steps) where no rule says otherwise; it merges in slot order, and has the result booked. The quorum
decided which answers came into the round; outer-step applies the merged gradient. A merge's order of doing is here,
whole: what a rule says of answers is in `answer_rules`, whose answers they are in `answer_kinds`, how values are added
in `kernels.averaging`, and nothing of these comes in.

What needs no other answer is done when an answer arrives: its values are checked, and summed with those that are there,
as if it were to be merged as it is. After the last answer its own sweep is left. All else is decided when the round
closes, from all answers: where one of the summed is then refused, changed, capped or not in the round, the merge begins
anew, and is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.merge_rules import Float64
from isthmus.ops.exchange.messages import (
    Answer,
    Begun,
    Gradient,
    ReachedPositions,
    Round,
    Update,
)
from isthmus.ops.exchange.token_accounts import weight
from isthmus.ops.step_tokens import StepTokens
from isthmus.ops.syncer.answer_kinds import AnswerKind
from isthmus.ops.syncer.answer_rules import RoundTally
from isthmus.ops.syncer.answer_work import work_of
from isthmus.ops.syncer.merge_books import LEARNERS, NOT_FINITE, MergeBooks

if TYPE_CHECKING:
    from isthmus.ops.kernels.averaging import Contribution, EarlySum


EARLY_SIZE_MIN: Final = 2**20
"""Values of a fragment from which on answers are summed as they arrive: less is summed faster than a thread wakes."""


class Examined(NamedTuple):
    """An answer that has arrived, the fault in its values, and what it contributes, None where that is nothing."""

    vote: Answer
    fault: str | None
    contribution: Contribution | None


class EarlyAnswers:
    """The answers that have arrived for rounds to come, by fragment and slot, and the sum of those of one fragment.

    Sums of more fragments at a time would be memory that merges do not take otherwise. An answer is referenced until
    its fragment is merged next, whether it is in that merge or not.
    """

    def __init__(self, new_sum: Callable[[int], EarlySum]) -> None:
        self._new_sum = new_sum
        """The empty sum of a fragment."""
        self._examined: dict[int, dict[int, Examined]] = {}
        self._sum: EarlySum | None = None
        self._summing: int | None = None
        """The fragment of the sum."""

    def add(self, examined: Examined) -> None:
        """Add an answer, and sum those that are there, unless those of another fragment are being summed."""
        p = examined.vote["fragment"]
        there = self._examined.setdefault(p, {})
        there[examined.vote["slot"]] = examined
        if self._summing is None:
            self._summing, self._sum, added = p, self._new_sum(p), list(there.values())
        else:
            added = [examined] if self._summing == p else []
        for each in added:
            if each.contribution is not None and self._sum is not None:
                self._sum.add(each.vote["slot"], each.contribution)

    def pop(self, fragment: int) -> tuple[dict[int, Examined], EarlySum]:
        """Remove and return the answers of a fragment, by slot, and their sum, which may be empty."""
        early = self._sum if self._summing == fragment else None
        if self._summing == fragment:
            self._sum = self._summing = None
        return self._examined.pop(fragment, {}), early or self._new_sum(fragment)


class Merge(MergeBooks):
    """A round and its answers in, Gradient out; arguments as of `MergeBooks`."""

    outputs: ClassVar[tuple[str, ...]] = ("gradient", "reached")
    collects: ClassVar[tuple[str, ...]] = ("answer", "begun", "copy")

    @staticmethod
    def schemas(
        fragments: Sequence[Fragment], *, step_tokens: StepTokens, answers: AnswerKind = LEARNERS, **_: Any
    ) -> dict[str, Any]:
        """The form of the answers."""
        return {"answer": answers.form(fragments, step_tokens), "copy": Update}

    @property
    def take_early(self) -> Callable[[Answer], None] | None:
        """Takes answers ahead of their round, where fragments are so large that it is worth it and the rules permit."""
        is_early = all(rule.sums_early for rule in self._rules)
        return self._take_early if is_early and any(map(self._is_large, range(len(self._fragments)))) else None

    def open(self, context: Any) -> None:
        """As the books do."""
        super().open(context)
        self._early = EarlyAnswers(lambda p: self._merging.EarlySum(self._fragments[p], self._method))

    def __call__(
        self,
        round: Round,
        answer: Mapping[Any, Answer],
        decision: Mapping[str, Any] | None = None,
        begun: Mapping[Any, Begun] | None = None,
        copy: Mapping[Any, Update] | None = None,
    ) -> dict[str, Gradient | ReachedPositions]:
        """The merged outer gradient, or one without direction where nothing could be merged; and the progress.

        The progress is the position of the fragment's merges in the batches of each slot.
        """
        examined, early = self._early.pop(round["fragment"])
        for item in (begun or {}).values():
            self._begin_as(item, round["interval"])
        for held in (copy or {}).values():
            self._take_copy(held)
        merging_record = self._record(round, decision or {})
        # Sums of floats depend on their order: the merge is the same bit for bit however answers arrived.
        answers = sorted(answer.values(), key=lambda vote: vote["slot"])
        if round["kind"] in ("initial", "recover"):
            return self._emitted(self._begin(round, answers, merging_record))
        lives = [[vote["slot"], vote["incarnation"]] for vote in answers]
        accepted = []
        for vote, refusal in self._judged(round, answers, examined, early):
            if refusal is None:
                accepted.append(vote)
            else:
                merging_record["refused"].append([vote["slot"], refusal])
        account = self._accounts.get(round["fragment"])
        tally = RoundTally(round, merging_record, accepted, (0, 0) if account is None else account.newest)
        arrived = {vote["slot"] for vote in answers}
        for judge in self._judges:
            judge.judge(tally)
            # A rule may refuse answers or change them: each still counts, or is recorded as refused, and is so once.
            assert sorted(_fates(tally)) == sorted(arrived), type(judge).__name__
            assert not tally.weights, type(judge).__name__  # What all weigh is known once all that count are.
        # Last: an answer that is too long may stay within float32 once it is shortened.
        tally.refuse(NOT_FINITE, lambda vote: bool(work_of(vote)[1]) and not self._is_held(vote))
        merged = self._merge(tally, early)
        return self._emitted({**merged, "lives": lives})

    def _is_large(self, fragment: int) -> bool:
        return self._fragments[fragment].size >= EARLY_SIZE_MIN

    def _take_early(self, answer: Answer) -> None:
        """Do what an answer needs before it is merged and no other answer matters for."""
        if answer["kind"] in ("merge", "final") and self._is_large(answer["fragment"]):
            fault = self._fault(answer)
            self._early.add(Examined(answer, fault, self._contribution(answer) if fault is None else None))

    def _contribution(self, vote: Answer) -> Contribution | None:
        """What an answer contributes to a merge as it is; None where that is nothing, or cannot be summed."""
        values, norms, own = self._values(vote), vote["norms"], weight(*work_of(vote))
        # Neither accounts nor values need have been checked.
        is_sound = self._coding.is_whole(values, self._fragments[vote["fragment"]]) and np.isfinite(norms).all()
        if not is_sound or (norms < 0).any() or own <= 0:
            return None
        contribution: Contribution = self._merging.Contribution(values, own, norms)
        return contribution

    def _merge(self, tally: RoundTally, early: EarlySum) -> Gradient:
        """Merge the answers that count, and book their work."""
        accepted = tally.answers
        if not self._weigh(tally):
            return self._gradient(tally.round, tally.record, None)
        # Before anything is booked: if it raises, the accounts need not take anything back.
        merged = self._merging.merge(
            [self._values(vote) for vote in accepted],
            tally.parts,
            [vote["norms"] for vote in accepted],
            self._fragments[tally.round["fragment"]],
            self._method,
            slots=[vote["slot"] for vote in accepted],
            early=early,
        )
        if tally.whole < 1.0:
            merged = replace(merged, scale=merged.scale * np.float32(tally.whole))
        return self._booked(tally, merged)

    def _judged(
        self, round: Round, answers: Sequence[Answer], examined: Mapping[int, Examined], early: EarlySum
    ) -> list[tuple[Answer, str | None]]:
        """The answers, each with the reason why it is not merged.

        Values that were not `examined` when they arrived are, in the sweep that adds them to the `early` sum.
        """
        refusals = {vote["slot"]: self._refusal(round, vote) for vote in answers}
        last, contributions = [], {}
        for vote in [vote for vote in answers if refusals[vote["slot"]] is None]:  # They take every value.
            known = examined.get(vote["slot"])
            if known is None or known.vote is not vote:
                last.append(vote)
                contribution = self._contribution(vote)
            else:
                refusals[vote["slot"]], contribution = known.fault, known.contribution
            if contribution is not None:
                contributions[vote["slot"]] = contribution
        lengths: dict[int, Float64] = {}
        are_as_they_are = all(judge.counts_as_it_is(vote) for judge in self._judges for vote in answers)
        if self.take_early is not None and self._is_large(round["fragment"]) and are_as_they_are:
            lengths = early.close(contributions, [vote["slot"] for vote in last if vote["slot"] in contributions])
        for vote in last:
            refusals[vote["slot"]] = self._fault(vote, lengths.get(vote["slot"]))
        return [(vote, refusals[vote["slot"]]) for vote in answers]


def _fates(tally: RoundTally) -> list[int]:
    """The slots of a round's answers: of those that count, and of those that are recorded as refused."""
    return [vote["slot"] for vote in tally.answers] + [slot for slot, _ in tally.record["refused"]]
