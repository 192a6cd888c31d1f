"""How much of what is generated is tried."""

from __future__ import annotations

import pytest

from tests import effort


@pytest.mark.parametrize(
    ("share", "bound", "everything", "tried"),
    [(0.2, 10_000, 1000, 200), (1.0, 10_000, 1000, 1000), (1.0, 150, 1000, 150), (0.05, 10_000, 30, effort.LEAST)],
)
def test_a_part_is_tried_within_bounds(
    monkeypatch: pytest.MonkeyPatch, share: float, bound: int, everything: int, tried: int
) -> None:
    monkeypatch.setattr(effort, "SHARE", share)
    monkeypatch.setattr(effort, "EXAMPLES_MAX", bound)
    assert effort.examples(everything) == tried


def test_seeds_begin_with_the_same_one_whatever_the_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "SHARE", 0.2)
    some = effort.seeds(150)
    monkeypatch.setattr(effort, "SHARE", 1.0)
    assert (some, effort.seeds(150)) == (range(30), range(150))
