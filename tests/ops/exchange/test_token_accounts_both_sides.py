"""Token accounts, both sides: a learner and a shard over bad links, against a record of what really was merged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.token_accounts import FragmentAccount, FragmentLedger, Odometer, Version, clock_of
from tests.effort import examples


@dataclass(frozen=True)
class Answer:
    number: int
    incarnation: int
    base: Version
    begin: int
    end: int
    steps: int


@dataclass(frozen=True)
class Update:
    version: Version
    clock: list[list[int]]


class World:
    """One learner and one shard, with a token-by-token record of what really went into the fragment."""

    SLOT = 5

    def __init__(self, *, carries: bool = False) -> None:
        self.carries = carries
        self.shard = FragmentAccount((1, 0), interval=3)
        self.learner = FragmentLedger(incarnation=1, base=(1, 0), odometer=Odometer())
        self.merges: Counter[tuple[int, int]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.answers: list[Answer] = []
        self.updates: list[Update] = []
        self.round = 0
        self.voted = False

    def train(self, tokens: int) -> None:
        self.learner.odometer.tokens += tokens
        self.learner.odometer.steps += 1

    def answer(self) -> None:
        books = self.learner
        end = books.odometer.tokens
        books.answered(end)
        number, lives = self.round, books.incarnation
        self.answers.append(Answer(number, lives, books.base, books.begin, end, books.steps))

    def receive(self, answer: Answer, rounds_matter: bool) -> None:
        if rounds_matter and (answer.number != self.round or self.voted):
            return
        reason = self.shard.refusal(
            self.SLOT,
            answer.incarnation,
            answer.base,
            answer.begin,
            answer.end,
            answer.steps,
            answer.end - answer.begin,
        )
        if reason is not None:
            self.refusals[reason] += 1
            return
        self.shard.merge(self.SLOT, answer.incarnation, answer.begin, answer.end)
        self.merges.update((answer.incarnation, token) for token in range(answer.begin, answer.end))
        self.voted = True

    def close(self) -> None:
        epoch, count = self.shard.newest
        self.shard.publish((epoch, count + 1))
        self.updates.append(Update(self.shard.newest, self.shard.clock()))
        self.round, self.voted = self.round + 1, False

    def adopt(self, update: Update) -> None:
        if update.version >= self.learner.base:
            self.learner.adopted(update.version, clock_of(update.clock, self.SLOT), carries=self.carries)

    def die(self) -> None:
        """The slot's next life numbers its tokens from the start of its own."""
        self.learner.died(clock_of(self.shard.clock(), self.SLOT))
        self.learner = FragmentLedger(self.learner.incarnation + 1, self.shard.newest, Odometer())

    def check(self) -> None:
        assert max(self.merges.values(), default=0) <= 1
        assert sum(self.shard.merged.values()) == sum(self.merges.values())
        lives = {(self.SLOT, incarnation) for incarnation, _ in self.merges}
        assert {life for life, tokens in self.shard.merged.items() if tokens} == lives
        assert sum(self.learner.account()) == self.learner.odometer.tokens
        mine = sum(1 for incarnation, _ in self.merges if incarnation == self.learner.incarnation)
        assert self.learner.merged <= mine


wild = st.lists(
    st.tuples(
        st.sampled_from(["train", "train", "answer", "receive", "duplicate", "close", "adopt", "lose", "die"]),
        st.integers(0, 9),
    ),
    max_size=80,
)


@settings(max_examples=examples(300))
@given(wild, st.booleans())
def test_no_token_is_merged_twice_whatever_is_lost_late_or_repeated(walk: list[tuple[str, int]], carries: bool) -> None:
    world = World(carries=carries)
    for action, number in walk:
        pick = number % max(1, len(world.answers if action in ("receive", "duplicate") else world.updates))
        if action == "train":
            world.train(number)
        elif action == "answer":
            world.answer()
        elif action == "receive" and world.answers:
            world.receive(world.answers.pop(pick), rounds_matter=False)
        elif action == "duplicate" and world.answers:
            world.receive(world.answers[pick], rounds_matter=False)
        elif action == "close":
            world.close()
        elif action == "adopt" and world.updates:
            world.adopt(world.updates[pick])
        elif action == "lose" and world.updates:
            del world.updates[pick]
        elif action == "die":
            world.die()
        world.check()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "train", "answer", "receive", "lose", "close", "adopt"]), st.integers(0, 9)
        ),
        max_size=80,
    ),
    st.booleans(),
)
def test_the_learner_knows_what_was_merged_when_updates_arrive_in_order(
    walk: list[tuple[str, int]], carries: bool
) -> None:
    """Answers may be lost or late, updates slow; a vote counts in its own round only."""
    world = World(carries=carries)
    for action, number in walk:
        if action == "train":
            world.train(number)
        elif action == "answer":
            world.answer()
        elif action == "receive" and world.answers:
            world.receive(world.answers.pop(0), rounds_matter=True)
        elif action == "lose" and world.answers:
            world.answers.pop(number % len(world.answers))
        elif action == "close" and len(world.updates) < 2:
            world.close()
        elif action == "adopt" and world.updates:
            world.adopt(world.updates.pop(0))
        world.check()
    world.close()
    for update in world.updates:
        world.adopt(update)
    world.check()
    assert world.learner.merged == sum(world.merges.values())
    assert not (carries and world.learner.overlapped)


def test_a_learner_that_missed_its_own_broadcast_is_not_merged_twice() -> None:
    world = World()
    world.train(10)
    world.answer()
    world.receive(world.answers.pop(), rounds_matter=True)
    world.close()
    world.updates.clear()
    world.train(10)
    world.answer()
    world.receive(world.answers.pop(), rounds_matter=True)
    assert world.refusals == {"already merged": 1}
    world.close()
    world.adopt(world.updates.pop())
    world.train(5)
    world.answer()
    world.receive(world.answers.pop(), rounds_matter=True)
    world.check()
    assert world.merges.total() == 15
    books = world.learner
    assert (books.merged, books.refused, books.tokens, books.odometer.tokens) == (10, 10, 5, 25)
