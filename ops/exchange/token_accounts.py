"""Token accounts: which tokens are in a fragment, which are not, and why; in integers.

Decides whether an answer may be merged, its weight, and the account of every trained token. Does not decide which
learners are asked (the pacer), when a round closes (the quorum), or whether an incarnation is alive (membership). A
learner numbers the tokens that it trains; its `position` is their count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias, final

Version: TypeAlias = tuple[int, int]
"""(epoch, count): the term of a shard, and the outer steps of a fragment in it."""
Clock: TypeAlias = tuple[int, int]
"""(incarnation, position): up to which position the work of one life is merged."""

FATES: Final = ("merged", "overlapped", "refused", "lost", "pending")
"""The fates of a trained token, fragment by fragment."""

# An answer over more than so many intervals since adoption is refused, unless its base is still the newest.
STALE_INTERVALS = 4
# Adoptions between an answer and the update that has it: one update in transfer and one behind it, doubled.
UNSETTLED_COUNT_MAX = 4
# Ranges merged last that a new epoch may undo: it begins with the newest version of any host that can be reached.
UNDONE_COUNT_MAX = 8


def weight(tokens: int, steps: int) -> float:
    """The weight of an answer: quantity times quality, tokens * (tokens / steps); 0 where nothing was trained.

    From arXiv 2604.21428: tokens per step stand for quality, because a step on more tokens has less noise.
    """
    return tokens * (tokens / steps) if steps else 0.0


def clock_of(clock: Iterable[Sequence[int]], slot: int) -> Clock | None:
    """The entry of one slot in an exported clock; None where nothing of the slot has been merged."""
    for each, incarnation, position in clock:
        if each == slot:
            return incarnation, position
    return None


class FragmentAccount:
    """A shard's accounts of one fragment: its versions, its clock, and its merged tokens, by (slot, incarnation).

    `interval` is H, the inner steps between two merges; it may be lengthened during the run. `origin` is the version
    that it began with: tokens merged into that are in the accounts of another epoch.

    An answer names its tokens, (begin, end], begin being the position at which its base was adopted. It is merged only
    if the base is one of the shard's own versions and begin is not before the clock: an answer that missed the
    broadcast of its own work still holds that work, and would merge it twice. The clock travels with every update.
    """

    def __init__(self, version: Version, interval: int, clock: Iterable[Sequence[int]] = ()) -> None:
        """Start at `version`, the only one that a shard knows at the start of a run or of its epoch, with its clock."""
        self.interval = interval
        self.origin: Version = (version[0], version[1])
        self.newest = self.origin
        self.merged: dict[tuple[int, int], int] = {}
        # Counts follow one another within an epoch: a range for each tells every version, however long the run is.
        self._counts: dict[int, tuple[int, int]] = {version[0]: (version[1], version[1])}
        self._clock: dict[int, Clock] = {}
        for slot, incarnation, position in clock:
            if slot in self._clock:
                raise ValueError(f"importing a clock: expected each slot once, found slot {slot} twice.")
            self._clock[slot] = (incarnation, position)

    def publish(self, version: Version) -> None:
        """Take `version` into the history: the next count of the newest epoch, or any count of a higher one."""
        epoch, count = self.newest
        if version[0] < epoch or (version[0] == epoch and version[1] != count + 1):
            raise ValueError(f"publishing version {version}: expected {(epoch, count + 1)} or a higher epoch.")
        first = self._counts[epoch][0] if version[0] == epoch else version[1]
        self._counts[version[0]] = (first, version[1])
        self.newest = (version[0], version[1])

    def knows(self, version: Version) -> bool:
        """Whether this shard published the version, or began with it."""
        epoch = self._counts.get(version[0])
        return epoch is not None and epoch[0] <= version[1] <= epoch[1]

    def refusal(
        self,
        slot: int,
        incarnation: int,
        base: Version,
        begin: int,
        end: int,
        steps: int,
        tokens: int,
        former: Sequence[Sequence[int]] = (),
    ) -> str | None:
        """Why an answer may not be merged now, or None where it may.

        `former` are ranges of earlier lives that are in it, [incarnation, begin, end, steps]. 'inconsistent': the
        range, the tokens and the steps contradict each other. 'unknown base': not a version of this shard. 'former
        incarnation': the clock belongs to a later life of the slot. 'already merged': part of the range is in the
        fragment. 'stale': more than 4 H steps since adoption, and the base has been superseded.
        """
        if not (0 <= begin <= end and tokens == end - begin and steps >= 0 and (steps > 0 or tokens == 0)):
            return "inconsistent"
        if not self.knows(base):
            return "unknown base"
        ranges = [(life, first) for life, first, _, _ in former] + [(incarnation, begin)]
        if any(former[at][0] >= ranges[at + 1][0] for at in range(len(former))):
            return "inconsistent"
        first_life, first_begin = ranges[0]
        merged_incarnation, merged_position = self._clock.get(slot, (first_life, 0))
        if first_life < merged_incarnation:
            return "former incarnation"
        if first_life == merged_incarnation and first_begin < merged_position:
            return "already merged"
        steps += sum(row[3] for row in former)
        if steps > STALE_INTERVALS * self.interval and tuple(base) != self.newest:
            return "stale"
        return None

    def refusal_of_work(self, base: Version, work: Sequence[Sequence[int]]) -> str | None:
        """Why an answer of a region may not be merged now, or None where it may; the reasons are those of `refusal`.

        `work` is [slot, incarnation, begin, end, steps] of its learners, each life's in order. A region keeps what is
        not merged, on whatever version it goes on, so that nothing in it is stale.
        """
        if not self.knows(base):
            return "unknown base"
        reached = dict(self._clock)
        for slot, incarnation, begin, end, steps in work:
            if not (0 <= begin < end and steps > 0):
                return "inconsistent"
            life, position = reached.get(slot, (incarnation, 0))
            if incarnation < life:
                return "former incarnation"
            if incarnation == life and begin < position:
                return "already merged"
            reached[slot] = incarnation, end
        return None

    def merge(self, slot: int, incarnation: int, begin: int, end: int) -> None:
        """Book the range (begin, end] of one slot as merged; an empty one changes nothing.

        Raises ValueError where part of it is merged already, or belongs to a former life: check `refusal` first.
        """
        merged_incarnation, merged_position = self._clock.get(slot, (incarnation, 0))
        floor = merged_position if incarnation == merged_incarnation else 0
        if incarnation < merged_incarnation or not floor <= begin <= end:
            raise ValueError(
                f"booking ({begin}, {end}] of slot {slot}, incarnation {incarnation}: expected a range after "
                f"({merged_incarnation}, {merged_position}), which is merged."
            )
        if begin == end:  # A clock at its end would count the tokens before it as merged.
            return
        self._clock[slot] = (incarnation, end)
        self.merged[slot, incarnation] = self.merged.get((slot, incarnation), 0) + end - begin

    def clock(self) -> list[list[int]]:
        """The clock as it travels: [slot, incarnation, position] in slot order."""
        return [[slot, *self._clock[slot]] for slot in sorted(self._clock)]


@dataclass(slots=True)
class Odometer:
    """The progress of one life of a learner: its inner steps, and the tokens in them. All its ledgers share it."""

    steps: int = 0
    tokens: int = 0


@dataclass(slots=True)
class FragmentLedger:
    """A learner's accounts of one fragment, in one incarnation.

    Opened at the adoption of a first version. `begin` is the position of the last adoption of `base`; `steps` and
    `tokens` count from there, by difference: a step touches no ledger. The four totals cover the tokens whose fate is
    known; the rest are pending. `former` is work of earlier lives since the adoption of `base`, [incarnation, begin,
    end, steps], which this one continues: it is in this life's answers, and in the accounts of those.

    It reads in the clock of an update what became of its answer, and at each adoption closes the accounts of the tokens
    since the one before. With adoption before at a, adoption now at x, last answer up to t, and clock c of this life (a
    where there is none; both at least a):

        a ........ c ........ t ........ x
          merged    refused    overlapped        without an answer, all that is not merged is refused: left out

    so that trained = merged + overlapped + refused + lost + pending, exactly, at every moment. Where the learner
    carries over what it trained since t (since a, where it has not answered), that stays pending, and in its next
    answer, which begins there: nothing is overlapped, and nothing refused for want of an answer. A slow update may be
    adopted after the answer to the next round has left: that answer is booked as refused, and moved to merged when the
    clock of a following update has it. A shard that comes back may begin with an older version than the learner held:
    what the clock of the new epoch no longer has was undone, and is moved from merged to lost.
    """

    incarnation: int
    base: Version
    odometer: Odometer
    former: list[list[int]] = field(default_factory=list, init=False)
    begin: int = field(init=False)
    merged: int = field(default=0, init=False)
    overlapped: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    lost: int = field(default=0, init=False)
    _answered: int | None = field(default=None, init=False, repr=False)
    _answered_steps: int = field(default=0, init=False, repr=False)
    _unsettled: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)
    """Ranges of tokens booked as refused whose answer may yet be merged, by a round open at the adoption; ascending."""
    _merged_last: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)
    """The newest ranges of tokens booked as merged; ascending."""
    _steps_begin: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.begin, self._steps_begin = self.odometer.tokens, self.odometer.steps

    @property
    def steps(self) -> int:
        """Inner steps since the last adoption."""
        return self.odometer.steps - self._steps_begin

    @property
    def tokens(self) -> int:
        """Tokens since the last adoption: pending, because their fate is unknown."""
        return self.odometer.tokens - self.begin

    def answered(self, position: int) -> None:
        """Record that an answer up to `position` was sent; of several since adoption the last counts."""
        if not max(self.begin, self._answered or 0) <= position <= self.odometer.tokens:
            raise ValueError(
                f"answering up to token {position}: expected {self.begin} (adoption) to {self.odometer.tokens} "
                f"(trained), and no step back from {self._answered}."
            )
        self._answered, self._answered_steps = position, self.odometer.steps

    def adopted(self, version: Version, clock: Clock | None, *, carries: bool = False) -> None:
        """Close the accounts at the adoption of `version`, made now, and open new ones.

        `clock` is this slot's entry in the update; that of another incarnation counts as none. With `carries` the new
        accounts begin at the last answer, whose position was that of its moment. Raises ValueError for a version older
        than the base, or a clock beyond what was trained, or, with `carries`, answered.
        """
        if tuple(version) < tuple(self.base):
            raise ValueError(f"adopting version {version}: expected {self.base} or newer, which the learner holds.")
        if version[0] > self.base[0]:
            self._book_undone(clock)
        kept = self.begin if self._answered is None else self._answered
        if carries and clock is not None and clock[0] == self.incarnation and clock[1] > kept:
            expected = f"at most token {kept}, which was answered"
            raise ValueError(f"reading the clock: expected {expected}, found {clock[1]} merged.")
        # Work of former lives that no answer has had yet is carried, too: it is in the parameters.
        former = self.former if carries and self._answered is None else []
        merged_up_to, position = self._book_merged(clock), self.odometer.tokens
        if carries:
            position = kept
        if self._answered is None:
            self.refused += position - merged_up_to
        else:
            answered = max(self._answered, merged_up_to)
            self._unsettled = [*self._unsettled, (merged_up_to, answered)][-UNSETTLED_COUNT_MAX:]
            self.refused += answered - merged_up_to
            self.overlapped += position - answered
        steps = self._steps_begin if self._answered is None else self._answered_steps
        self._reopen(version)
        if carries:
            self.begin, self._steps_begin, self.former = kept, steps, former

    def died(self, clock: Clock | None = None) -> None:
        """Close the accounts for good: pending tokens are lost, except those that `clock` reports as merged."""
        self.lost += self.odometer.tokens - self._book_merged(clock)
        self._reopen(self.base)

    def work(self) -> list[list[int]]:
        """All work since the adoption of `base`, by life, as `former`."""
        own = [[self.incarnation, self.begin, self.odometer.tokens, self.steps]] if self.steps else []
        return [*self.former, *own]

    def is_former_in(self, clock: Clock | None) -> bool:
        """Whether a version with that clock has some of the work of former lives which no answer has had yet."""
        if clock is None or not self.former or self._answered is not None:
            return False
        incarnation, begin, _, _ = self.former[0]
        return tuple(clock) > (incarnation, begin)

    def unanswered(self) -> list[list[int]]:
        """The work since the last answer, or, without one since the adoption of `base`, all of it."""
        if self._answered is None:
            return self.work()
        steps = self.odometer.steps - self._answered_steps
        return [[self.incarnation, self._answered, self.odometer.tokens, steps]] if steps else []

    def account(self) -> list[int]:
        """The fates of the tokens since the first version, in the order of FATES; their sum is the number of tokens."""
        return [self.merged, self.overlapped, self.refused, self.lost, self.tokens]

    def _book_merged(self, clock: Clock | None) -> int:
        """Book the tokens that the clock reports as merged; returns their end, at least the last adoption."""
        if clock is None or clock[0] != self.incarnation:
            return self.begin
        position = clock[1]
        if position > self.odometer.tokens:
            actual = f"found {position} merged."
            raise ValueError(f"reading the clock: expected at most token {self.odometer.tokens}, {actual}")
        for first, last in self._unsettled:
            if first < position <= last:
                self.refused -= position - first
                self._merge(first, position)
        self._unsettled = [(first, last) for first, last in self._unsettled if first >= position]
        merged_up_to = max(self.begin, position)
        self._merge(self.begin, merged_up_to)
        return merged_up_to

    def _merge(self, first: int, last: int) -> None:
        if first < last:
            self.merged += last - first
            self._merged_last = [*self._merged_last, (first, last)][-UNDONE_COUNT_MAX:]

    def _book_undone(self, clock: Clock | None) -> None:
        """Book as lost the merged tokens that are not in the version that a new epoch began with."""
        if clock is not None and clock[0] > self.incarnation:  # The clock has no entry of this life.
            return
        position = clock[1] if clock is not None and clock[0] == self.incarnation else 0
        undone = sum(last - max(first, position) for first, last in self._merged_last if last > position)
        self.merged -= undone
        self.lost += undone
        self._merged_last = [(first, min(last, position)) for first, last in self._merged_last if first < position]

    def _reopen(self, version: Version) -> None:
        self.base, self.begin, self._steps_begin = version, self.odometer.tokens, self.odometer.steps
        self.former, self._answered = [], None


ANSWERS_OPEN_MAX: Final = 8
"""Answers of a region about a fragment whose fate is open: one in a round, one late, and those in transfer, doubled."""


NO_SHARES: Final[Mapping[str, float]] = MappingProxyType({})


@final
class RegionWork:
    """A region's account of one fragment toward the global syncer: the tokens of its learners that it has merged and no
    global version has, and its answers with them.

    A row is [slot, incarnation, begin, end, steps]. An answer has all rows of its time, and is merged whole or not at
    all; so one whose rows are all in the clock of a version is merged in it. What is not, stays, and is in the next
    answer, too. So of the answers that are open together one is merged at most: the global account refuses the others.
    """

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._shares: list[tuple[int, Mapping[str, float]]] = []
        """Of each merge how many rows there were after it, and the shares that owners had of it."""
        self._answers: dict[int, int] = {}
        """Number of an open answer -> how many of the rows it has, the first ones."""
        self._answer_last = 0

    def merged(self, rows: Sequence[Sequence[int]], shares: Mapping[str, float] = NO_SHARES) -> None:
        """Add tokens that the region has merged, each life's in order, and the shares of owners in that merge."""
        self._rows += [list(row) for row in rows]
        if rows:
            self._shares.append((len(self._rows), shares))

    def shares(self) -> dict[str, float]:
        """The share that each owner had, in the mean, of the merges that are in no global version."""
        owners = {name for _, shares in self._shares for name in shares}
        return {name: sum(each.get(name, 0.0) for _, each in self._shares) / len(self._shares) for name in owners}

    def pending(self) -> list[list[int]]:
        """The rows that are in no global version that is known here."""
        return [list(row) for row in self._rows]

    def answered(self) -> int:
        """Record that all rows leave in an answer; returns its number, that of the one before if it has the same rows.

        Of more than ANSWERS_OPEN_MAX the oldest is forgotten.
        """
        if self._answers.get(self._answer_last) == len(self._rows):
            return self._answer_last
        self._answer_last += 1
        self._answers[self._answer_last] = len(self._rows)
        for number in sorted(self._answers)[:-ANSWERS_OPEN_MAX]:
            del self._answers[number]
        return self._answer_last

    def open_answers(self) -> list[int]:
        """The numbers of the answers whose fate is open, ascending."""
        return sorted(self._answers)

    def adopted(self, clock: Iterable[Sequence[int]]) -> int | None:
        """Close the account of the tokens in a global version, by its clock; returns the newest answer that is merged
        in it, None where none is.

        Raises ValueError where rows are in it, but no open answer has just these.
        """
        reached = {slot: (incarnation, position) for slot, incarnation, position in clock}
        within = 0
        for slot, incarnation, _, end, _ in self._rows:
            if (incarnation, end) > reached.get(slot, (0, 0)):
                break
            within += 1
        # An answer without rows changes nothing: it is merged in no version.
        number = max((each for each, rows in self._answers.items() if 0 < rows <= within), default=None)
        if within != (0 if number is None else self._answers[number]):
            raise ValueError(f"adopting a clock with {within} of {len(self._rows)} rows: expected those of an answer.")
        if number is not None:
            self._rows = self._rows[within:]
            self._shares = [(rows - within, shares) for rows, shares in self._shares if rows > within]
            self._answers = {}
        return number


ROWS_MAX: Final = 16
"""Other lives in a report: in a large run, a receiver of many reports gets enough to cover all."""


@final
@dataclass(slots=True)
class Totals:
    """Tokens by (slot, incarnation). They only grow, so the larger of two values holds.

    Pacers, recorders and learners each keep one, add those of others, and pass their own on. The sum is read at every
    step. What is only claimed of a life is passed on, too, and is not in the sum: whoever ended a run by what nobody
    else counts would wait for the others.
    """

    trained: int = field(default=0, init=False)
    _row_next: int = field(default=0, init=False)
    """The number of lives, in order of first appearance, that `next_rows` has returned."""
    _tokens: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int), init=False)
    _claims: dict[tuple[int, int], int] = field(default_factory=dict, init=False)

    def claim(self, slot: int, incarnation: int, tokens: int) -> None:
        """Pass on that a life has trained so many, which count as far as they are heard of from others."""
        self._claims[slot, incarnation] = tokens

    def raise_to(self, rows: Iterable[Sequence[int]]) -> None:
        """Take the maximum, life by life, of the known and the given [slot, incarnation, tokens] triples."""
        for slot, incarnation, tokens in rows:
            more = tokens - self._tokens[slot, incarnation]
            if more > 0:
                self._tokens[slot, incarnation] = tokens
                self.trained += more

    def add(self, slot: int, incarnation: int, tokens: int) -> None:
        """Add tokens of one life."""
        self._tokens[slot, incarnation] += tokens
        self.trained += tokens

    def trained_with(self, rows: Iterable[Sequence[int]]) -> int:
        """What would be trained by these [slot, incarnation, tokens] triples, too, which are not taken in."""
        heard: dict[tuple[int, int], int] = {}
        for slot, incarnation, tokens in rows:
            heard[slot, incarnation] = max(tokens, heard.get((slot, incarnation), 0))
        return self.trained + sum(max(0, tokens - self._tokens.get(life, 0)) for life, tokens in heard.items())

    def of(self, slot: int, incarnation: int) -> int:
        """The tokens of one life; 0 if it is unknown."""
        return self._tokens.get((slot, incarnation), 0)

    def of_slot(self, slot: int) -> int:
        """The tokens of all lives of a slot."""
        return sum(tokens for each, _, tokens in self.rows() if each == slot)

    def rows(self) -> list[list[int]]:
        """[slot, incarnation, tokens] of every life, in this order, as an item carries it."""
        return [[*life, self._told(life)] for life in sorted(self._tokens.keys() | self._claims.keys())]

    def next_rows(self, slot: int, incarnation: int) -> list[list[int]]:
        """[slot, incarnation, tokens] of that life, and of at most TOLD_MAX others.

        Each call continues with the next ones, so that a frequent receiver soon knows all, even where some items do not
        arrive.
        """
        lives, own = [*self._tokens, *(life for life in self._claims if life not in self._tokens)], (slot, incarnation)
        if len(lives) <= ROWS_MAX:
            return self.rows()
        chosen = {own} | {lives[(self._row_next + i) % len(lives)] for i in range(ROWS_MAX)}
        self._row_next = (self._row_next + ROWS_MAX) % len(lives)
        return [[*life, self._told(life)] for life in sorted(chosen) if life in self._tokens or life in self._claims]

    def _told(self, life: tuple[int, int]) -> int:
        return max(self._tokens.get(life, 0), self._claims.get(life, 0))
