"""What is told of settings that followed the links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.recorder.books import LAST_COUNT, Changes
from isthmus.programs.engine.results.changes import in_use, is_better, read, sentence, settings
from isthmus.programs.engine.results.lines import ChangeRecord
from isthmus.programs.engine.results.reading import load
from isthmus.programs.study.terminal.live import NoticeFeed
from isthmus.programs.wings.report import sections
from isthmus.programs.wings.why.past import show_why
from isthmus.programs.wings.why.why import MergeQuery, rows, why

PUSH: dict[str, Any] = {
    "shard": 0,
    "epoch": 1,
    "number": 1,
    "round": 7,
    "setting": "push",
    "slot": 3,
    "before": "float32",
    "after": "int4",
    "reason": "carries less",
    "link": 3,
    "goodput": 12_475,
    "needed": 75_000,
    "round_trip": 2.5,
}
UPDATE = {**PUSH, "number": 2, "setting": "update", "slot": None, "round": 9}
INTERVAL = {**UPDATE, "number": 3, "setting": "interval", "before": "24", "after": "31", "round": 12}
OVERLAP = {
    **UPDATE,
    "number": 4,
    "setting": "overlap",
    "before": "6",
    "after": "3",
    "reason": "quick rounds",
    "link": None,
}
BACK = {
    **PUSH,
    "number": 5,
    "before": "int4",
    "after": "float32",
    "reason": "carries more",
    "goodput": 10**6,
    "round": 30,
}

PACE = {
    **OVERLAP,
    "number": 6,
    "setting": "pace",
    "slot": 3,
    "before": "usual",
    "after": "asked ahead",
    "reason": "slow steps",
    "step_time": 100_000_000,
    "median": 10_000_000,
}


def record(told: dict[str, Any], time: float = 1.0) -> ChangeRecord:
    return ChangeRecord(**told, time=time)


def test_sentences() -> None:
    assert sentence(record(PUSH)) == (
        "push of learner 3: float32 -> int4, "
        "because the link of learner 3 carries 12.5 kB/s, and float32 needs 75.0 kB/s"
    )
    assert sentence(record(UPDATE)).startswith(
        "update: float32 -> int4, because the link to learner 3 carries 12.5 kB/s"
    )
    assert sentence(record(INTERVAL)).endswith("and an interval of 24 steps needs 75.0 kB/s")
    assert sentence(record(OVERLAP)) == "overlap: 6 -> 3, because a round takes 2.50 steps of the fastest learner"
    assert sentence(record(BACK)).endswith("carries 1.00 MB/s, and float32 needs 75.0 kB/s")
    assert sentence(record(PACE)) == (
        "pace of learner 3: usual -> asked ahead, because a step takes 100 ms, the median 10.0 ms"
    )
    usual = {**PACE, "reason": "usual steps"}
    assert [is_better(record(each)) for each in (PUSH, OVERLAP, BACK, PACE, usual)] == [False, True, True, False, True]
    asked = {"push": [[0, "float32"], [1, "float32"], [3, "int4"]], "update": "int4", "interval": 24, "overlap": 5}
    assert settings(asked) == "push float32, of learner 3 int4; update int4; interval 24, overlap 5"


def test_each_change_is_known_once_and_a_life_begins_anew() -> None:
    known = Changes()
    assert [known.add(record(each)) for each in (PUSH, UPDATE, PUSH, UPDATE, INTERVAL)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert known.figures()["in_use"] == [
        [0, "interval", None, "31"],
        [0, "push", 3, "int4"],
        [0, "update", None, "int4"],
    ]
    assert known.add(record({**PUSH, "epoch": 2}, 0.0))
    assert not known.add(record({**BACK, "epoch": 1}, 2.0))
    assert known.figures()["in_use"] == [[0, "push", 3, "int4"]]
    assert known.figures()["count"] == 4
    for number in range(2, 50):
        known.add(record({**PUSH, "epoch": 2, "number": number}, 3.0))
    assert [each["number"] for each in known.figures()["last"]] == [*range(50 - LAST_COUNT, 50)]


def test_which_changes_count_for_a_round() -> None:
    changes = [record(each) for each in (PUSH, UPDATE, INTERVAL, BACK)]
    assert in_use(changes, 0, 1, 6) == []
    assert in_use(changes, 0, 1, 11) == changes[:2]
    assert in_use(changes, 0, 1, 30) == [changes[3], changes[1], changes[2]]
    assert in_use(changes, 0, 2, 30) == in_use(changes, 1, 1, 30) == []


def test_the_changes_of_a_region_are_its_own() -> None:
    """They are told, and are none of the global shard with that number."""
    own = {**PUSH, "role": "region", "epoch": 3}
    assert sentence(record(own), "region").startswith(
        "push of learner 3 in region/0: float32 -> int4, because the link of"
    )
    known = Changes()
    assert known.add(record(own))
    assert known.add(record(PUSH))
    assert not known.add(record(own))
    assert known.figures()["in_use"] == [[0, "push", 3, "int4"]]
    assert known.figures()["count"] == 2
    assert in_use([record(own)], 0, 3, 30) == []


def test_why_report_and_live_view_tell_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"time": at, **each} for at, each in enumerate((PUSH, UPDATE, INTERVAL))]
    told = [*map(json.dumps, lines), "{", json.dumps({"time": "x"})]
    (tmp_path / "changes.jsonl").write_text("\n".join(told))
    asked = {"push": [[0, "float32"], [3, "int4"]], "update": "int4", "interval": 24, "overlap": 5}
    merge = {"time": 3.0, "fragment": 2, "round": 10, "kind": "merge", "version": [1, 4], "voters": [0], "asked": asked}
    (tmp_path / "merges.jsonl").write_text(json.dumps(merge))
    assert read(tmp_path) == [record(each, at) for at, each in enumerate((PUSH, UPDATE, INTERVAL))]
    found = why(tmp_path, MergeQuery(2))
    shown = list(rows(found.merge))
    assert ("settings", settings(asked)) in shown
    changed = [text for word, text in shown if word == "changed"]
    assert [text.partition(",")[0] for text in changed] == [
        "push of learner 3: float32 -> int4",
        "update: float32 -> int4",
    ]
    show_why(tmp_path, MergeQuery(2), as_json=True)
    assert [change["after"] for change in json.loads(capsys.readouterr().out)["changes"]] == ["int4", "int4"]
    part = sections.changes(load(tmp_path))
    assert part is not None
    assert part.shown is not None
    assert part.shown["count"] == 3
    assert part.shown["rows"][2]["told"] == "interval: 24 -> 31"
    news = NoticeFeed(tmp_path, lambda: 0)
    status = {"changes": {"last": lines[:2]}}
    assert [notice.text for notice in news.update(status)] == [sentence(record(each)) for each in (PUSH, UPDATE)]
    assert news.update(status) == []


def test_where_nothing_followed_anything_nothing_is_told(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    assert sections.changes(load(tmp_path)) is None
