"""What a person sees of a run with two shards, of which one was away: in the report, and while it goes on."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from isthmus.programs.study.terminal import figures
from isthmus.programs.wings.report.charts_absence import draw_absence
from isthmus.programs.wings.report.charts_merges import draw_merges
from isthmus.programs.wings.report.charts_timeline import TimeWindow
from isthmus.programs.wings.report.page import load, write_report
from isthmus.runtime.supervision.incidents import Restarted
from tests.programs.engine.results import made_up_deaths
from tests.programs.engine.results.event_lines import KILLED
from tests.programs.engine.results.made_up_run import build, write_json, write_lines

GONE, BACK = 4.0, 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shard 1, which serves the odd fragments, dies and comes back."""
    run = build(tmp_path_factory.mktemp("runs") / "run", steps=300)
    rows = []
    for row in made_up_deaths.read_lines(run / "merges.jsonl"):
        if row["fragment"] % 2 == 0 or row["time"] < GONE:
            rows.append(row)
        elif row["time"] >= BACK:
            rows.append({**row, "version": [2, row["version"][1]]})
    write_lines(run / "merges.jsonl", rows)
    made_up_deaths.apart(run, (GONE, "syncer/1", 1, KILLED), (GONE + 0.01, "syncer/1", 2, Restarted()))
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", {**summary, "syncer_shards": 2})
    return run


@pytest.mark.slow
def test_only_the_rows_of_the_shard_that_was_away_are_framed(folder: Path) -> None:
    record = load(folder)
    assert [(item.host, item.life_after) for item in record.absences] == [("syncer/1", 2)]
    chart = ET.fromstring(draw_merges(record))
    rows = {round(float(item.get("y")), 1) for item in chart.iter() if item.get("class") == "absent"}
    cells = {round(float(item.get("y")), 1) for item in chart.iter() if (item.get("class") or "").startswith("cell")}
    assert sorted(rows) == sorted(cells)[1::2]


def test_each_shard_has_a_lane_around_a_death(folder: Path) -> None:
    record = load(folder)
    chart = ET.fromstring(draw_absence(record, TimeWindow(GONE - 1, BACK + 1), record.absences))
    names = [item for item in chart.iter() if item.get("class") == "name" and item.text.startswith("syncer")]
    heights = {item.text: float(item.get("y")) - 13 for item in names}
    assert list(heights) == ["syncer 0", "syncer 1"]
    (absent,) = [item for item in chart.iter() if item.get("class") == "absent"]
    assert float(absent.get("y")) == heights["syncer 1"] + 0.5
    strokes = [float(item.get("y")) for item in chart.iter() if (item.get("class") or "").startswith("cell")]
    assert strokes.count(heights["syncer 0"]) > strokes.count(heights["syncer 1"]) > 0


def test_the_report_tells_of_the_merges_of_the_other(folder: Path) -> None:
    page = write_report(folder).read_text()
    assert "merges went on, with" in page
    assert "learners go on stepping, and its fragments are not merged" in page


def test_the_epochs_of_few_shards_are_shown_and_of_many_the_newest() -> None:
    def shown(epochs: dict[int, int]) -> list[tuple[str, str]]:
        return list(figures.merge_figures({"epochs": epochs}, 4))

    assert shown({0: 1}) == shown({0: 1, 1: 1}) == []
    assert shown({0: 2}) == [("epoch", "2")]
    assert shown({1: 3, 0: 1}) == [("epochs", "1, 3")]
    assert shown(dict.fromkeys(range(7), 1) | {5: 4}) == [("epochs", "4")]
