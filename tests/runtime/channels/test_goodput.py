"""What a link carries, as its transfers tell."""

from __future__ import annotations

import random

import pytest

from isthmus.runtime.channels.goodput import HEARD_WITHIN, LARGE_COUNT, Goodput, PeerLinks
from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica

MS = 1_000_000


class Way:
    """A link of so many bytes a second, and so many nanoseconds there and back, as its sender sees it."""

    def __init__(self, rate: float, way: int) -> None:
        self.rate, self.way = rate, way
        self.goodput, self.now, self.is_free_at = Goodput(), 0, 0

    def send(self, size_bytes: int, *, late: int = 0) -> None:
        self.is_free_at = max(self.is_free_at, self.now) + round(size_bytes / self.rate * 1e9) + late
        self.goodput.carried(size_bytes, Instant(self.now), Instant(self.is_free_at + self.way))


@pytest.mark.parametrize("way", [0, 5 * MS, 80 * MS])
@pytest.mark.parametrize("rate", [20e3, 1e6, 300e6])
@pytest.mark.parametrize("size_bytes", [5 << 10, 64 << 10, 4 << 20])
def test_the_way_and_what_waits_are_not_taken_for_the_rate(rate: float, way: int, size_bytes: int) -> None:
    """One transfer after another, or three at once, between small items."""
    link, rng = Way(rate, way), random.Random(1)
    for _ in range(40):
        link.now = max(link.now, link.is_free_at) + 500 * MS
        link.send(300)
        link.now += 200 * MS
        for _ in range(rng.choice((1, 1, 3))):
            link.send(size_bytes)
    least = min(rate, size_bytes / 11e-6)  # Small items need their time, too.
    assert 0.8 * least < link.goodput.rate.mean < 1.3 * rate


@pytest.mark.parametrize("way", [MS, 20 * MS, 200 * MS])
@pytest.mark.parametrize("rate", [50e3, 2e6, 100e6])
@pytest.mark.parametrize("size_bytes", [5 << 10, 64 << 10, 4 << 20])
def test_a_pace_keeps_a_link_busy_with_little_under_way(rate: float, way: int, size_bytes: int) -> None:
    """A sender that always has more to send, and what its pace allows under way."""
    link, under_way = Way(rate, way), 0
    for _ in range(5):
        link.now = link.is_free_at + way + 100 * MS
        link.send(200)
        link.now = link.is_free_at + way + 100 * MS
        link.send(size_bytes)
    link.now = link.is_free_at + way
    heard: list[tuple[int, int, int]] = []
    for number in range(400):
        while heard and (heard[0][2] <= link.now or under_way - heard[-1][0] > link.goodput.pace):
            sent, begun, at = heard.pop(0)
            link.now = max(link.now, at)
            under_way -= sent
            link.goodput.carried(sent, Instant(begun), Instant(at))
        assert link.now <= link.is_free_at or not number
        link.is_free_at = max(link.is_free_at, link.now) + round(size_bytes / rate * 1e9)
        heard.append((size_bytes, link.now, link.is_free_at + way))
        under_way += size_bytes
        assert under_way <= 1.3 * rate * (2 * way + 50 * MS) / 1e9 + 2 * size_bytes


def test_one_transfer_that_waits_for_a_process_says_little() -> None:
    link = Way(10e6, MS)
    for number in range(3 * LARGE_COUNT):
        link.now += 100 * MS
        link.send(200)
        link.now += 20 * MS
        link.send(1_000_000, late=150 * MS if number % LARGE_COUNT == 3 else 0)
        assert link.goodput.rate.mean > 3e6 or number < 3
        assert link.goodput.rate.mean <= link.goodput.rate.best < 1.01e7


def test_a_link_cut_to_a_tenth_is_known_by_its_second_transfer_and_so_is_its_return() -> None:
    link = Way(1e6, MS)
    found = []
    for number in range(60):
        link.now = max(link.now, link.is_free_at) + 100 * MS
        link.rate = 1e5 if 20 <= number < 40 else 1e6
        link.send(200)
        link.now = link.is_free_at + 2 * MS
        link.send(100_000)
        found.append(link.goodput.rate.mean)
    assert found[19] > 0.9e6
    assert found[20] < 0.5e6
    assert found[21] < 0.13e6
    assert found[39] < 0.13e6
    assert found[39 + LARGE_COUNT] > 0.9e6


def test_a_transfer_that_does_not_end_says_what_the_link_cannot_carry() -> None:
    link = Way(1e6, MS)
    for _ in range(5):
        link.now = link.is_free_at + 100 * MS
        link.send(100_000)
    begun = Instant(link.is_free_at + 200 * MS)
    link.goodput.waited(100_000, begun, Instant(begun + HEARD_WITHIN))
    assert link.goodput.rate.mean > 0.9e6
    link.goodput.waited(100_000, begun, Instant(begun + HEARD_WITHIN + 1000 * MS))
    assert 0.09e6 < link.goodput.rate.mean < 0.11e6
    link.goodput.waited(100_000, begun, Instant(begun + HEARD_WITHIN + 500 * MS))
    assert link.goodput.rate.mean < 0.11e6


def test_items_of_one_message_arrive_together_and_count_together() -> None:
    goodput = Goodput()
    for number in range(10):
        begun, arrived = Instant(number * 1000 * MS), Instant(number * 1000 * MS + 100 * MS)
        for _ in range(4):
            goodput.carried(25_000, begun, arrived)
    assert goodput.rate == (1_000_000, 1_000_000)


def test_a_clock_that_leaps_makes_no_rate() -> None:
    goodput = Goodput()
    for begun, arrived in ((100, 50), (60, 60), (10, 5)):
        goodput.carried(1 << 20, Instant(begun * MS), Instant(arrived * MS))
    assert goodput.rate == (0, 0)


def test_a_new_life_has_another_link_and_an_old_one_says_nothing_any_more() -> None:
    links, first, second = PeerLinks(), Member(Replica("learner", 2), 1), Member(Replica("learner", 2), 2)

    def carry(member: Member, at: int) -> None:
        links.carried(member, 100_000, Instant(at * 1000 * MS), Instant(at * 1000 * MS + 100 * MS))

    for number in range(4):
        carry(first, number)
    assert links.goodput == {("learner", 2): (1_000_000, 1_000_000)}
    carry(second, 5)
    assert links.goodput == {}
    carry(first, 6)
    carry(first, 7)
    assert links.goodput == {}
    links.look(lambda: [(first, 100_000, Instant(0)), (second, 50_000, Instant(6000 * MS))], Instant(8000 * MS))
    assert 0 < links.goodput["learner", 2].best < 50_000
