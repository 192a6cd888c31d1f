"""What a run is known to have trained, against a dict of maxima that is summed anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.token_accounts import ROWS_MAX, Totals

lives = st.tuples(st.integers(0, 2), st.integers(1, 2))
entries = st.tuples(lives, st.integers(0, 50))


@given(st.lists(st.one_of(entries, st.lists(entries, max_size=4)), max_size=20))
def test_the_sum_is_that_of_the_maxima(news: list[object]) -> None:
    totals, naive = Totals(), {}
    for each in news:
        if isinstance(each, list):
            totals.raise_to([[*life, tokens] for life, tokens in each])
            for life, tokens in each:
                naive[life] = max(naive.get(life, 0), tokens)
        else:
            life, tokens = each
            totals.add(*life, tokens)
            naive[life] = naive.get(life, 0) + tokens
    assert totals.trained == sum(naive.values())
    assert totals.rows() == [[*life, tokens] for life, tokens in sorted(naive.items())]


@given(st.integers(1, 100), st.integers(0, 99), st.lists(st.booleans(), max_size=30))
def test_whoever_hears_some_reports_of_a_large_run_soon_knows_all(lives: int, own: int, lost: list[bool]) -> None:
    """And its own tokens from each of them."""
    told, heard = Totals(), Totals()
    told.raise_to([slot, 1, slot + 1] for slot in range(lives))
    for is_lost in lost:
        rows = told.next_rows(own % lives, 1)
        assert len(rows) <= ROWS_MAX + 1
        assert [own % lives, 1, own % lives + 1] in rows
        heard.raise_to([] if is_lost else rows)
    for _ in range(-(-lives // ROWS_MAX)):
        heard.raise_to(told.next_rows(own % lives, 1))
    assert heard.rows() == told.rows()


def test_a_report_of_a_small_run_tells_everything() -> None:
    totals = Totals()
    totals.raise_to([slot, 1, 8] for slot in range(ROWS_MAX))
    assert totals.next_rows(3, 1) == totals.rows()


def test_what_one_life_claims_of_another_is_passed_on_and_counts_once_it_is_heard_of() -> None:
    totals = Totals()
    totals.raise_to([[0, 1, 40], [1, 1, 40]])
    totals.claim(0, 1, 184)
    totals.claim(2, 1, 8)
    assert totals.trained == 80
    assert totals.rows() == totals.next_rows(0, 2) == [[0, 1, 184], [1, 1, 40], [2, 1, 8]]
    assert (totals.of(0, 1), totals.of_slot(0)) == (40, 184)
    totals.raise_to([[0, 1, 192], [2, 1, 4]])
    assert (totals.trained, totals.rows()) == (192 + 40 + 4, [[0, 1, 192], [1, 1, 40], [2, 1, 8]])
