"""Scalars of learners, weighted by tokens."""

from __future__ import annotations

import math

from isthmus.programs.engine.recorder.lines import TokenMeans, mean_of


def test_a_mean_is_over_the_tokens_and_begins_anew_when_it_is_taken() -> None:
    means = TokenMeans()
    means.add([["accuracy", 0.5], ["norm", 2.0]], 300)
    means.add([["accuracy", 0.9]], 100)
    assert means.pop() == {"accuracy": 0.6, "norm": 2.0}
    assert means.pop() == {}


def test_what_is_not_finite_and_what_no_token_stands_for_does_not_count() -> None:
    means = TokenMeans()
    means.add([["accuracy", math.nan], ["norm", 1.0]], 10)
    means.add([["accuracy", 0.5]], 0)
    assert means.pop() == {"norm": 1.0}


def test_learners_count_by_what_they_have_trained() -> None:
    lives = [{"tokens": 30, "metrics": {"accuracy": 1.0}}, {"tokens": 10, "metrics": {"accuracy": 0.0}}, {"tokens": 5}]
    assert mean_of(lives) == {"accuracy": 0.75}
