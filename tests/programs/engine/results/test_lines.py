"""The lines of a run folder are written and read by the same records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.programs.engine.recorder.books import Books
from isthmus.programs.engine.results.lines import (
    KINDS,
    ChangeRecord,
    EvaluationLine,
    Line,
    MergeRecord,
    ReportLine,
    fields_of,
    name_of,
    records,
)
from isthmus.programs.wings.why.why import MergeQuery, why
from tests.programs.engine.recorder.recorder_story import evaluated, merging

LINES: tuple[Line, ...] = (
    ReportLine(time=1.5, learner=2, tokens=64, began=["copy", 1, 8], metrics={"accuracy": None}),
    ReportLine(learner=1),
    ReportLine(learner=1, host_waits=[("step", 8, 0.7)]),
    MergeRecord.made_of(merging(1, 2, 5_000_000, asked={"push": [], "update": "int4", "interval": 8, "overlap": 1})),  # type: ignore[arg-type]
    MergeRecord.made_of(merging(0, 1, 7_000_000)),  # type: ignore[arg-type]
    EvaluationLine.made_of(evaluated("initial", 0, float("nan"))),  # type: ignore[arg-type]
    ChangeRecord(time=3.0, number=1, setting="push", slot=2, before="float32", after="int4"),
)


@pytest.mark.parametrize("line", LINES)
def test_what_is_written_is_what_is_read(line: Line) -> None:
    kind, written = type(line), fields_of(line)
    assert [*records(json.dumps(written, allow_nan=False).encode(), kind)] == [line]
    optional = {"began", "metrics", "host_waits", "asked", "clipped", "figures", "better", "figures_fault"}
    assert {*kind.__struct_fields__} - optional <= written.keys(), "what is not known is null"
    assert all(written[name] for name in optional & written.keys())


def test_each_file_has_a_kind_of_its_own() -> None:
    assert [*map(name_of, KINDS)] == ["metrics", "merges", "evaluations", "changes"]


def test_a_line_that_is_none_is_left_out_and_what_is_no_number_is_missing(tmp_path: Path) -> None:
    good = {"time": 1.0, "fragment": 0, "round": 1, "kind": "merge", "version": [1, 1], "weights": [float("nan")]}
    bad = [{**good, "fragment": "1"}, {**good, "version": [1]}, {"time": 1.0}, [], {**good, "voters": None}]
    data = "\n".join([*map(json.dumps, bad), "{", json.dumps(good)]).encode()
    *others, merge = records(data, MergeRecord)
    assert others == [None] * 6
    assert merge is not None
    assert merge.weights == [None]
    (tmp_path / "merges.jsonl").write_bytes(data + b"\n" + json.dumps(bad[0]).encode())
    assert why(tmp_path, MergeQuery()).merge.fragment == 0


def test_lines_are_folded_in_any_order_and_twice() -> None:
    once, again = Books(sizes=(10, 10)), Books(sizes=(10, 10))
    for line in LINES:
        once.accept(line, 0)
    for line in (*reversed(LINES), *LINES):
        again.accept(line, 0)
    assert again.figures(2) == once.figures(2)
