"""The largest share of a merge that one participant may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.influence import capped

WEIGHTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda weights: sum(weights) > 1e-3)


@given(WEIGHTS, st.integers(1, 5), st.floats(0.05, 1.0))
def test_nobody_has_more_than_the_most_and_nothing_is_left_that_another_could_have(
    weights: list[float], participants: int, most: float
) -> None:
    names = [f"m{at % participants}" for at in range(len(weights))]
    shares, whole, reduced = capped(weights, names, most)
    of_member = {name: sum(s for s, each in zip(shares, names, strict=True) if each == name) for name in set(names)}
    assert all(share <= most + 1e-9 for share in of_member.values())
    assert sum(shares) == pytest.approx(whole)
    voting = {name for name, weight in zip(names, weights, strict=True) if weight > 0}
    if whole < 1:
        assert all(of_member[name] == pytest.approx(most) for name in voting)
    assert all(before > most == now for _, before, now in reduced)
    if not reduced:
        assert shares == pytest.approx([weight / sum(weights) for weight in weights])


def test_what_is_taken_from_one_goes_to_the_others_by_their_weights() -> None:
    shares, whole, reduced = capped([16.0, 1.0, 1.0, 2.0], ["a", "b", "c", "d"], 0.5)
    assert whole == 1
    assert shares == pytest.approx([0.5, 0.125, 0.125, 0.25])
    assert reduced == [("a", 0.8, 0.5)]


def test_who_is_alone_has_no_more_than_its_share() -> None:
    assert capped([7.0], ["a"], 0.25).shares == [0.25]
    assert capped([7.0, 7.0], ["a", "a"], 0.25).shares == [0.125, 0.125]
