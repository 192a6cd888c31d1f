"""The merge of a shard that keeps sums, and not answers: its memory does not grow with the number of learners.

Decides when the values of an answer come, and which answers are in a merge whose values come one after another. Answers
are told ahead, without values: with norms, tokens and steps. From these follow, when the round closes, what is refused,
how each weighs and what an owner may have. Then values are asked for, of a few answers at a time; each is checked,
added and let go. What was added counts, whatever becomes of its learner. An answer whose values do not come is left
out, and its learner goes on as after a round that it missed. How answers are judged is in `answer_rules`, what is
booked in `merge`, how values are added in `kernels.running_sum`.

Values are added in the order in which they come, which is on the tape: a replay adds in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, final

import numpy as np

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Answer, AnswerValues, Begun, ClosedRound, Round, Update, WantedValues
from isthmus.ops.exchange.wanted_settings import AUTO
from isthmus.ops.step_tokens import StepTokens
from isthmus.ops.syncer.answer_kinds import AnswerKind
from isthmus.ops.syncer.answer_rules import RoundTally
from isthmus.ops.syncer.answer_work import work_of
from isthmus.ops.syncer.merge_books import LEARNERS, NOT_FINITE, MergeBooks

if TYPE_CHECKING:
    from types import ModuleType

    from isthmus.ops.kernels.running_sum import RunningSum

ASKED_MAX: Final = 8
"""Answers whose values may be on their way to a shard at a time."""
PATIENCE_NS: Final = 1_000_000_000
"""For values of an answer, where others of its round have come: the least, and at most so many times as long as theirs
took:"""
PATIENCE_TIMES: Final = 4
FIRST_PATIENCE_NS: Final = 20_000_000_000
"""Where none has come, beside the time that its bytes need at so many a second:"""
BYTES_LEAST: Final = 256_000

KEPT_MAX: Final = 2.0
"""Copies of a shard's part of the model that the answers which it keeps may take."""

Emitted: TypeAlias = list[tuple[str, Any]]


def kept_by_default(learners: int, fragments: int, shards: int, push: str) -> Literal["answers", "sums"]:
    """What a shard keeps where nothing is said: answers, of which it has those of a fragment or two at a time, unless
    that is more than KEPT_MAX copies of its part of the model."""
    bits = 32.0 if push == AUTO else FORMATS[push].bits
    return "sums" if learners * bits / 32 * min(1.0, 2 * shards / fragments) > KEPT_MAX else "answers"


class Ballot:
    """Passes on each closed round with its answers, in the order of their slots."""

    outputs = ("closed",)
    collects = ("answer",)

    @staticmethod
    def schemas(
        fragments: Sequence[Fragment], step_tokens: StepTokens, answers: AnswerKind = LEARNERS
    ) -> dict[str, Any]:
        """The form of the answers."""
        return {"answer": schemas.told(answers.form(fragments, step_tokens), fragments)}

    def __init__(self, fragments: Sequence[Fragment], step_tokens: StepTokens, answers: AnswerKind = LEARNERS) -> None:
        del fragments, step_tokens, answers  # For the schemas.

    def __call__(
        self, round: Round, answer: Mapping[Any, Answer], decision: Mapping[str, Any] | None = None
    ) -> dict[str, ClosedRound]:
        """The round, as one item."""
        answers = sorted(answer.values(), key=lambda vote: vote["slot"])
        return {"closed": ClosedRound(round=round, answers=answers, decision=dict(decision or {}))}


@final
@dataclass(slots=True)
class _Gathering:
    """A merge whose values come.

    `tally` has what is decided of it; by slot, `told` has the answers as they came, `counted` those that may be in it,
    as they count by what was told, and `lengths` with which share of their lengths. Those that are `left` are still to
    be asked for, `asked` since when; `added` are those that are in the `sum`.
    """

    tally: RoundTally
    told: dict[int, Answer]
    counted: dict[int, Answer]
    lengths: dict[int, float]
    lives: list[list[int]]
    parts: dict[int, float]
    """By slot; their sum is 1."""
    sum: RunningSum
    left: deque[Answer]
    asked: dict[int, int] = field(default_factory=dict)
    added: list[Answer] = field(default_factory=list)
    longest: int = 0
    """The most nanoseconds from the asking to the values."""

    @property
    def is_over(self) -> bool:
        return not (self.left or self.asked)


class SummedMerge(MergeBooks):
    """Closed rounds and values in, Gradient out, and whose values are wanted.

    Arguments:
        shards: their number; fragment p is of shard p mod that.
        regions: of so many regions each has these shards; replica i is shard i // `regions` of its own.
        terms: as of `MergeBooks`.
    """

    outputs: ClassVar[tuple[str, ...]] = ("gradient", "reached", "wanted")
    collects: ClassVar[tuple[str, ...]] = ("values", "copy", "begun")

    @staticmethod
    def schemas(fragments: Sequence[Fragment], **_: Any) -> dict[str, Any]:
        """The form of the values."""
        return {"values": schemas.answer_values(fragments), "copy": Update}

    def __init__(self, fragments: Sequence[Fragment], *, shards: int = 1, regions: int = 1, **terms: Any) -> None:
        super().__init__(fragments, **terms)
        self._shards, self._regions = shards, regions
        self._begun: list[Begun] = []
        """Fragments that begin with the next round: as a version that was published without an answer."""
        self._gatherings: dict[int, _Gathering] = {}
        """By fragment, in the order in which their rounds closed."""
        self._closed: deque[ClosedRound] = deque()
        """Rounds of fragments whose merge before is not over."""
        self._members: Any = None
        self._lives = frozenset[tuple[int, int]]()
        self._silent: dict[tuple[int, int], int] = {}
        """Lives whose values were awaited in vain: how often in a row. They are asked last, so that nobody waits long
        for them again."""

    def open(self, context: Any) -> None:
        """As the books do; load the kernels."""
        from isthmus.ops.kernels import running_sum

        super().open(context)
        running_sum.warm()
        self._summing: ModuleType = running_sum
        self._bytes_max = 4 * sum(
            fragment.size for fragment in self._fragments[self._shard // self._regions :: self._shards]
        )

    def __call__(
        self,
        closed: ClosedRound | None = None,
        values: Mapping[Any, AnswerValues] | None = None,
        copy: Mapping[Any, Update] | None = None,
        tick: Mapping[str, Any] | None = None,
        begun: Mapping[Any, Begun] | None = None,
    ) -> Emitted:
        """Merges that are over, and the answers whose values may come next. A `tick` lets time pass."""
        for held in (copy or {}).values():
            self._take_copy(held)
        self._begun += (begun or {}).values()
        for item in (values or {}).values():
            self._take_values(item)
        if closed is not None:
            self._closed.append(closed)
        emitted: Emitted = [*self._opened()]
        emitted += self._wanted()
        over = [p for p, gathering in self._gatherings.items() if gathering.is_over]
        for p in over:
            emitted += self._finished(self._gatherings.pop(p)).items()
        if over and self._closed:  # The next round of a fragment may have waited for it.
            emitted += self._opened()
            emitted += self._wanted()
        return emitted

    # -- a round that has closed ---------------------------------------------------------------------------------------

    def _opened(self) -> Iterator[tuple[str, Any]]:
        """Begin the merges of closed rounds; what of them is emitted at once."""
        for closed in list(self._closed):
            if closed["round"]["fragment"] not in self._gatherings:
                self._closed.remove(closed)
                yield from self._begin_merge(closed)

    def _begin_merge(self, closed: ClosedRound) -> Iterator[tuple[str, Any]]:
        round, answers = closed["round"], closed["answers"]
        for item in self._begun:
            self._begin_as(item, round["interval"])
        self._begun.clear()
        record = self._record(round, closed["decision"])
        if round["kind"] in ("initial", "recover"):
            yield from self._emitted(self._begin(round, answers, record)).items()
            return
        accepted = []
        for vote in answers:
            if (refusal := self._refusal(round, vote) or _fault_told(vote)) is None:
                accepted.append(vote)
            else:
                record["refused"].append([vote["slot"], refusal])
        account = self._accounts.get(round["fragment"])
        tally = RoundTally(round, record, accepted, (0, 0) if account is None else account.newest)
        for judge in self._judges:
            if not judge.reads_values:
                judge.judge(tally)
        tally.refuse(NOT_FINITE, lambda vote: bool(work_of(vote)[1]) and not self._is_held(vote))
        lives = [[vote["slot"], vote["incarnation"]] for vote in answers]
        if not self._weigh(tally):
            yield from self._emitted({**self._gradient(round, record, None), "lives": lives}).items()
            return
        self._gatherings[round["fragment"]] = self._gathering(tally, answers, lives)

    def _gathering(self, tally: RoundTally, answers: Sequence[Answer], lives: list[list[int]]) -> _Gathering:
        whole = sum(tally.parts)
        parts = {vote["slot"]: part / whole for vote, part in zip(tally.answers, tally.parts, strict=True)}
        voters = tally.voters()
        of_voters = [parts[vote["slot"]] for vote in voters], [vote["norms"] for vote in voters]
        return _Gathering(
            tally,
            {vote["slot"]: vote for vote in answers},
            {vote["slot"]: vote for vote in tally.answers},
            dict(tally.record["shortened"]),
            lives,
            parts,
            self._summing.RunningSum(self._fragments[tally.round["fragment"]], self._method, *of_voters),
            deque(sorted(voters, key=lambda vote: self._silent.get((vote["slot"], vote["incarnation"]), 0))),
            # What counts for nothing is there without its values.
            added=[vote for vote in tally.answers if not parts[vote["slot"]]],
        )

    # -- values --------------------------------------------------------------------------------------------------------

    def _wanted(self) -> Iterator[tuple[str, WantedValues]]:
        """Whose values may come now; those that have not come for too long are left out."""
        now, living = self._context.now(), self._living()
        for gathering in self._gatherings.values():
            for slot, at in list(gathering.asked.items()):
                vote = gathering.told[slot]
                life = slot, vote["incarnation"]
                if life not in living:
                    self._silent.pop(life, None)
                    self._leave_out(gathering, slot)
                elif now - at > self._patience(gathering, vote):
                    self._silent[life] = self._silent.get(life, 0) + 1
                    self._leave_out(gathering, slot)
        sizes = [self._size(each.told[slot]) for each in self._gatherings.values() for slot in each.asked]
        count, size = len(sizes), sum(sizes)
        for gathering in self._gatherings.values():
            while gathering.left:
                vote = gathering.told[gathering.left[0]["slot"]]
                more, slot = self._size(vote), vote["slot"]
                if count and (count >= ASKED_MAX or size + more > self._bytes_max):
                    return
                gathering.left.popleft()
                if (slot, vote["incarnation"]) not in living:
                    gathering.tally.record["left_out"].append(slot)
                    continue
                gathering.asked[slot] = now
                count, size = count + 1, size + more
                fragment, round = vote["fragment"], vote["round"]
                yield (
                    "wanted",
                    WantedValues(fragment=fragment, round=round, slot=slot, incarnation=vote["incarnation"]),
                )

    def _living(self) -> frozenset[tuple[int, int]]:
        """The live hosts that answer; made anew only where the members have changed: every value that comes asks."""
        members = self._context.members()
        if members is not self._members:
            self._members = members
            those = (each for each in members if each.replica.role == self._kind.role)
            self._lives = frozenset((each.replica.slot, each.incarnation) for each in those)
        return self._lives

    def _size(self, vote: Answer) -> int:
        """The bytes of its values."""
        units = self._fragments[vote["fragment"]].units
        return FORMATS[vote.get("format", "float32")].payload(unit.size for unit in units)

    def _patience(self, gathering: _Gathering, vote: Answer) -> int:
        """Nanoseconds for which the values of an answer are awaited."""
        if gathering.longest and not gathering.left:
            return max(PATIENCE_NS, PATIENCE_TIMES * gathering.longest)
        return max(FIRST_PATIENCE_NS, PATIENCE_TIMES * gathering.longest) + self._size(vote) * 10**9 // BYTES_LEAST

    def _leave_out(self, gathering: _Gathering, slot: int) -> None:
        del gathering.asked[slot]
        gathering.tally.record["left_out"].append(slot)

    def _take_values(self, item: AnswerValues) -> None:
        """Add the values of an answer, unless something is wrong with them."""
        gathering, slot = self._gatherings.get(item["fragment"]), item["slot"]
        if gathering is None or slot not in gathering.asked:
            return
        told = gathering.told[slot]
        if (told["round"], told["incarnation"]) != (item["round"], item["incarnation"]):
            return
        if not item["gradient"].size:
            self._leave_out(gathering, slot)
            return
        self._silent.pop((slot, told["incarnation"]), None)
        gathering.longest = max(gathering.longest, self._context.now() - gathering.asked.pop(slot))
        vote: Answer = {**told, **{name: item[name] for name in ("gradient", "scales") if name in item}}  # type: ignore[typeddict-item]
        record = gathering.tally.record
        if item.get("format", "float32") != told.get("format", "float32"):
            record["refused"].append([slot, "values in another format"])
            return
        if (fault := self._fault(vote)) is not None:
            record["refused"].append([slot, fault])
            return
        counted, length = gathering.counted[slot], gathering.lengths.get(slot, 1.0)
        for judge in self._judges:
            if (share := judge.arrived(gathering.tally, vote)) == 0.0:
                return
            length *= share
        gathering.sum.add(self._values(vote), gathering.parts[slot], told["norms"], length)
        gathering.added.append({**counted, "norms": told["norms"] * np.float32(length)} if length != 1.0 else counted)

    # -- the merge -----------------------------------------------------------------------------------------------------

    def _finished(self, gathering: _Gathering) -> dict[str, Any]:
        """The merge of what was added. Where a rule divides it, each has at most what the rule gives it among these."""
        planned = gathering.tally
        accepted = sorted(gathering.added, key=lambda vote: vote["slot"])
        planned.record["capped"] = []
        tally = RoundTally(planned.round, planned.record, accepted, planned.newest)
        merged = gathering.sum.merged()
        if merged is None or not self._weigh(tally):
            gradient = self._gradient(planned.round, planned.record, None)
            return {**self._emitted({**gradient, "lives": gathering.lives})}
        if planned.shares or tally.shares:
            parts = [planned.whole * gathering.parts[vote["slot"]] for vote in accepted]
            own = _within(parts, [tally.whole * part / sum(tally.parts) for part in tally.parts])
            tally.divide(own, sum(own))
            merged = replace(merged, scale=merged.scale * np.float32(tally.whole))
        gradient = self._booked(tally, merged)
        for judge in self._judges:
            judge.moved(planned.round["fragment"], merged)
        return {**self._emitted({**gradient, "lives": gathering.lives})}


def _within(parts: Sequence[float], most: Sequence[float]) -> list[float]:
    """These parts, which stand to each other as they were summed, as large as is possible with none above its most."""
    factor = min(limit / part for part, limit in zip(parts, most, strict=True) if part > 0)
    return [part * factor for part in parts]


def _fault_told(vote: Answer) -> str | None:
    """The fault in what is told ahead of an answer's values."""
    norms = vote["norms"]
    return None if np.isfinite(norms).all() and (norms >= 0).all() else "not finite"
