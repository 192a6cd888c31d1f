"""What a run is known to have trained, against a dict of maxima that is summed anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.token_totals import Totals

lives = st.tuples(st.integers(0, 2), st.integers(1, 2))
entries = st.tuples(lives, st.integers(0, 50))


@given(st.lists(st.one_of(entries, st.lists(entries, max_size=4)), max_size=20))
def test_the_sum_is_that_of_the_maxima(news: list[object]) -> None:
    totals, naive = Totals(), {}
    for each in news:
        if isinstance(each, list):
            totals.hear([[*life, tokens] for life, tokens in each])
            for life, tokens in each:
                naive[life] = max(naive.get(life, 0), tokens)
        else:
            life, tokens = each
            totals.add(*life, tokens)
            naive[life] = naive.get(life, 0) + tokens
    assert totals.trained == sum(naive.values())
    assert totals.told() == [[*life, tokens] for life, tokens in sorted(naive.items())]
