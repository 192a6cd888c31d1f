"""What is kept of the files of a run, however they grow."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.results import lines
from isthmus.programs.engine.results.lines import GrowingFile, MergeRecord, ReportLine
from isthmus.programs.wings.dashboard import watched_run
from isthmus.programs.wings.dashboard.watched_run import (
    SILENT,
    CoarseReports,
    LastMerges,
    WatchedRun,
    runs_below,
)
from isthmus.programs.wings.report.charts_lines import charts
from tests.programs.engine.results.made_up_run import build


def report(slot: int, number: int, **more: Any) -> ReportLine:
    fields = {"time": 0.2 * number, "learner": slot, "step": number, "tokens": 64 * number, "phase": "stepping"}
    return ReportLine(**{**fields, "loss": float(number % 7), **more})


def test_a_file_is_read_as_far_as_whole_lines_go_and_anew_where_another_took_its_place(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(tmp_path, ReportLine)
    assert list(file.read()) == []
    path.write_bytes(b'{"time": 1.0}\n{"time"')
    assert [line.time for line in file.read()] == [1.0]
    assert list(file.read()) == []
    with path.open("ab") as grown:
        grown.write(b': 2.0}\nnot a line\n{"time": 3.0, "loss": NaN}\n')
    assert [(line.time, line.loss) for line in file.read()] == [(2.0, None), (3.0, None)]
    path.rename(tmp_path / "metrics.jsonl.1")
    path.write_bytes(b'{"time": 4.0}\n')
    assert [line.time for line in file.read()] == [4.0]


def test_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "READ_BYTES_MAX", 50)
    texts = [f'{{"time": {number}.0}}\n' for number in range(20)]
    (tmp_path / "metrics.jsonl").write_text("".join(texts))
    assert [line.time for line in GrowingFile(tmp_path, ReportLine).read()] == [float(number) for number in range(20)]


@pytest.mark.parametrize(("learners", "kept_max"), [(4, 300 * 4), (256, 40 * 256)])
def test_reports_become_coarser_and_keep_their_means(learners: int, kept_max: int) -> None:
    reports = CoarseReports()
    count = 700 if learners == 4 else 90
    for number in range(count):
        for slot in range(learners):
            reports.add(report(slot, number))
    kept = reports.in_order()
    assert 0 < len(kept) <= kept_max
    assert [line.time for line in kept] == sorted(line.time for line in kept)
    of_one = [line for line in kept if line.learner == 1]
    assert of_one[-1].tokens == 64 * (count - 1)
    spans = [later.time - earlier.time for earlier, later in itertools.pairwise(of_one)]
    assert max(spans) <= 2.01 * min(spans[1:-1])  # Even, so that nothing passes for a break.
    every = sum(number % 7 for number in range(count)) / count
    assert sum(line.loss or 0.0 for line in of_one) / len(of_one) == pytest.approx(every, abs=0.3)


def test_of_many_evaluations_some_are_kept_and_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_run, "EVALUATIONS_MAX", 10)
    lines = [f'{{"time": {number}.0, "tokens": {number}, "eval_loss": 1.0}}\n' for number in range(100)]
    (tmp_path / "evaluations.jsonl").write_text("".join(lines))
    files = watched_run._RunFiles(tmp_path)
    files.read()
    kept = [line.tokens for line in files.evaluations]
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1], 5 <= len(kept) <= 10) == (0, 99, True)


def test_files_of_other_shapes_are_no_error(tmp_path: Path) -> None:
    for name, text in (("graph.json", "[1]"), ("summary.json", "[" * 100_000), ("config.toml", "a=" + "[" * 5_000)):
        (tmp_path / name).write_text(text)
    (tmp_path / "metrics.jsonl").write_text('{"time": 1e999, "tokens": 5, "loss": 1.0}\n')
    look = WatchedRun(tmp_path).look(0.0)
    assert (look.status["outcome"], look.program) == (SILENT, "")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert list(GrowingFile(tmp_path, ReportLine).read()) == []


def test_lives_and_phases_are_not_mixed() -> None:
    reports = CoarseReports()
    for number in range(1000):
        reports.add(report(0, number, incarnation=1 if number < 500 else 2))
    reports.add(report(0, 1000, phase="final", loss=None))
    assert {line.incarnation for line in reports.in_order() if line.time < 99} == {1}
    assert reports.in_order()[-1].phase == "final"
    assert reports.newest[0].loss == 999 % 7


def test_merges_are_counted_and_only_the_last_are_kept() -> None:
    merges = LastMerges()
    merges.add(MergeRecord(fragment=0, round=0, kind="initial", version=[1, 0]))
    merges.add(MergeRecord(fragment=0, round=1, kind="final", version=None))
    for number in range(500):
        merges.add(
            MergeRecord(
                fragment=number % 2,
                round=number,
                kind="merge",
                version=[1, number],
                voters=[0],
                left_out=[1],
                refused=[(2, "stale")],
                merged_tokens=[[0, 1, 2]],
            )
        )
    assert (merges.count, len(merges.last), merges.left_out[1], merges.refused[2]) == (500, 400, 500, 500)
    assert [merges.newest[fragment].round for fragment in (0, 1)] == [498, 499]
    assert merges.last[-1].merged_tokens == []


def test_a_run_that_is_over_is_its_summary_and_the_curves_of_its_report(tmp_path: Path) -> None:
    folder = build(tmp_path / "run")
    watched = WatchedRun(folder)
    look = watched.look(0.0)
    assert look.summary == json.loads((folder / "summary.json").read_text())
    assert look.status["outcome"] == "done"
    drawn = charts(watched.record(look), None)
    assert [chart.name for chart in drawn][:1] == ["loss"]
    assert len(drawn[0].curves) == len(look.newest) + 1
    assert watched.look(1.0).status is look.status  # It is read once.


def test_a_run_without_daemon_and_summary_has_the_figures_of_its_lines(tmp_path: Path) -> None:
    folder = build(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").unlink()
    look = WatchedRun(folder).look(0.0)
    assert (look.status["outcome"], look.summary) == (SILENT, None)
    assert look.fault
    assert look.training["tokens"] == pytest.approx(summary["tokens_total"], rel=0.02)
    assert look.training["eval_loss"] == summary["eval_loss_final"]


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "merges.jsonl", "graph.json", "config.toml"])
def test_damaged_files_are_no_error(tmp_path: Path, name: str) -> None:
    folder = build(tmp_path / "run")
    (folder / name).write_bytes(b"\xff\x00{[")
    WatchedRun(folder).look(0.0)
    (folder / name).unlink()
    WatchedRun(folder).look(0.0)


def test_runs_are_folders_with_a_configuration_and_links_are_none(tmp_path: Path) -> None:
    folder = build(tmp_path / "run")
    shutil.copytree(folder, tmp_path / "second")
    (tmp_path / "latest").symlink_to(folder)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "a-file").touch()
    assert set(runs_below(tmp_path)) == {"run", "second"}
    assert runs_below(tmp_path / "nothing") == {}
