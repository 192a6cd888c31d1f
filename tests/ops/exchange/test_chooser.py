"""What follows the links: what is chosen, when, and that it does not flap."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.adaptive import (
    CROWDED,
    INTERVAL,
    INTERVAL_GROWTH_MAX,
    KEEP,
    LADDER,
    OVERLAP,
    PATIENCE,
    RELAPSES_MAX,
    SHARE,
    Chooser,
    FollowedSettings,
    LinkGoodput,
    LinkRate,
    Move,
    Needs,
    WantedSettings,
    best,
    within_reach,
)
from isthmus.ops.exchange.formats import FORMATS, MEASURED
from isthmus.runtime.ids import Member, Replica
from tests.effort import examples

STEP = 100_000_000
SIZES = (25_000,) * 8
NEEDED = 4 * 200_000 / 2.4
"""Bytes a second of float32: 200,000 values in 24 steps of 0.1 s."""
ALL = WantedSettings.of(push="auto", update="auto", interval="auto", overlap="auto")
BUT_OVERLAP = WantedSettings.of(push="auto", update="auto", interval="auto", overlap=2)


def needs(round_trip: float = 0.5, overlap: int = 2) -> Needs:
    return Needs(sum(SIZES), max(SIZES), STEP, round_trip, overlap)


def links(*ways: float | tuple[float, float]) -> list[LinkGoodput]:
    """Links that carry so many times what float32 needs: both ways, or (up, down)."""
    pairs = [way if isinstance(way, tuple) else (way, way) for way in ways]
    return [LinkGoodput(slot, *(rate(way * NEEDED) for way in ways)) for slot, ways in enumerate(pairs)]


def rate(bytes_per_second: float) -> LinkRate:
    return LinkRate(round(bytes_per_second), round(bytes_per_second))


def followed(chooser: Chooser, turns: int, now: Sequence[LinkGoodput], told: Needs | None = None) -> list[Move]:
    return [move for _ in range(turns) for move in chooser.observe(now, told or needs(), len(SIZES))]


def said(moves: Sequence[Move]) -> list[tuple[Any, ...]]:
    return [(move.setting, move.slot, move.before, move.after, move.reason) for move in moves]


def test_what_was_asked_for_stays_where_the_links_carry_it() -> None:
    chooser = Chooser(BUT_OVERLAP)
    assert (chooser.choice.interval, chooser.choice.overlap) == (INTERVAL, OVERLAP)
    assert followed(chooser, 300, links(2.6, 50, 1000, 2.1)) == []
    assert followed(Chooser(ALL), 300, links(50, 1000, 100, 20)) == []
    assert chooser.choice.push == dict.fromkeys(range(4), "float32")


def test_nothing_is_decided_by_links_that_are_not_known() -> None:
    assert (
        followed(Chooser(ALL), 100, [LinkGoodput(0, LinkRate(), LinkRate()), LinkGoodput(1, LinkRate(), LinkRate())])
        == []
    )
    assert followed(Chooser(ALL), 100, links(0.01), Needs(sum(SIZES), max(SIZES), 0, 0.0, 2)) == []


def test_a_link_cut_to_a_tenth_and_back() -> None:
    """In one move, of what is given up, to what it carries; the other learners' pushes stay as they are."""
    chooser = Chooser(ALL)
    assert said(followed(chooser, 20, links(2.5, 2.5, 2.5, 2.5))) == [("overlap", None, "2", "4", "slow rounds")]
    cut = links(2.5, 2.5, 2.5, 0.25)
    moves = followed(chooser, CROWDED, cut)
    assert said(moves) == [
        ("push", 3, "float32", "int2", "carries less"),
        ("update", None, "float32", "int2", "carries less"),
    ]
    assert all(move.cause == (3, cut[3].up.mean, round(NEEDED)) for move in moves)
    # In so few bits they are on their way for no longer; interval and overlap stay.
    assert followed(chooser, 100, cut) == []
    moves = followed(chooser, 100, links(2.5, 2.5, 2.5, 2.5))
    assert said(moves) == [
        ("push", 3, "int2", "float32", "carries more"),
        ("update", None, "int2", "float32", "carries more"),
    ]
    assert chooser.choice.push == dict.fromkeys(range(4), "float32")


def test_bits_are_given_up_before_steps_and_steps_only_as_far_as_needed() -> None:
    for share, push, update, interval in (
        (1.1, "bf16", "bf16", 24),
        (0.3, "int4", "int4", 24),
        (0.17, "int2", "int2", 24),
        (0.1, "int1", "int1", 24),
        (0.01, "int1", "int1", 169),
        ((0.01, 5), "int1", "float32", 169),
    ):
        chooser = Chooser(BUT_OVERLAP)
        followed(chooser, 100, links(share, share))
        assert (chooser.choice.update, chooser.choice.interval) == (update, interval)
        assert chooser.choice.push == {0: push, 1: push}


def test_a_delay_of_half_of_the_links_is_given_interval_and_overlap_at_once() -> None:
    """There and back takes 18 steps: an eighth of the interval, and an overlap of twice that."""
    far, near = [LinkGoodput(slot, LinkRate(), LinkRate(), 1_800_000_000) for slot in (0, 1)], links(50, 50, 50)[1:]
    chooser = Chooser(ALL)
    assert said(followed(chooser, 40, [*far[:1], near[0]])) == [
        ("interval", None, "24", "152", "slow rounds"),
        ("overlap", None, "2", "38", "slow rounds"),
    ]
    jitter = [far[0]._replace(round_trip=round(1.8e9 * share)) for share in (0.85, 1.0, 0.8)]
    moves = [move for each in jitter for move in followed(chooser, 100, [each, near[0]])]
    assert {move.setting for move in moves} == {"overlap"}
    assert followed(Chooser(ALL), 100, [*far[:1], *near]) == []  # It is alone: the others do not follow it.
    assert followed(Chooser(WantedSettings.of(push="auto", update="auto", interval=24, overlap=2)), 100, far) == []
    moves = followed(chooser, 200, links(50, 50))
    assert (chooser.choice.interval, chooser.choice.overlap) == (INTERVAL, OVERLAP)
    assert {move.reason for move in moves} == {"carries more", "quick rounds"}


def test_answers_get_the_bits_back_for_which_updates_make_the_interval_long_enough() -> None:
    chooser = Chooser(WantedSettings.of(push="auto", update="float32", interval="auto", overlap=2))
    moves = said(followed(chooser, CROWDED, links(0.3)))
    assert moves == [("push", 0, "float32", "int4", "carries less")]
    moves = said(followed(chooser, 60, links(0.3)))
    assert moves == [("interval", None, "24", "160", "carries less"), ("push", 0, "int4", "float32", "carries more")]


def test_by_what_was_measured_bits_cost_less_than_steps() -> None:
    """For each measured pair `auto` comes to one, as it gives up bits, then steps, of no more bytes and loss."""
    coded = [push for push in LADDER if (push, INTERVAL) in MEASURED]
    assert coded == ["int4", "int2", "int1"]
    order = [(FORMATS[push].bits / INTERVAL, MEASURED[push, INTERVAL]) for push in coded]
    longer = sorted((interval, loss) for (push, interval), loss in MEASURED.items() if push == coded[-1])
    order += [
        (FORMATS[coded[-1]].bits / interval, float(np.interp(interval, *zip(*longer, strict=True))))
        for interval in range(INTERVAL, longer[-1][0] + 1)
    ]
    for (push, interval), loss in MEASURED.items():
        least = min(cost for size, cost in order if size <= FORMATS[push].bits / interval)
        assert least <= loss + 0.005, (push, interval)


def test_only_what_is_auto_moves() -> None:
    numbers = WantedSettings.of(push="int8", update="float32", interval="auto", overlap=3)
    chooser = Chooser(numbers)
    moves = followed(chooser, 50, links(0.5, 0.5))
    assert {move.setting for move in moves} == {"interval"}
    assert chooser.choice.interval == 96
    assert (chooser.choice.update, chooser.choice.push, chooser.choice.overlap) == (
        "float32",
        {0: "int8", 1: "int8"},
        3,
    )
    assert (
        followed(Chooser(WantedSettings.of(push="int4", update="int4", interval=24, overlap=2)), 50, links(0.01)) == []
    )


def test_where_the_interval_is_a_number_formats_are_chosen_for_what_it_has_grown_to() -> None:
    chooser = Chooser(WantedSettings.of(push="auto", update="auto", interval=24, overlap=2))
    chooser.set_numbers(96, 24)
    assert followed(chooser, 50, links(0.6)) == []
    chooser.set_numbers(24, 2)
    assert said(followed(chooser, 50, links(0.6)))[0][:4] == ("push", 0, "float32", "int4")


def test_slow_rounds_lengthen_overlap_and_interval_as_they_do_where_these_are_numbers() -> None:
    chooser = Chooser(ALL)
    slow = needs(round_trip=9.2, overlap=12)
    assert followed(chooser, PATIENCE - 1, links(100.0), slow) == []
    moves = followed(chooser, 1, links(100.0), slow)
    assert said(moves) == [("interval", None, "24", "44", "slow rounds"), ("overlap", None, "2", "11", "slow rounds")]
    moves = followed(chooser, 40, links(100.0), needs())
    assert said(moves) == [("interval", None, "44", "24", "carries more"), ("overlap", None, "11", "2", "quick rounds")]


def test_who_is_out_of_reach_sets_the_pace_for_nobody_else() -> None:
    """One learner whose link carries next to nothing answers in 1 bit, and everything else stays as it is; where most
    are like that, they set the pace."""
    chooser = Chooser(BUT_OVERLAP)
    moves = followed(chooser, 100, links(5, 5, 5, 0.01))
    assert said(moves) == [("push", 3, "float32", "int1", "carries less")]
    assert [link.slot for link in within_reach(ALL, links(5, 5, 0.01), needs())] == [0, 1]
    chooser = Chooser(BUT_OVERLAP)
    followed(chooser, 200, links(5, 0.02, 0.02))
    assert (chooser.choice.update, chooser.choice.interval) == ("int1", 85)


@pytest.mark.slow
def test_goodputs_that_differ_by_less_than_the_hysteresis_change_nothing() -> None:
    rng = random.Random(3)
    for seed in range(20):
        chooser = Chooser(BUT_OVERLAP)
        base = rng.choice([5.0, 2.01, 1.01, 0.26])
        followed(chooser, 60, links(base, base))
        now = chooser.choice
        # What was taken up at SHARE is kept up to KEEP; what is finer is not taken up at more than SHARE.
        moves = [
            move
            for _ in range(300)
            for move in followed(chooser, 1, links(*[base / rng.uniform(1, 0.99 * KEEP / SHARE) for _ in range(2)]))
        ]
        assert moves == [], (seed, base, now)


@pytest.mark.slow
def test_a_link_that_promises_more_than_it_holds_is_tried_more_and_more_seldom() -> None:
    """A token bucket: what is small passes at once. Every relapse doubles the wait."""
    chooser = Chooser(WantedSettings.of(push="auto", update="float32", interval=24, overlap=2))
    moves: list[int] = []
    for turn in range(20_000):
        small = chooser.push(0) != "float32"
        if followed(chooser, 1, links((100.0, 100.0) if small else (0.2, 100.0))):
            moves.append(turn)
    early, late = [turn for turn in moves if turn < 1000], [turn for turn in moves if turn >= 10_000]
    assert 4 <= len(early) <= 14
    assert len(late) <= 2 * (10_000 // (PATIENCE << RELAPSES_MAX)) + 2


def test_what_else_takes_time_is_no_reason_to_give_up_bits_nor_to_wait_with_them() -> None:
    """Of a busy machine: items take long, but the best of them shows that the link carries everything."""
    busy = [LinkGoodput(slot, LinkRate(round(0.3 * NEEDED), round(4 * NEEDED)), rate(9 * NEEDED)) for slot in range(3)]
    assert followed(Chooser(BUT_OVERLAP), 300, busy) == []
    chooser = Chooser(BUT_OVERLAP)
    followed(chooser, 10, links(0.3, 0.3, 0.3))
    assert chooser.push(0) == "int4"
    followed(chooser, 20, busy)
    assert chooser.push(0) == chooser.choice.update == "float32"


def test_a_new_life_begins_with_the_finest() -> None:
    chooser = Chooser(ALL)
    followed(chooser, 20, links(5, 0.2))
    assert chooser.push(1) == "int2"
    chooser.forget(1)
    assert chooser.push(1) == "float32"
    assert chooser.push(7) == "float32"


@pytest.mark.slow
def test_what_is_chosen_fits_whatever_the_links_are() -> None:
    rng = random.Random(1)
    for _ in range(examples(100)):
        ways = links(*[(10 ** rng.uniform(-3, 2), 10 ** rng.uniform(-3, 2)) for _ in range(rng.randint(1, 8))])
        told = needs(rng.uniform(0, 20), rng.randint(0, 30))
        chooser = Chooser(ALL)
        found = best(ALL, ways, told, chooser.choice)
        assert found.interval >= INTERVAL
        assert OVERLAP <= found.overlap <= max(OVERLAP, found.interval // 4)
        for link in within_reach(ALL, ways, told):
            if found.interval == INTERVAL * INTERVAL_GROWTH_MAX:
                break
            assert told.load(link.up.best, found.push[link.slot], found.interval) <= SHARE + 1e-9
            assert told.load(link.down.best, found.update, found.interval) <= SHARE + 1e-9
        for link in ways:  # And nothing finer would.
            at = LADDER.index(found.push[link.slot])
            assert at == 0 or told.load(link.up.best, LADDER[at - 1], INTERVAL) > SHARE
        assert {link.slot for link in ways} == found.push.keys()
        followed(chooser, 8 * PATIENCE, ways, told)
        assert not {move.setting for move in followed(chooser, 100, ways, told)} & {"push", "update"}


class Told:
    """A learner, as far as it is needed."""

    def __init__(self, slot: int, *rates: tuple[str, int, int, int]) -> None:
        self.slot, self.step_time, self.links = slot, STEP, [list(rate) for rate in rates]


def test_a_shard_takes_what_concerns_its_own_links_and_tells_of_changes() -> None:
    following = FollowedSettings(ALL, SIZES, Member(Replica("syncer", 1), 3))
    slow = round(0.2 * NEEDED)
    learners = [
        Told(0, ("syncer", 0, 5, 5), ("syncer", 1, 10**9, 10**9)),
        Told(2, ("recorder", 1, 5, 5), ("syncer", 1, slow, slow)),
    ]
    observe: Callable[[], list[Any]] = lambda: following.observe(  # noqa: E731
        learners,
        {("learner", 0): (10**9, 10**9), ("evaluator", 0): (3, 3)},
        {},
        round_trip=0.5,
        round_steps=0.4,
        is_late=False,
        round_number=17,
        now=99,
    )
    changes = [change for _ in range(CROWDED) for change in observe()]
    assert changes == [
        {
            "shard": 1,
            "epoch": 3,
            "number": 1,
            "place": 1,
            "round": 17,
            "setting": "push",
            "slot": 2,
            "before": "float32",
            "after": "int2",
            "reason": "carries less",
            "link": 2,
            "goodput": slow,
            "needed": round(NEEDED),
            "round_trip": 0.5,
            "at": 99,
        }
    ]
    asked = following.requests([[0, 1], [2, 1], [5, 1]])
    assert asked == {
        "push": [[0, "float32"], [2, "int2"], [5, "float32"]],
        "update": "float32",
        "interval": INTERVAL,
        "overlap": OVERLAP,
    }
    assert following.statistics() == {"push": {0: "float32", 2: "int2"}, "update": "float32", "changes": 1}
    assert (
        FollowedSettings(WantedSettings.of(push="int4", update="bf16", interval=8, overlap=1), (), None).statistics()
        == {}
    )


@pytest.mark.parametrize(("interval", "overlap"), [(1, 1), (2, 2), (24, 2)])
def test_what_overlap_begins_with_fits_the_interval(interval: int, overlap: int) -> None:
    wanted = WantedSettings.of(push="float32", update="float32", interval=interval, overlap="auto")
    assert wanted.overlap == overlap
