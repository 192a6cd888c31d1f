"""What an outer step does that knows age and direction: shares of answers, and a momentum that warms up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.kernels.bounds import agreements
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.study.simulation.toy_task import LAYOUT

FRAGMENTS = partition(LAYOUT, 1)


def test_agreement_is_the_cosine_to_the_mean_direction_of_the_others() -> None:
    first, second, third = (np.array(values, np.float32) for values in ([2, 0], [0, 5], [-1, 0]))
    assert agreements([first, second]) == pytest.approx([0.0, 0.0])
    assert agreements([first, first, third]) == pytest.approx([1.0, 1.0, -1.0])  # Directions that cancel say nothing.
    assert agreements([first, np.zeros(2, np.float32)]) == [1.0, 1.0]


def test_an_answer_counts_for_less_by_the_versions_that_it_is_old() -> None:
    merge: Any = Merge(FRAGMENTS, method="average", lr=1.0, momentum=0.0, damped="age")
    account = SimpleNamespace(newest=(1, 7))
    votes = [{"base": [1, 7]}, {"base": [1, 6]}, {"base": [1, 4]}]
    assert merge._damped(votes, account) == [1.0, 0.5, 0.25]


def test_a_momentum_rises_over_the_first_merges() -> None:
    outer = OuterStep(FRAGMENTS, lr=0.4, momentum=0.7, warm_merges=10)
    assert [outer._momentum_of(count) for count in (0, 5, 10, 20)] == pytest.approx([0.0, 0.35, 0.7, 0.7])
