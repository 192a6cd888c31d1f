"""What a learner that averages gradients reports of its steps."""

from __future__ import annotations

import math

from isthmus.programs.wings.data_parallel.gradient_step import Reporter
from tests.ops.bodies import Context


def test_losses_that_are_not_finite_are_counted_over_the_whole_life() -> None:
    reporter = Reporter(Context(), "cpu")
    found = []
    for loss in (1.0, math.nan, math.inf, 2.0):
        reporter.begins()
        reporter.trained(8, {"loss": loss})
        reporter._phase = None  # A report is due after each step.
        found += [report["not_finite"] for _, report in reporter.report("stepping")]
    assert found == [0, 1, 2, 2]
