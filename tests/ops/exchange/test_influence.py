"""The largest share of a merge that one participant may have."""

from __future__ import annotations

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.ops.exchange.influence import LEAST, capped

WEIGHTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda weights: sum(weights) > 1e-3)


@example([8.0, sys.float_info.min], [0.5, 1.0])
@given(WEIGHTS, st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5))
def test_nobody_has_more_than_its_most_and_nothing_is_left_that_another_could_have(
    weights: list[float], caps: list[float]
) -> None:
    names = [f"m{at % len(caps)}" for at in range(len(weights))]
    most = {f"m{at}": cap for at, cap in enumerate(caps)}
    shares, whole, reduced = capped(weights, names, most)
    of_member = {name: sum(s for s, each in zip(shares, names, strict=True) if each == name) for name in set(names)}
    assert all(share <= most[name] + 1e-9 for name, share in of_member.items())
    assert sum(shares) == pytest.approx(whole)
    voting = {
        name
        for name in names
        if sum(weight / sum(weights) for each, weight in zip(names, weights, strict=True) if each == name) >= LEAST
    }
    if whole < 1:
        assert all(of_member[name] == pytest.approx(most[name]) for name in voting)
    assert all(before > most[name] == now for name, before, now in reduced)
    if not reduced:
        assert shares == pytest.approx([weight / sum(weights) for weight in weights])


def test_what_is_taken_from_one_goes_to_the_others_by_their_weights() -> None:
    shares, whole, reduced = capped([16.0, 1.0, 1.0, 2.0], ["a", "b", "c", "d"], dict.fromkeys("abcd", 0.5))
    assert whole == 1
    assert shares == pytest.approx([0.5, 0.125, 0.125, 0.25])
    assert reduced == [("a", 0.8, 0.5)]


def test_who_is_alone_has_no_more_than_its_share() -> None:
    assert capped([7.0], ["a"], {"a": 0.25}).shares == [0.25]
    assert capped([7.0, 7.0], ["a", "a"], {"a": 0.25}).shares == [0.125, 0.125]
