"""Who pulls against everybody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.kernels.bounds import MERGES_MIN, SAMPLE_SIZE, DissentCounter, agreements, least_of, opposed

SIZE = 4000
LIVES = [(slot, 1) for slot in range(4)]


def gradients(seed: int, *signs: float, agreement: float = 0.5, size: int = SIZE) -> list[Any]:
    """Gradients of learners that have `agreement` of their direction in common, but for their signs."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(size)
    return [
        (sign * (np.sqrt(agreement) * common + np.sqrt(1 - agreement) * rng.standard_normal(size))).astype(np.float32)
        for sign in signs
    ]


@pytest.mark.parametrize(
    ("signs", "found"),
    [
        ((1, 1, 1, 1), [False] * 4),
        ((1, 1, -1, 1), [False, False, True, False]),
        ((1, -5, 1), [False, True, False]),
        ((1, 1, -1, -1), [False] * 4),
    ],
    ids=["all agree", "one of four", "one of three", "two against two"],
)
def test_one_that_points_against_all_who_agree_is_found(signs: tuple[float, ...], found: list[bool]) -> None:
    for seed in range(20):
        assert opposed(gradients(seed, *signs)) == found
        assert opposed(gradients(seed, *signs, size=3 * SAMPLE_SIZE)) == found


def test_it_is_what_the_cosines_of_all_pairs_say() -> None:
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        signs = rng.choice([1.0, 1.0, 1.0, -1.0], int(rng.integers(3, 9)))
        told = gradients(seed, *signs, agreement=float(rng.uniform(0.0, 0.4)), size=500)
        unit = np.array([each / np.linalg.norm(each.astype(np.float64)) for each in told], np.float64)
        cosines, least = unit @ unit.T, least_of(500)
        expected = []
        for each in range(len(told)):
            others = [other for other in range(len(told)) if other != each]
            among = cosines[np.ix_(others, others)]
            mean = (among.sum() - len(others)) / (len(others) * (len(others) - 1))
            against = cosines[each, others].sum() / np.sqrt(among.sum())
            expected.append(bool(mean > least and against < -least))
        assert opposed(told) == expected
        found += expected
    assert 10 < sum(found) < len(found) - 10


def test_directions_that_have_nothing_in_common_say_nothing() -> None:
    for size in (4, 20, 400, SIZE):
        found = [each for seed in range(300) for each in opposed(gradients(seed, 1, 1, 1, agreement=0.0, size=size))]
        assert sum(found) <= 0.01 * len(found)


def test_a_gradient_of_zeros_says_nothing() -> None:
    assert opposed([*gradients(0, 1, -1), np.zeros(SIZE, np.float32)]) == [False] * 3


def test_it_is_told_after_several_merges_in_a_row() -> None:
    dissent = DissentCounter()
    for seed in range(MERGES_MIN - 1):
        assert dissent.observe(gradients(seed, 1, 1, -1, 1), LIVES) == []
    for more in range(3):
        assert dissent.observe(gradients(more, 1, 1, -1, 1), LIVES) == [[2, MERGES_MIN + more]]
    assert dissent.observe(gradients(0, 1, 1, 1, 1), LIVES) == []
    assert dissent.observe(gradients(0, 1, 1, -1, 1), LIVES) == [], "it begins anew"


def test_a_fragment_that_is_too_short_to_tell_ends_no_row() -> None:
    dissent = DissentCounter()
    for seed in range(MERGES_MIN - 1):
        assert dissent.observe(gradients(seed, 1, 1, -1, 1), LIVES) == []
        assert dissent.observe(gradients(seed, 1, 1, 1, 1, size=4), LIVES) == []
    assert dissent.observe(gradients(0, 1, 1, -1, 1), LIVES) == [[2, MERGES_MIN]]


def test_of_two_nobody_can_say_which_is_wrong() -> None:
    dissent = DissentCounter()
    assert all(dissent.observe(gradients(seed, 1, -1), LIVES[:2]) == [] for seed in range(3 * MERGES_MIN))


def test_the_next_life_is_not_counted_with_the_one_before() -> None:
    dissent = DissentCounter()
    for seed in range(MERGES_MIN):
        dissent.observe(gradients(seed, 1, 1, -1, 1), LIVES)
    assert dissent.observe(gradients(0, 1, 1, -1, 1), [(0, 1), (1, 1), (2, 2), (3, 1)]) == []


def test_agreement_is_the_cosine_with_the_mean_direction_of_the_others() -> None:
    some = gradients(3, 1, 1, 1, -1)
    directions = [each.astype(np.float64) / np.linalg.norm(each.astype(np.float64)) for each in some]
    for index, found in enumerate(agreements(some)):
        others = sum(each for at, each in enumerate(directions) if at != index)
        assert found == pytest.approx(float(directions[index] @ others / np.linalg.norm(others)), abs=1e-6)
    assert agreements(some)[3] < 0 < min(agreements(some)[:3])
    first, second = agreements(some[:2])
    assert first == pytest.approx(second)
    assert first == pytest.approx(float(directions[0] @ directions[1]), abs=1e-6)
    assert agreements(some[:1]) == agreements([]) == []
    assert agreements([*some[:2], np.zeros(SIZE, np.float32)]) == []
    assert agreements([some[0], -some[0], some[1]])[2] == 0.0  # The others cancel.
