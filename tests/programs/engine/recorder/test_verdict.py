"""A run that is over is done only if what it says of itself holds of the model that it leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isthmus.programs.engine.recorder import node

SIZES = (300, 100)


def accounts(*parts: tuple[int, int]) -> list[dict[str, int]]:
    """(merged, refused) tokens of each fragment."""
    return [{"trained": 1000, "merged": merged, "refused": refused} for merged, refused in parts]


def failure(**more: Any) -> str | None:
    known: dict[str, Any] = {"tokens": 1000, "fragments": accounts((900, 10), (900, 10)), "sizes": SIZES}
    known |= {"budget": 1000, "is_stopped": False, "loss": 2.5, **more}
    reports = {slot: {"sick_step": step} for slot, step in enumerate(known.pop("sick", ()))}
    figures = {"tokens": known.pop("tokens"), "learners": reports}
    return node.failure(figures, known.pop("fragments"), known.pop("sizes"), **known)


def test_a_run_that_trained_and_merged_is_done() -> None:
    assert failure() is None
    assert failure(tokens=900, budget=1000) is None
    assert failure(loss=None) is None


@pytest.mark.parametrize("tokens", [899, 1, 0])
def test_under_nine_tenths_of_the_budget_it_has_failed_unless_it_was_stopped(tokens: int) -> None:
    assert f"{tokens} of 1000 tokens" in str(failure(tokens=tokens))
    assert failure(tokens=tokens, is_stopped=True) is None


def test_more_refused_than_merged_is_a_failure_where_the_program_merges() -> None:
    assert "more was refused than merged" in str(failure(fragments=accounts((400, 600), (500, 100))))
    assert failure(fragments=accounts((600, 400), (100, 500))) is None, "by the sizes of the fragments"
    assert failure(fragments=[], sizes=()) is None
    assert failure(is_stopped=True, fragments=accounts((400, 600), (400, 600))) is not None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_failure(loss: float) -> None:
    assert "not finite" in str(failure(loss=loss))


def test_a_loss_of_all_learners_that_was_not_finite_is_told_before_what_followed_from_it() -> None:
    refused = accounts((100, 900), (100, 900))
    for told in (failure(sick=(70, 40), fragments=refused), failure(sick=(70, 40), loss=math.nan)):
        assert "loss of all learners was not finite, first at step 40" in str(told)
    assert "more was refused than merged" in str(failure(sick=(70, 0), fragments=refused))
    assert failure(sick=(70, 40)) is None, "they were healed, and the model is sound"
