"""Token accounts, each side alone: refusals case by case, and the ledger against a model that marks every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange import token_accounts
from isthmus.ops.exchange.token_accounts import (
    Clock,
    FragmentAccount,
    FragmentLedger,
    Odometer,
    Version,
    clock_of,
    weight,
)

FATES = ("merged", "overlapped", "refused", "lost", "pending")


def test_weight_is_quantity_times_quality() -> None:
    assert weight(0, 0) == 0.0
    assert weight(1200, 24) == 1200 * 50
    assert weight(2400, 24) == 4 * weight(1200, 24)
    assert weight(2400, 48) == 2 * weight(1200, 24)


# The shard


def account() -> FragmentAccount:
    """Versions (1, 0) to (1, 2); slot 3's second life is merged up to token 100. H = 24."""
    books = FragmentAccount((1, 0), interval=24)
    books.publish((1, 1))
    books.merge(3, 2, 60, 100)
    books.publish((1, 2))
    return books


@pytest.mark.parametrize(
    ("slot", "incarnation", "base", "begin", "end", "steps", "expected"),
    [
        (3, 2, (1, 2), 100, 150, 5, None),
        (3, 2, (1, 2), 130, 150, 5, None),
        (3, 2, (1, 1), 100, 150, 5, None),
        (3, 2, [1, 2], 100, 150, 500, None),
        (3, 2, (1, 1), 99, 150, 5, "already merged"),
        (3, 2, (1, 1), 60, 100, 5, "already merged"),
        (3, 1, (1, 2), 500, 600, 5, "former incarnation"),
        (3, 3, (1, 2), 0, 50, 5, None),
        (4, 1, (1, 0), 0, 50, 5, None),
        (4, 1, (1, 3), 0, 50, 5, "unknown base"),
        (4, 1, (0, 0), 0, 50, 5, "unknown base"),
        (4, 1, (2, 0), 0, 50, 5, "unknown base"),
        (4, 1, (1, -1), 0, 50, 5, "unknown base"),
        (4, 1, (1, 1), 0, 50, 96, None),
        (4, 1, (1, 1), 0, 50, 97, "stale"),
        (4, 1, (1, 2), 0, 50, 97, None),
        (4, 1, (1, 2), 0, 0, 0, None),
        (4, 1, (1, 2), 50, 49, 5, "inconsistent"),
        (4, 1, (1, 2), -10, 40, 5, "inconsistent"),
        (4, 1, (1, 2), 0, 50, 0, "inconsistent"),
        (4, 1, (1, 2), 0, 50, -1, "inconsistent"),
    ],
)
def test_refusals(
    slot: int, incarnation: int, base: Version, begin: int, end: int, steps: int, expected: str | None
) -> None:
    assert account().refusal(slot, incarnation, base, begin, end, steps, end - begin) == expected


def test_tokens_must_be_those_of_the_range() -> None:
    assert account().refusal(4, 1, (1, 2), 0, 50, 5, 51) == "inconsistent"


def test_a_longer_interval_makes_less_stale() -> None:
    books = account()
    books.interval = 48
    assert books.refusal(4, 1, (1, 1), 0, 50, 97, 50) is None


def test_merging_moves_the_clock_and_counts_tokens() -> None:
    books = account()
    assert books.clock() == [[3, 2, 100]]
    assert books.merged == {(3, 2): 40}
    books.merge(0, 1, 0, 8)
    books.merge(3, 3, 0, 5)
    assert books.clock() == [[0, 1, 8], [3, 3, 5]]
    assert books.merged == {(0, 1): 8, (3, 2): 40, (3, 3): 5}
    again = FragmentAccount((2, 0), interval=24, clock=books.clock())
    assert (again.origin, again.merged) == ((2, 0), {})
    assert again.clock() == books.clock()
    assert clock_of(books.clock(), 3) == (3, 5)
    assert clock_of(books.clock(), 1) is None
    assert again.refusal(0, 1, (2, 0), 7, 9, 1, 2) == "already merged"


@pytest.mark.parametrize(
    ("incarnation", "begin", "end"), [(2, 99, 120), (2, 100, 99), (1, 200, 300), (3, 5, 4), (3, -1, 4)]
)
def test_booking_what_was_not_asked_for_is_an_error_and_changes_nothing(incarnation: int, begin: int, end: int) -> None:
    books = account()
    with pytest.raises(ValueError, match=r"slot 3, incarnation .*: expected a range after \(2, 100\)"):
        books.merge(3, incarnation, begin, end)
    assert books.clock() == [[3, 2, 100]]
    assert books.merged == {(3, 2): 40}


def test_an_answer_without_tokens_says_nothing_of_those_before_it() -> None:
    """The learner's former answer came late, and was refused; its next one is empty, and is merged."""
    books, odometer = FragmentAccount((1, 0), interval=24), Odometer()
    learner = FragmentLedger(1, (1, 0), odometer)
    odometer.steps, odometer.tokens = 4, 32
    learner.answered(32)
    learner.adopted((1, 1), None)
    books.merge(0, 1, 32, 32)
    assert (books.clock(), books.merged) == ([], {})
    learner.adopted((1, 2), clock_of(books.clock(), 0))
    assert learner.account() == [0, 0, 32, 0, 0]


def test_versions_follow_one_another_and_epochs_rise() -> None:
    books = account()
    for version in [(1, 2), (1, 4), (0, 9)]:
        with pytest.raises(ValueError, match=r"expected \(1, 3\) or a higher epoch"):
            books.publish(version)
    books.publish((3, 7))
    books.publish((3, 8))
    known = [(epoch, count) for epoch in range(5) for count in range(10) if books.knows((epoch, count))]
    assert known == [(1, 0), (1, 1), (1, 2), (3, 7), (3, 8)]
    assert books.newest == (3, 8)


def test_a_clock_names_a_slot_once() -> None:
    with pytest.raises(ValueError, match="found slot 3 twice"):
        FragmentAccount((1, 0), 24, [[3, 1, 0], [3, 2, 0]])


# The learner


def ledger(tokens: int = 0) -> FragmentLedger:
    books = FragmentLedger(incarnation=1, base=(1, 0), odometer=Odometer())
    train(books, tokens, steps=tokens)
    return books


def train(books: FragmentLedger, tokens: int, steps: int = 1) -> None:
    books.odometer.tokens += tokens
    books.odometer.steps += steps


def fates(books: FragmentLedger, start: int = 0) -> dict[str, int]:
    assert sum(books.account()) == books.odometer.tokens - start
    return {name: count for name, count in zip(FATES, books.account(), strict=True) if count}


@pytest.mark.parametrize(
    ("answered", "clock", "expected"),
    [
        (None, None, {"refused": 50}),
        (40, None, {"refused": 40, "overlapped": 10}),
        (40, (1, 40), {"merged": 40, "overlapped": 10}),
        (40, (1, 30), {"merged": 30, "refused": 10, "overlapped": 10}),
        (40, (2, 40), {"refused": 40, "overlapped": 10}),
        (50, (1, 50), {"merged": 50}),
        (None, (1, 30), {"merged": 30, "refused": 20}),
    ],
)
def test_adoption_closes_the_books(answered: int | None, clock: Clock | None, expected: dict[str, int]) -> None:
    books = ledger(50)
    assert fates(books) == {"pending": 50}
    if answered is not None:
        books.answered(answered)
    books.adopted((1, 1), clock)
    assert fates(books) == expected
    assert (books.base, books.begin, books.steps, books.tokens) == ((1, 1), 50, 0, 0)


@pytest.mark.parametrize(
    ("answered", "clock", "expected", "begin"),
    [
        (None, None, {"pending": 50}, 0),
        (40, None, {"refused": 40, "pending": 10}, 40),
        (40, (1, 40), {"merged": 40, "pending": 10}, 40),
        (40, (1, 30), {"merged": 30, "refused": 10, "pending": 10}, 40),
        (40, (2, 45), {"refused": 40, "pending": 10}, 40),
        (50, (1, 50), {"merged": 50}, 50),
    ],
)
def test_what_is_carried_over_stays_pending(
    answered: int | None, clock: Clock | None, expected: dict[str, int], begin: int
) -> None:
    books = ledger()
    train(books, answered or 0, steps=4)
    if answered is not None:
        books.answered(answered)
    train(books, 50 - (answered or 0), steps=5)
    books.adopted((1, 1), clock, carries=True)
    assert fates(books) == expected
    steps = 9 if answered is None else 5
    assert (books.base, books.begin, books.steps, books.tokens) == ((1, 1), begin, steps, 50 - begin)
    books.answered(50)
    books.adopted((1, 2), (1, 50), carries=True)
    assert fates(books)["merged"] >= 50 - begin
    assert books.tokens == 0


def test_an_answer_that_is_merged_late_is_booked_beside_what_was_carried_over() -> None:
    books = ledger(20)
    books.answered(20)
    train(books, 3)
    books.adopted((1, 1), None, carries=True)
    assert fates(books) == {"refused": 20, "pending": 3}
    books.adopted((1, 2), (1, 20), carries=True)
    assert fates(books) == {"merged": 20, "pending": 3}


def test_of_several_answers_the_last_counts() -> None:
    books = ledger(20)
    books.answered(20)
    train(books, 20)
    books.answered(40)
    train(books, 5)
    books.adopted((1, 1), (1, 20))
    assert fates(books) == {"merged": 20, "refused": 20, "overlapped": 5}


def test_an_answer_that_outran_a_slow_update_is_booked_late() -> None:
    books = ledger(20)
    books.answered(20)
    train(books, 3)
    books.adopted((1, 1), None)
    assert fates(books) == {"refused": 20, "overlapped": 3}
    train(books, 7)
    books.adopted((1, 2), (1, 20))
    assert fates(books) == {"merged": 20, "overlapped": 3, "refused": 7}
    books.adopted((1, 2), (1, 20))
    assert fates(books) == {"merged": 20, "overlapped": 3, "refused": 7}


def test_two_answers_that_outran_two_updates_are_booked_in_turn() -> None:
    books = ledger(20)
    books.answered(20)
    books.adopted((1, 1), None)
    train(books, 10)
    books.answered(30)
    books.adopted((1, 2), None)
    assert fates(books) == {"refused": 30}
    books.adopted((1, 3), (1, 20))
    assert fates(books) == {"merged": 20, "refused": 10}
    books.adopted((1, 4), (1, 30))
    assert fates(books) == {"merged": 30}


def test_what_a_new_epoch_no_longer_has_is_lost() -> None:
    """A shard died, and begins again with a version older than the learner's, which it could not reach."""
    books = ledger(20)
    for version, trained in enumerate((40, 60, 80), 1):
        books.answered(books.odometer.tokens - 5)
        books.adopted((1, version), (1, books.odometer.tokens - 5))
        train(books, trained - books.odometer.tokens)
    assert fates(books) == {"merged": 45, "overlapped": 15, "pending": 20}
    books.adopted((2, 2), (1, 35))
    assert fates(books) == {"merged": 30, "overlapped": 15, "lost": 15, "refused": 20}
    books.adopted((2, 3), None)
    assert fates(books) == {"merged": 30, "overlapped": 15, "lost": 15, "refused": 20}
    books.adopted((3, 3), (2, 1000))
    assert fates(books) == {"merged": 30, "overlapped": 15, "lost": 15, "refused": 20}
    books.adopted((4, 1), None)
    assert fates(books) == {"overlapped": 15, "lost": 45, "refused": 20}


def test_a_death_loses_what_is_pending() -> None:
    books = ledger(20)
    books.answered(15)
    books.died((1, 15))
    assert fates(books) == {"merged": 15, "lost": 5}
    books.died((1, 15))
    assert fates(books) == {"merged": 15, "lost": 5}
    assert (books.base, books.begin, books.steps) == ((1, 0), 20, 0)


def test_steps_and_tokens_count_from_the_adoption() -> None:
    books = ledger()
    train(books, 8)
    train(books, 8)
    train(books, 24, steps=3)
    assert (books.steps, books.tokens) == (5, 40)
    books.adopted((1, 1), None)
    train(books, 6)
    assert (books.steps, books.tokens, books.begin) == (1, 6, 40)


def test_a_returning_life_counts_its_own_tokens() -> None:
    books = FragmentLedger(incarnation=2, base=(1, 4), odometer=Odometer(tokens=500))
    train(books, 30)
    books.adopted((1, 5), (1, 480))
    assert fates(books, start=500) == {"refused": 30}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda books: books.adopted((0, 9), None), r"expected \(1, 0\) or newer"),
        (lambda books: books.adopted((1, 1), (1, 51)), "expected at most token 50, found 51 merged"),
        (
            lambda books: books.adopted((1, 1), (1, 9), carries=True),
            "at most token 0, which was answered, found 9 merged",
        ),
        (lambda books: books.answered(51), r"expected 0 \(adoption\) to 50 \(trained\)"),
        (lambda books: (books.answered(40), books.answered(39)), "no step back from 40"),
    ],
)
def test_impossible_events_change_nothing(action: object, message: str) -> None:
    books = ledger(50)
    with pytest.raises(ValueError, match=message):
        action(books)
    assert fates(books) == {"pending": 50}


@st.composite
def ledger_walks(draw: st.DrawFn) -> list[tuple[str, int]]:
    kinds = st.sampled_from(
        ["train", "train", "answer", "adopt", "adopt with clock", "adopt foreign clock", "adopt new epoch", "carry"]
    )
    return draw(st.lists(st.tuples(kinds, st.integers(0, 30)), max_size=40))


@pytest.fixture(scope="module")
def nothing_forgotten() -> Iterator[None]:
    with patch.object(token_accounts, "UNDONE_COUNT_MAX", 40):
        yield


@pytest.mark.usefixtures("nothing_forgotten")
@given(ledger_walks())
def test_the_ledger_agrees_with_marking_every_token(walk: list[tuple[str, int]]) -> None:
    books = FragmentLedger(incarnation=7, base=(1, 0), odometer=Odometer())
    marks: list[str] = []
    begin, last_answer, clock, version, epoch = 0, None, 0, 0, 1
    former: list[range] = []
    for kind, amount in walk:
        if kind == "train":
            train(books, amount)
            marks += ["pending"] * amount
        elif kind == "answer":
            last_answer = max(begin, last_answer or 0, len(marks) - amount)
            books.answered(last_answer)
        else:
            version += 1
            kept = len(marks)
            if kind == "adopt with clock":
                clock = max(clock, len(marks) - amount)
            if kind == "carry":
                kept = begin if last_answer is None else last_answer
                clock = min(max(clock, kept - amount), kept)
            if kind == "adopt new epoch":
                clock, epoch = max(0, clock - amount), epoch + 1
                marks = ["lost" if mark == "merged" and at >= clock else mark for at, mark in enumerate(marks)]
            has_clock = kind in ("adopt with clock", "adopt new epoch", "carry")
            entry = (7, clock) if has_clock else None if kind == "adopt" else (6, 10**6)
            books.adopted((epoch, version), entry, carries=kind == "carry")
            known = clock if has_clock else 0
            for tokens in former:
                if known - 1 in tokens:
                    marks[tokens.start : known] = ["merged"] * (known - tokens.start)
            for token in range(begin, kept):
                if token < known:
                    marks[token] = "merged"
                elif last_answer is not None and token >= last_answer:
                    marks[token] = "overlapped"
                else:
                    marks[token] = "refused"
            merged_up_to = max(begin, known)
            former = [tokens for tokens in former if tokens.start >= known]
            if last_answer is not None:
                former = [*former, range(merged_up_to, max(merged_up_to, last_answer))][-4:]
            begin, last_answer = kept, None
        counts = Counter(marks)
        assert books.account() == [counts[fate] for fate in FATES]
