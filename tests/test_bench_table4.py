"""The rates of Table 4: more are tried on the side on which the best one is, until it is inside."""

from __future__ import annotations

from itertools import islice

from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_table4 import GRID, NAMES, RATES, Wanted, best, is_inside, next_rate, wanted


def cells(losses: dict[float, float], who: str = "M=2") -> KeptCells:
    found = KeptCells(None)
    found.update({Wanted("41k", who, 0, rate).name(rate): {"loss": loss} for rate, loss in losses.items()})
    return found


def test_the_grid_comes_first_and_then_the_side_of_the_best_rate() -> None:
    assert next_rate(cells({}), "41k", "M=2") == GRID[0]
    low, middle, high = GRID
    assert next_rate(cells({low: 1.0}), "41k", "M=2") == middle
    rising = {low: 3.0, middle: 2.0, high: 1.0}
    assert (next_rate(cells(rising), "41k", "M=2"), is_inside(cells(rising), "41k", "M=2")) == (2 * high, False)
    inside = {**rising, 2 * high: 1.5}
    assert (next_rate(cells(inside), "41k", "M=2"), is_inside(cells(inside), "41k", "M=2")) == (None, True)
    assert best(cells(inside), "41k", "M=2") == high
    falling = {low: 1.0, middle: 2.0, high: 3.0}
    assert next_rate(cells(falling), "41k", "M=2") == low / 2


def test_the_search_ends_where_no_rate_is_left() -> None:
    all_rates = {rate: -rate for rate in RATES}
    assert next_rate(cells(all_rates), "41k", "M=2") is None
    assert not is_inside(cells(all_rates), "41k", "M=2")


def test_cells_follow_what_is_kept_meanwhile() -> None:
    kept = cells({}, NAMES[0])
    asked = wanted(kept, ["41k"])
    for rate, loss in zip((*GRID, 2 * GRID[-1]), (4.0, 3.0, 2.0, 2.5), strict=True):
        each = next(asked)
        assert (each.who, each.seed, each.rate) == (NAMES[0], 0, rate)
        kept[each.name(rate)] = {"loss": loss}
    assert next(asked).who == NAMES[1]
    for who in NAMES[1:]:
        kept.update(cells({GRID[0]: 2.0, GRID[1]: 1.0, GRID[2]: 2.0}, who))
    rest = list(wanted(kept, ["41k"]))
    assert [sum(each.who == who for each in rest) for who in NAMES] == [4, 2, 4, 4]  # Five seeds, three of M = 1.
    assert list(islice((each.rate for each in rest if each.rate is not None), 1)) == []
