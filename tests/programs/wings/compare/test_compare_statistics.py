"""Paired differences against the closed form, and what an interval says of a margin."""

from __future__ import annotations

import math
import random

import pytest

from isthmus.programs.wings.compare.compare_outcome import FigureDifference, difference, quantile, spread, verdict


def test_a_difference_is_the_t_interval_of_the_pairs() -> None:
    values, others = {0: 1.5, 1: 1.7, 2: 1.6, 7: 9.0}, {2: 1.1, 0: 1.2, 1: 1.0}
    found = difference(values, others)
    assert found is not None
    assert found.seeds == (0, 1, 2)  # Seed 7 has no partner.
    each = [0.3, 0.7, 0.5]
    assert found.mean == pytest.approx(0.5)
    assert found.deviation == pytest.approx(math.sqrt(sum((one - 0.5) ** 2 for one in each) / 2))
    # Student's t with two degrees of freedom has a closed form: t = (2 p - 1) sqrt(2 / (4 p (1 - p))).
    p = 0.975
    assert quantile(2) == pytest.approx((2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))))
    assert found.high is not None
    assert found.low is not None
    assert found.high - found.mean == pytest.approx(quantile(2) * 0.2 / math.sqrt(3))
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_pairing_takes_out_what_seeds_do_to_both() -> None:
    seeds = {seed: 10.0 * seed for seed in range(5)}
    found = difference({seed: value + 0.25 for seed, value in seeds.items()}, seeds)
    assert found is not None
    assert (found.mean, found.deviation) == (0.25, 0.0)


def test_one_pair_has_no_interval_and_none_no_difference() -> None:
    assert difference({3: 2.0}, {3: 1.5, 4: 0.0}) == FigureDifference((3,), 0.5)
    assert difference({3: 2.0}, {4: 1.5}) is None
    assert spread([]) == (None, None)
    assert spread([2.0]) == (2.0, None)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    rng, held = random.Random(0), 0
    for _ in range(1000):
        found = difference({seed: rng.gauss(0.1, 0.05) for seed in range(3)}, dict.fromkeys(range(3), 0.0))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.1 <= found.high
    assert 930 <= held <= 970


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.3, -0.11, "better"),
        (0.11, 0.3, "worse"),
        (-0.1, 0.1, "as good"),
        (-0.3, 0.05, "no worse"),
        (-0.05, 0.3, "no better"),
        (-0.3, 0.3, "undecided"),
    ],
)
def test_a_verdict_is_about_the_whole_interval(low: float, high: float, said: str) -> None:
    found = FigureDifference((0, 1), (low + high) / 2, 0.1, low, high)
    assert verdict(found, 0.1) == said
    assert verdict(found, None) is None
    assert verdict(FigureDifference((0,), low), 0.1) is None
