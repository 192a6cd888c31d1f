"""Scalars of learners, weighted by tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from isthmus.programs.engine.recorder.lines import MetricLines, RecordLines, TokenMeans, mean_of
from isthmus.runtime.system.disk import DISK


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


def test_what_a_host_has_waited_for_on_its_device_is_in_the_line_in_seconds(tmp_path: Path) -> None:
    report: Any = dict.fromkeys(("step", "tokens", "staleness", "bytes_sent", "bytes_received", "sick_step"), 1)
    report |= {"slot": 0, "incarnation": 1, "phase": "stepping", "loss": 1.0, "metrics": [], "sick": False}
    lines = RecordLines(tmp_path, DISK)
    written = MetricLines(lines)
    written.add_report(report, None, 0)
    written.add_report({**report, "step": 2, "host_waits": [["step", 2, 1_500_000]]}, report, 10**9)
    assert [line.host_waits for _, line in lines.early] == [[], [("step", 2, 0.0015)]]  # type: ignore[union-attr]
