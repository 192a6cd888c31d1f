"""The parts that the report is made of: progress, gaps, curves, axes, numbers, markup."""

from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.command.chart_axes import Scale
from isthmus.programs.command.chart_curves import training_curves
from isthmus.programs.command.report import load
from isthmus.programs.command.report_markup import Markup, element
from isthmus.programs.command.report_progress import Progress, by_learner, unbroken, without_loss
from isthmus.programs.command.report_record import Report
from isthmus.programs.command.report_style import share_level
from isthmus.programs.numbers import SPACE, decimal, percent, scaled, seconds, tick, whole
from tests.programs.run_folder import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "run", away=2)


def test_curves_are_smoothed_without_a_shift(folder: Path) -> None:
    record = load(folder)
    for axis in ("tokens", "time"):
        curves = training_curves(record, axis)
        assert [len(parts) for parts in curves.values()] == [1, 1, 2, 1]
        for slot, parts in curves.items():
            losses = [report.loss for report in record.reports if report.learner == slot]
            points = [point for part in parts for point in part]
            assert points == sorted(points)
            drawn = [y for _, y in points[len(points) // 2 :]]
            reported = losses[len(losses) // 2 :]
            assert mean(drawn) == pytest.approx(mean(reported), rel=0.03)
            assert roughness(drawn) < 0.6 * roughness(reported)


def roughness(values: list[float]) -> float:
    return mean(abs(later - earlier) for earlier, later in pairwise(values))


def test_a_report_without_loss_counts_only_while_stepping() -> None:
    phases = ["ready", "stepping", "stepping", "stepping", "final"]
    steps, losses = [0, 1, 9, 18, 19], [None, None, 2.0, None, None]
    rows = [
        Report(time=i, phase=phase, step=step, loss=loss)
        for i, (phase, step, loss) in enumerate(zip(phases, steps, losses, strict=True))
    ]
    assert without_loss(rows) == 1


def test_content_is_escaped_once_and_markup_never() -> None:
    inner = element("b", "<&>")
    assert inner == "<b>&lt;&amp;&gt;</b>"
    assert element("p", inner, "&amp;", class_='a"b') == '<p class="a&quot;b"><b>&lt;&amp;&gt;</b>&amp;amp;</p>'
    assert element("path", d="M0 0", stroke_width=1.5, x=None) == '<path d="M0 0" stroke-width="1.5"></path>'
    assert element("p", "a\x00\ud800b") == "<p>a\ufffd\ufffdb</p>"
    assert element("br") == "<br>"
    assert isinstance(inner, Markup)


def test_a_learner_that_was_away_has_two_parts(folder: Path) -> None:
    record = load(folder)
    parts = {slot: len(unbroken(items, record.wall_seconds)) for slot, items in by_learner(record.reports).items()}
    assert parts == {0: 1, 1: 1, 2: 2, 3: 1}


def test_progress_is_the_sum_over_learners(folder: Path) -> None:
    record = load(folder)
    progress = Progress(record.reports)
    newest = {report.learner: report.tokens for report in record.reports}
    assert progress.at(-1.0) == 0
    assert progress.at(record.wall_seconds + 1) == sum(newest.values())
    at = record.reports[200].time
    assert progress.at(at) == sum({r.learner: r.tokens for r in record.reports if r.time <= at}.values())


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12), st.booleans())
def test_ticks_are_few_and_inside(low: float, extent: float, count: int, is_log: bool) -> None:
    scale = Scale.over([low, low + extent], 0, 100, is_log=is_log)
    ticks = scale.ticks(count)
    assert len(ticks) <= 7 * max(count, 2)
    assert all(-0.01 <= scale(tick) <= 100.01 for tick in ticks)
    assert ticks == sorted(ticks)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (whole(1234567), "1 234 567"),
        (whole(None), "–"),
        (scaled(999.9e3), "1.00 M"),
        (scaled(12), "12"),
        (scaled(45600, "B"), "45.6 kB"),
        (seconds(0.04), "40.0 ms"),
        (seconds(59.96), "60.0 s"),
        (seconds(134), "2 min 14 s"),
        (seconds(3720), "1 h 02 min"),
        (seconds(-0.5), "−500 ms"),
        (percent(0.9912), "99.1 %"),
        (percent(0.99999), "99.99 %"),
        (percent(1.0), "100 %"),
        (decimal(1.35149), "1.351"),
        (decimal(float("nan")), "–"),
        (decimal(1.5e-7), "1.50·10⁻⁷"),
        (tick(1e-5), "10⁻⁵"),
        (tick(2e5), "2·10⁵"),
        (tick(0.05), "0.05"),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str) -> None:
    assert written.replace(SPACE, " ") == expected


def test_levels_rise_with_the_contributors() -> None:
    for of in (1, 2, 3, 4, 5, 8, 64):
        levels = [share_level(count, of) for count in range(of + 1)]
        assert levels == sorted(levels)
        assert (levels[0], levels[-1]) == (0, 4)
        assert all(level < 4 for level in levels[:-1])
