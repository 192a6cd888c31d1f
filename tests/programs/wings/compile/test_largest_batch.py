"""The largest batch that fits is found with few questions, and is one that was asked about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.wings.compile.worker import ASKED_MAX, FINENESS, largest

LIMIT = 10**9


@given(
    fixed=st.integers(0, 2 * LIMIT),
    row=st.integers(1, LIMIT // 10),
    jump=st.integers(0, LIMIT // 10),
    begin=st.integers(1, 4096),
    unit=st.sampled_from([1, 2, 4, 8]),
)
def test_it_fits_and_hardly_a_larger_one_does(fixed: int, row: int, jump: int, begin: int, unit: int) -> None:
    """Padding makes memory grow in jumps."""
    asked: list[int] = []

    def needed(rows: int) -> int:
        asked.append(rows)
        return fixed + row * rows + jump * (rows // 64)

    found = largest(needed, LIMIT, begin * unit, unit)
    assert len(set(asked)) == len(asked) <= ASKED_MAX
    assert all(rows > 0 and rows % unit == 0 for rows in asked)
    if found is None:
        assert len(asked) == ASKED_MAX or needed(unit) > LIMIT
        return
    assert found in asked
    assert needed(found) <= LIMIT
    if len(asked) < ASKED_MAX:
        assert needed(found + unit * (max(1, found // unit // FINENESS) + 1)) > LIMIT


def test_a_straight_line_takes_few_questions() -> None:
    asked: list[int] = []

    def needed(rows: int) -> int:
        asked.append(rows)
        return 400_000_000 + 1_000_000 * rows

    assert largest(needed, LIMIT, 8, 4) in range(530, 601)
    assert len(asked) <= 6


def test_what_does_not_grow_is_not_looked_for_for_ever() -> None:
    assert largest(lambda rows: 5, LIMIT, 8, 1) == 8 * 2 ** (ASKED_MAX - 1)
