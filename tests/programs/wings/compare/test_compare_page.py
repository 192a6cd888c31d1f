"""The figures and the page of a comparison, from run folders whose figures are known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from isthmus.programs.engine.results.record import between
from isthmus.programs.study.terminal import figures
from isthmus.programs.wings.compare.compare import ComparisonPlan, Pacing, Variant
from isthmus.programs.wings.compare.compare_outcome import ComparedRun, EvaluatedPlace, comparison
from isthmus.programs.wings.compare.compare_page import PAGE, charts, sheet
from isthmus.programs.wings.report.page import write_sheet
from tests.programs.engine.results import whole_files

SIDES = {"plain": 2.0, "<fancy>": 1.5, "alone on 500 tokens": 2.25}
"""What each comes to at seed 0; a seed adds a tenth, and to the fancy one a hundredth more."""


def _plan(margin: float | None = 0.1) -> ComparisonPlan:
    def side(number: int, name: str) -> Variant:
        is_control = name.startswith("alone")
        run = {"program": "diloco", "learners": 1 if is_control else 2, "tokens": 500 if is_control else 1000}
        control = "" if is_control else "alone on 500 tokens"
        return Variant(name, f"{number:02}", {"run": run, "program": {}, "task": {}}, "0" * 32, control)

    return ComparisonPlan(tuple(side(*each) for each in enumerate(SIDES)), 0, 1000, Pacing((1.0,)), margin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of three seeds; of the control one is missing."""
    for number, (name, loss) in enumerate(SIDES.items()):
        for seed in range(2 if number == 2 else 3):
            run = tmp_path / f"{number:02}" / f"seed-{seed}"
            run.mkdir(parents=True)
            final = loss + 0.1 * seed + (0.01 * seed if number == 1 else 0.0)
            seconds = 10.0 if name == "plain" else 5.0
            summary = whole_files.summary(eval_loss_final=final, wall_seconds=seconds, goodput=0.5)
            summary |= {"syncer_shards": 1, "outer_steps": 4, "merged_share": 0.9, "bytes_sent_total": 4000}
            (run / "summary.json").write_text(json.dumps(summary | {"eval_metrics": {"accuracy": 1 - final / 10}}))
            places = [(int(share * 1000), share * seconds, 4.0 + share * (final - 4.0)) for share in (0.0, 0.5, 1.0)]
            lines = [{"tokens": tokens, "time": time, "eval_loss": value} for tokens, time, value in places]
            (run / "evaluations.jsonl").write_text("\n".join(map(json.dumps, lines)))
            reports = [
                {
                    "learner": slot,
                    "time": time,
                    "tokens": int(500 * share),
                    "bytes_sent": int(1000 * share),
                    "bytes_received": 0,
                }
                for share, time in ((0.5, seconds / 2), (1.0, seconds))
                for slot in range(2)
            ]
            (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, reports)))
    return tmp_path


def test_figures_are_those_of_the_runs(folder: Path) -> None:
    found = comparison(folder, _plan(), 3)
    plain, fancy, alone = found.sides
    assert plain.finals["loss"].mean == pytest.approx(2.1)
    assert plain.finals["loss"].deviation == pytest.approx(0.1)
    assert plain.differences == {}
    each = fancy.differences["loss"]
    assert (each.seeds, each.mean) == ((0, 1, 2), pytest.approx(-0.49))
    assert fancy.differences["accuracy"].mean == pytest.approx(0.049)
    assert (fancy.verdict, plain.verdict) == ("better", None)
    assert plain.gain is not None
    assert (plain.gain.seeds, plain.gain.mean) == ((0, 1), pytest.approx(0.25))
    assert alone.gain is None
    assert found.missing == 1
    # After 5 of its 10 seconds the plain one is at half of its way from 4 to 2, 2.1 and 2.2.
    assert fancy.at_equal["time"].mean == pytest.approx(1.61 - 3.05)
    assert fancy.at_equal["tokens"].mean == pytest.approx(-0.49)
    assert [place.bytes for place in plain.runs[0].places] == [0.0, 1000.0, 2000.0]
    assert [place.bytes for place in alone.runs[0].places] == [0.0, 0.0, 0.0]  # It speaks to nobody.


def test_a_value_between_evaluations() -> None:
    assert [between([(0.0, 1.0), (2.0, 3.0)], at) for at in (-1.0, 0.0, 0.5, 2.0, 9.0)] == [1.0, 1.0, 1.5, 3.0, 3.0]
    run = ComparedRun(
        0,
        "",
        {},
        None,
        None,
        None,
        None,
        None,
        [EvaluatedPlace(0, 0, 0, {"loss": 4.0}), EvaluatedPlace(10, 5, 8, {"loss": 2.0})],
    )
    assert run.value("loss", "bytes", 4.0) == 3.0
    assert run.value("loss", "time", 6.0) is None  # It was not there.
    assert run.value("accuracy", "time", 1.0) is None


def test_a_mean_curve_has_a_place_along_each_axis(folder: Path) -> None:
    (chart,) = charts(comparison(folder, _plan(), 3))
    means = {curve.name: curve for curve in chart.curves if curve.is_main}
    assert set(means) == set(SIDES)
    assert len(chart.curves) == 3 + 3 + 3 + 2
    plain = means["plain"]
    middle = plain.values.index(3.05)
    assert (plain.tokens[middle], plain.time[middle], plain.bytes[middle]) == (500, 5.0, 1000)
    assert plain.values[-1] == 2.1


def test_the_page_holds_all_of_it_and_loads_nothing(folder: Path) -> None:
    summary = folder / "00" / "seed-0" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"error": "a note & more"}))
    write_sheet(folder / PAGE, sheet(comparison(folder, _plan(), 3)))
    html = (folder / PAGE).read_text()
    assert "<fancy>" not in html.replace('"<fancy>', "")
    for part in ("&lt;fancy&gt;", "-0.490", "better", "a note &amp; more", 'value="bytes"', "1 of 9 runs are missing"):
        assert part in html
    assert set(re.findall(r'(?:href|src)="([^"]*)"', html)) == {
        f"{number:02}/seed-{seed}/report.html" for number in range(3) for seed in range(3) if (number, seed) != (2, 2)
    }
    data = re.search(r'id="curves-data">(.*?)</script>', html)
    assert data is not None
    assert len(json.loads(data.group(1))[0]["curves"]) == 11


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    found = comparison(tmp_path, _plan(None), 2)
    assert found.missing == 6
    write_sheet(tmp_path / PAGE, sheet(found))
    assert "6 runs are missing" in (tmp_path / PAGE).read_text()


@pytest.mark.parametrize(("width", "names"), [(160, {"runs", "interval", "verdict"}), (60, {"verdict"})])
def test_terminal_page_and_json_follow_from_one_sheet(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, names: set[str]
) -> None:
    found = comparison(folder, _plan(), 3)
    monkeypatch.setattr(figures, "_WIDE", width)
    figures.show(sheet(found), as_json=False, last="the end")
    told = capsys.readouterr().out
    assert set(told.splitlines()[0].split()) & {"runs", "interval", "verdict"} == names
    assert max(len(line) for line in told.splitlines() if "<fancy>" in line) <= width
    assert "equal bytes" not in told  # A detail, of the page alone.
    assert told.endswith("1 of 9 runs are missing; the same command goes on.\nthe end\n")
    figures.show(sheet(found), as_json=True)
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(found))


def test_figures_of_final_models_and_losses_of_sets_have_verdicts(folder: Path) -> None:
    for path in folder.glob("*/*/summary.json"):
        summary = json.loads(path.read_text())
        loss = summary["eval_loss_final"]
        summary["eval_metrics"] = {"loss/code": loss + 1}
        told = {"site": "alpha", "told": True, "is_final": True, "global_last": loss + 0.5}
        summary["sites"] = [told, {"site": "beta", "told": False, "is_final": False, "global_last": None}]
        summary["final_figures"] = {"accuracy": 1 - loss / 10, "errors": 10 * loss, "size": loss}
        summary["final_figures_better"] = {"accuracy": "higher", "errors": "lower"}
        path.write_text(json.dumps(summary))
    made = comparison(folder, _plan(), 3)
    plain, fancy, _ = made.sides
    assert plain.verdicts == {}
    losses = dict.fromkeys(("loss", "loss/code", "loss/site alpha"), "better")
    assert fancy.verdicts == {**losses, "accuracy": "better", "errors": "better"}
    assert plain.finals["loss/site alpha"].mean == pytest.approx(2.6)
    assert "loss/site beta" not in plain.finals
    assert fancy.verdict == fancy.verdicts["loss"]
    assert fancy.differences["accuracy"].mean > 0 > fancy.differences["errors"].mean
    rows = [row for each in sheet(made).parts[0].tables for row in each.rows if row[0] == "<fancy>" and "size" in row]
    assert [row[-1] for row in rows] == [""], "nobody said which way is better"
    swapped = {"accuracy": "lower", "errors": "higher"}
    for path in folder.glob("*/*/summary.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"final_figures_better": swapped}))
    again = comparison(folder, _plan(None), 3).sides[1]
    assert again.verdicts == {"accuracy": "worse", "errors": "worse"}, "without a margin losses have no verdict"
