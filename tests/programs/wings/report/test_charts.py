"""The parts that the report is made of: progress, gaps, curves, axes, numbers, markup."""

import json
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from shutil import which
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from isthmus.programs.engine.results.crowd import EXTREMES, QUANTILES
from isthmus.programs.engine.results.lines import EvaluationLine, ReportLine
from isthmus.programs.engine.results.record import TokenProgress, by_learner, unbroken, without_loss
from isthmus.programs.engine.results.words import decimal, percent, progress, scaled, seconds, whole
from isthmus.programs.wings.report import charts_lines
from isthmus.programs.wings.report.charts_drawing import Scale, element, share_level
from isthmus.programs.wings.report.charts_graph import DrawnEdge, DrawnGraph, DrawnNode, DrawnRole, draw_graph
from isthmus.programs.wings.report.charts_lines import charts
from isthmus.programs.wings.report.charts_timeline import TimeWindow
from isthmus.programs.wings.report.page import load
from tests.programs.engine.results.made_up_run import build

PLOTS = (Path(charts_lines.__file__).parent / "plots.js").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "run", away=2)


def test_curves_are_smoothed_without_a_shift(folder: Path) -> None:
    record = load(folder)
    losses, _ = charts(record, None)
    assert [curve.name for curve in losses.curves[:-1]] == [f"learner {slot}" for slot in range(4)]
    assert [curve.values.count(None) for curve in losses.curves[:-1]] == [0, 0, 1, 0], "learner 2 was away"
    for slot, curve in enumerate(losses.curves[:-1]):
        for places in (curve.tokens, curve.time):
            assert places == sorted(places)
            assert len(places) == len(curve.values)
        told = [report.loss for report in record.reports if report.learner == slot]
        drawn = [value for value in curve.values[len(curve.values) // 2 :] if value is not None]
        assert mean(drawn) == pytest.approx(mean(told[len(told) // 2 :]), rel=0.03)
        assert roughness(drawn) < 0.6 * roughness(told[len(told) // 2 :])


def test_the_curve_of_the_global_model_has_every_evaluation(folder: Path) -> None:
    record = load(folder)
    curve = charts(record, None)[0].curves[-1]
    assert curve.is_main
    assert curve.tokens == [item.tokens for item in record.evaluations]
    assert curve.values == [float(f"{item.eval_loss:.5g}") for item in record.evaluations]


@pytest.mark.slow
def test_the_pace_is_that_of_the_reports(folder: Path) -> None:
    record = load(folder)
    pace = charts(record, TimeWindow(4.0, 5.0))[-1]
    for slot, curve in enumerate(pace.curves):
        reports = by_learner(record.reports)[slot]
        overall = (reports[-1].step - reports[0].step) / (reports[-1].time - reports[0].time)
        drawn = [value for value in curve.values if value is not None]
        assert mean(drawn) == pytest.approx(overall, rel=0.05 if slot != 2 else 0.5)
    assert pace.bands[-1].time == (4.0, 5.0)
    assert pace.bands[-1].tokens[0] < pace.bands[-1].tokens[1]


def test_an_axis_is_logarithmic_only_where_that_shows_more(folder: Path) -> None:
    record = load(folder)
    assert charts(record, None)[0].is_logarithmic
    flat = [EvaluationLine(time=at, tokens=at, eval_loss=2.0 + at / 10) for at in range(3)]
    below = [EvaluationLine(time=at, tokens=at, eval_loss=at - 1.0) for at in range(3)]
    for evaluations in (flat, below):
        (chart,) = charts(replace(record, reports=[], evaluations=evaluations), None)
        assert not chart.is_logarithmic
    assert charts(replace(record, reports=[], evaluations=[]), None) == []


def test_losses_span_what_was_measured_and_paces_begin_at_zero(folder: Path) -> None:
    losses, pace = charts(load(folder), None)
    assert (losses.begins_at_zero, pace.begins_at_zero) == (False, True)


@pytest.mark.process
@pytest.mark.skipif(which("node") is None, reason="the page's scripts need a browser, or node")
def test_the_axis_of_a_loss_does_not_begin_at_zero_where_the_loss_is_far_from_it() -> None:
    asked = [[3.1, 4.3, False, False], [3.1, 4.3, False, True], [4, 4.3, False, True]]
    script = f"{PLOTS}; console.log(JSON.stringify({json.dumps(asked)}.map((ends) => plots.range(...ends))))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    (low, high), (zero, _), (near, _) = json.loads(done.stdout)
    assert (low, high) == (pytest.approx(3.1 - 0.06 * 1.2), pytest.approx(4.3 + 0.06 * 1.2))
    assert zero == 0
    assert near > 3.9


def roughness(values: list[float]) -> float:
    return mean(abs(later - earlier) for earlier, later in pairwise(values))


def test_a_report_without_loss_counts_only_while_stepping() -> None:
    phases = ["ready", "stepping", "stepping", "stepping", "final"]
    steps, losses = [0, 1, 9, 18, 19], [None, None, 2.0, None, None]
    rows = [
        ReportLine(time=i, phase=phase, step=step, loss=loss)
        for i, (phase, step, loss) in enumerate(zip(phases, steps, losses, strict=True))
    ]
    assert without_loss(rows) == 1


def test_content_is_escaped_once_and_markup_never() -> None:
    inner = element("b", "<&>")
    assert inner == "<b>&lt;&amp;&gt;</b>"
    assert element("p", inner, "&amp;", class_='a"b') == '<p class="a&#34;b"><b>&lt;&amp;&gt;</b>&amp;amp;</p>'
    assert element("path", d="M0 0", stroke_width=1.5, x=None) == '<path d="M0 0" stroke-width="1.5"/>'
    assert isinstance(inner, Markup)


def test_a_learner_that_was_away_has_two_parts(folder: Path) -> None:
    record = load(folder)
    parts = {slot: len(unbroken(items, record.wall_seconds)) for slot, items in by_learner(record.reports).items()}
    assert parts == {0: 1, 1: 1, 2: 2, 3: 1}


def test_progress_is_the_sum_over_learners(folder: Path) -> None:
    record = load(folder)
    progress = TokenProgress(record.reports)
    newest = {report.learner: report.tokens for report in record.reports}
    assert progress.at(-1.0) == 0
    assert progress.at(record.wall_seconds + 1) == sum(newest.values())
    at = record.reports[200].time
    assert progress.at(at) == sum({r.learner: r.tokens for r in record.reports if r.time <= at}.values())


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12))
def test_ticks_are_few_and_inside(low: float, extent: float, count: int) -> None:
    scale = Scale.over([low, low + extent], 0, 100)
    ticks = scale.ticks(count)
    assert len(ticks) <= 7 * max(count, 2)
    assert all(-0.01 <= scale(tick) <= 100.01 for tick in ticks)
    assert ticks == sorted(ticks)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (whole(1234567), "1,234,567"),
        (whole(None), "-"),
        (scaled(999.9e3), "1.00 M"),
        (scaled(12), "12"),
        (scaled(45600, "B"), "45.6 kB"),
        (seconds(0.04), "40.0 ms"),
        (seconds(59.96), "60.0 s"),
        (seconds(134), "2 min 14 s"),
        (seconds(3720), "1 h 02 min"),
        (seconds(-0.5), "-500 ms"),
        (percent(0.9912), "99.1 %"),
        (percent(0.99999), "99.99 %"),
        (percent(1.0), "100 %"),
        (decimal(1.35149), "1.351"),
        (decimal(float("nan")), "-"),
        (percent(0.0001), "< 0.1 %"),
        (seconds(0.000801), "801 us"),
        (progress(0.999), "99 %"),
        (progress(0.29), "29 %"),
        (decimal(1.5e-7), "1.50e-7"),
        (decimal(3.23e-9), "3.23e-9"),
        (decimal(2.4e5), "2.40e5"),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected


def test_levels_rise_with_the_contributors() -> None:
    for of in (1, 2, 3, 4, 5, 8, 64):
        levels = [share_level(count, of) for count in range(of + 1)]
        assert levels == sorted(levels)
        assert (levels[0], levels[-1]) == (0, 4)
        assert all(level < 4 for level in levels[:-1])


def test_names_of_edges_stand_apart() -> None:
    of = {
        "learner": ["data", "inner-step", "fragment-send"],
        "syncer": ["pacer", "merge", "outer-step"],
        "evaluator": ["evaluate", "hold-evaluator"],
    }
    nodes = [DrawnNode(name, role) for role, names in of.items() for name in names]
    ends = [
        each.split()
        for each in (
            "data.batch inner-step.batch",
            "inner-step.fragment fragment-send.fragment",
            "fragment-send.answer merge.answer",
            "pacer.round merge.round",
            "merge.gradient outer-step.gradient",
            "outer-step.merged pacer.merged",
            "pacer.pull inner-step.pull",
            "outer-step.update inner-step.update",
            "outer-step.update evaluate.update",
            "inner-step.progress pacer.progress",
            "outer-step.update hold-evaluator.update",
            "hold-evaluator.copy inner-step.update",
            "hold-evaluator.held pacer.held",
        )
    ]
    chart = ET.fromstring(
        draw_graph(DrawnGraph([DrawnRole(role) for role in of], nodes, [DrawnEdge(*each) for each in ends]))
    )
    names = [item for item in chart.iter("text") if "label" in item.get("class", "").split()]
    assert len(names) == len(ends)
    for first, second in combinations(names, 2):
        letters = (len(first.text) + len(second.text)) / 2
        is_beside = abs(float(first.get("x")) - float(second.get("x"))) > 6.6 * (letters + 1)
        assert is_beside or abs(float(first.get("y")) - float(second.get("y"))) >= 13, (first.text, second.text)


@pytest.mark.slow
def test_many_learners_have_curves_of_quantiles_and_of_those_that_are_looked_for(tmp_path: Path) -> None:
    record = load(build(tmp_path / "run", learners=64, steps=120))
    losses, paces = charts(record, None)
    shown = charts_lines.slots_shown(record)
    assert 1 <= len(shown) <= 2 * EXTREMES
    assert {slot % 4 for slot in shown} == {3}, "every fourth is the slowest"
    titles = [title for _, title in QUANTILES]
    assert [curve.name for curve in losses.curves[:-1]] == [*titles, *(f"learner {slot}" for slot in shown)]
    low, half, high = (mean(curve.values) for curve in paces.curves[:3])
    assert low < half < high
