"""The parts of the page, of a run that is over, of one that goes on, and of one with many learners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.programs.engine.results.crowd import EXTREMES
from isthmus.programs.engine.results.lines import ChangeRecord, MergeRecord, ReportLine
from isthmus.programs.engine.results.site_words import NOT_TOLD
from isthmus.programs.reading.found import LeftOut, by_reason
from isthmus.programs.reading.table import DataTable, LongestDocument
from isthmus.programs.study.terminal.figures import TokenSpeed
from isthmus.programs.study.terminal.live import Notice
from isthmus.programs.wings.dashboard import parts
from isthmus.programs.wings.dashboard.watched_run import LastMerges, Look, WatchedRun, place_of, runs_below
from tests.programs.engine.results.event_lines import KILLED
from tests.programs.engine.results.made_up_run import build

FLOWS = {"edges": [[0, 10, 1_000_000, 0], [1, 5, 0, 2_000_000_000]], "nodes": []}
GRAPH = {
    "program": "made-up",
    "roles": [{"name": "learner"}],
    "nodes": [{"name": "step", "role": "learner"}],
    "edges": [{"source": "step.fragment", "target": "merge.answer"}, {"source": "a.b", "target": "c.d"}],
}
REPORT: dict[str, Any] = {"incarnation": 2, "phase": "stepping", "step": 50, "tokens": 3200, "loss": 2.5}
REPORT |= {"staleness": 7, "waited": 10**9, "stepping": 10**10, "step_ms": 200.0, "bytes_sent": 9, "sick": False}


def host(name: str, **more: Any) -> dict[str, Any]:
    known = {"name": name, "role": name.partition("/")[0], "phase": "stepping", "incarnation": 1, "state": "alive"}
    return {**known, "reason": None, "machine": "alpha", "flows": FLOWS, **more}


def going_on(at: float = 0.0, **more: Any) -> Look:
    """A look at a run that goes on, with two learners; learner 1 is being started again."""
    hosts = [host("learner/0"), host("learner/1", phase="starting", incarnation=2), host("syncer/0")]
    hosts[1]["reason"] = msgspec.to_builtins(KILLED)
    training = {"phase": "training", "time": 20.0 + at, "tokens": 6400, "tokens_budget": 64000, "slots": 2}
    training |= {"goodput": 0.9, "outer_steps": 3, "contributors_mean": 1.5, "merged_share": 0.8, "eval_loss": 2.0}
    training |= {"learners": {"0": REPORT, "1": {**REPORT, "loss": float("nan")}}, "eval_loss_initial": 5.0}
    merges = LastMerges()
    merges.add(MergeRecord(time=15.0, fragment=0, round=1, kind="merge", version=[1, 1], voters=[0], left_out=[1]))
    merges.add(MergeRecord(time=18.0, fragment=1, round=2, kind="merge", version=[1, 1], voters=[0, 1]))
    known: dict[str, Any] = {
        "name": "run-20260101-000000",
        "status": {"outcome": "running", "hosts": hosts, "training": training},
        "merges": merges,
        "changes": [],
        "newest": {slot: ReportLine(learner=slot, loss=2.5) for slot in (0, 1)},
        "notices": [],
        "graph": GRAPH,
        "configuration": {"program": {"push": "int4", "interval": 24}},
        "data": {},
        "at": at,
    }
    return Look(**{**known, **more})


def test_the_head_says_how_far_a_run_is() -> None:
    speed = TokenSpeed()
    head = parts.head(going_on(), speed)
    assert (head["title"], head["outcome"], head["share"], head["fault"]) == ("made-up", "running", 0.1, "")
    faster = going_on(at=10.0)
    faster.status["training"]["tokens"] += 1000
    assert parts.head(faster, speed)["speed"] == "100 tokens/s"


def test_sites_have_a_row_each_and_what_they_keep_is_not_told() -> None:
    assert parts.sites(going_on()) == {"rows": []}
    look = going_on()
    told = {"site": "alpha", "tokens": 640, "epochs": 0.5, "told": True, "global_first": 5.5}
    told |= {"global_last": 2.0, "own_last": 1.75, "learners": [0], "same_data": []}
    look.status["training"]["sites"] = [told, {"site": "beta", "told": False, "tokens": 64, "same_data": ["alpha"]}]
    alpha, beta = parts.sites(look)["rows"]
    assert (alpha["first"], alpha["global"], alpha["own"], alpha["gap"]) == ("5.500", "2.000", "1.750", "-0.250")
    assert {beta[name] for name in ("first", "global", "own", "gap")} == {NOT_TOLD}
    assert "alpha" in beta["reason"]
    assert parts.sites(replace(look, status={**look.status, "summary": {"sites": [told]}}))["rows"] == [alpha]


def test_who_was_in_a_merge_and_who_came_too_late() -> None:
    part = parts.merges(going_on(), parts.MergeColumns())
    assert [row["cells"] for row in part["rows"]] == ["vv", "lv"]
    assert [row["late"] for row in part["rows"]] == ["", "1 late"]
    assert [(column["votes"], column["late"]) for column in part["columns"]] == [(1, 1), (2, 0)]
    assert part["is_all"]


def test_of_many_learners_those_that_were_missed_are_listed() -> None:
    merges = LastMerges()
    for number in range(40):
        late = [7] if number % 2 else [7, 200]
        voters = [slot for slot in range(256) if slot not in late]
        merges.add(
            MergeRecord(fragment=0, round=number, kind="merge", version=[1, number], voters=voters, left_out=late)
        )
    newest = {slot: ReportLine(learner=slot) for slot in range(256)}
    part = parts.merges(going_on(merges=merges, newest=newest), parts.MergeColumns())
    assert [row["slot"] for row in part["rows"]] == [7, 200]
    assert not part["is_all"]
    assert len(part["columns"]) == parts.MERGES_SHOWN
    waits = parts.goodput(going_on(status={"hosts": [], "training": {"learners": dict.fromkeys(range(256), REPORT)}}))
    assert len(waits["waits"]) == parts.STAND_OUT


def test_goodput_and_waits() -> None:
    part = parts.goodput(going_on())
    assert [(name, figure) for name, figure, _ in part["tiles"]] == [
        ("goodput", "90.0 %"),
        ("in a merge", "1.5 of 2"),
        ("merged", "80.0 %"),
        ("evaluation loss", "2.000"),
    ]
    assert [(row["slot"], row["share"]) for row in part["waits"]] == [(0, 0.1), (1, 0.1)]


def test_learners_have_phase_speed_staleness_and_reason() -> None:
    part = parts.learners(going_on())
    first, second = part["rows"]
    assert (first["state"], first["speed"], first["stale"], first["reason"]) == ("stepping", "5.0/s", "7", "")
    assert (second["state"], second["tone"], second["loss"], second["life"]) == ("restarting", "odd", "-", "2")
    assert second["reason"]
    assert [other["name"] for other in part["others"]] == ["syncer 0"]


def test_ages_of_fragments_count_from_their_last_merge() -> None:
    rows = parts.fragments(going_on())["rows"]
    assert [(row["index"], row["age"], row["share"]) for row in rows] == [(0, "5.00 s", 1.0), (1, "2.00 s", 0.4)]


def test_traffic_has_names_and_rates() -> None:
    traffic = parts.TrafficRates()
    traffic.part(going_on())
    look = going_on(at=2.0)
    for each in look.status["hosts"]:
        each["flows"] = {"edges": [[0, 20, 3_000_000, 0]], "nodes": []}
    part = traffic.part(look)
    (row,) = part["rows"]
    assert (row["source"], row["target"], row["bytes"]) == ("step.fragment", "merge.answer", "9.00 MB")
    assert row["rate"] == part["rate"] == "3.00 MB/s"


def test_failures_are_listed_the_newest_first() -> None:
    notices = [Notice(None, "early", "odd"), Notice(3.0, "later", "bad")]
    rows = parts.failures(going_on(notices=notices))["rows"]
    assert [(row["at"], row["text"], row["tone"]) for row in rows] == [
        ("3.00 s", "later", "bad"),
        ("at the start", "early", "odd"),
    ]


def test_settings_show_what_is_in_use_and_a_curve_of_intervals() -> None:
    changes = [
        ChangeRecord(time=4.0, setting="interval", before="24", after="30", reason="slow rounds"),
        ChangeRecord(time=9.0, setting="push", slot=1, before="float32", after="int4", reason="carries less", link=1),
    ]
    look = going_on(changes=changes)
    part = parts.settings(look)
    assert part["asked"] == [["push", "int4"], ["interval", "24"]]
    assert part["in_use"] == [["interval of shard 0", "30"], ["push of learner 1", "int4"]]
    assert part["count"] == len(part["rows"]) == 2
    (chart,) = parts.steps_of_settings(look)
    assert (chart.curves[0].time, chart.curves[0].values) == ([0.0, 4.0, 4.0, 20.0], [24.0, 24.0, 30.0, 30.0])
    assert parts.steps_of_settings(going_on()) == []


def test_every_part_of_a_run_that_is_over_and_of_those_beside_it(tmp_path: Path) -> None:
    folder = build(tmp_path / "runs" / "first")
    build(tmp_path / "runs" / "second", seed=2, away=1)
    look = WatchedRun(folder).look(0.0)
    assert parts.head(look, TokenSpeed())["outcome"] == "done"
    assert len(parts.learners(look)["rows"]) == len(parts.goodput(look)["waits"]) == 4
    table = parts.RunList().part(runs_below(folder.parent), look, place_of)
    assert {row["name"]: row["is_current"] for row in table["rows"]} == {"first": True, "second": False}
    assert len(table["charts"][0]["curves"]) == 2
    assert all(row["loss"] != "-" for row in table["rows"])


@pytest.mark.parametrize("status", [{}, {"outcome": "running"}, {"outcome": "silent", "training": {"time": 0.0}}])
def test_a_status_may_lack_anything(status: dict[str, Any]) -> None:
    look = going_on(status=status, newest={}, merges=LastMerges(), graph={}, configuration={})
    for part in (parts.goodput, parts.learners, parts.fragments, parts.failures, parts.settings):
        assert msgspec.json.encode(part(look))
    assert msgspec.json.encode([parts.head(look, TokenSpeed()), parts.TrafficRates().part(look)])
    assert msgspec.json.encode(parts.merges(look, parts.MergeColumns()))


TABLE = DataTable(
    files=2,
    bytes=2000,
    documents=3,
    tokens=400,
    tokens_by_kind={".py": 300, ".md": 100},
    zero_share=0.5,
    predicted=400,
    without_text=1,
    longest=LongestDocument("/home/me/a.py", 1, 300),
    ends_with=("</s>",),
    beginnings=("<b>words</b>",),
    left_out=by_reason(LeftOut(f"/home/me/{name}", "hidden") for name in ("a", "b", "c", "d")),
)


def test_the_table_of_the_data_is_shown_and_what_is_odd_stands_out() -> None:
    shown = {row["name"]: row for row in parts.data(going_on(data=TABLE.for_budget(400 * 101).as_dict()))["rows"]}
    assert {name for name, row in shown.items() if row["tone"]} == {"budget"}
    assert {"files", "documents", "tokens", "by kind", "shares", "the longest", "reads"} < set(shown)
    assert "a.py" in shown["the longest"]["text"]
    assert not any("/home/me" in row["text"] for row in shown.values())  # Folders are not part of the run.
    assert "1 more" in shown["left out, hidden"]["text"]
    few = parts.data(going_on(data=TABLE.for_budget(400 * 100).as_dict()))["rows"]
    assert not any(row["tone"] for row in few)


def test_of_many_kinds_of_files_the_largest_are_shown() -> None:
    many = replace(TABLE, tokens_by_kind={f".{number}": number for number in range(1, 21)})
    (row,) = (row for row in parts.data(going_on(data=many.as_dict()))["rows"] if row["name"] == "by kind")
    assert row["text"].startswith(".20: 20, .19: 19")
    assert row["text"].endswith(f"8 others: {sum(range(1, 9))}")


def test_shares_that_were_not_counted_are_not_shown() -> None:
    ids = replace(TABLE, documents=None, zero_share=None, longest=None, beginnings=(), left_out=())
    names = [row["name"] for row in parts.data(going_on(data=ids.as_dict()))["rows"]]
    assert names == ["files", "tokens", "by kind"]


@pytest.mark.parametrize("damaged", [{"files": "two"}, {"tokens": 1}, {**TABLE.as_dict(), "left_out": [1]}])
def test_a_damaged_table_is_named(damaged: dict[str, Any]) -> None:
    part = parts.data(going_on(data=damaged))
    assert not part["rows"]
    assert "data.json" in part["why"]


def test_a_run_without_a_table_says_so() -> None:
    assert parts.data(going_on())["why"]
    assert not parts.data(going_on(configuration={}))["why"]  # It may come.


def test_of_many_learners_the_slowest_and_the_unusual_have_rows_below_quantiles() -> None:
    many = 1024
    odd = {"phase": "starting", "incarnation": 2}
    hosts = [host(f"learner/{slot}", **(odd if slot == 5 else {})) for slot in range(many)]
    reports = {str(slot): {**REPORT, "incarnation": 1, "step_ms": slot + 1.0} for slot in range(many)}
    part = parts.learners(going_on(status={"hosts": hosts, "training": {"learners": reports}}))
    assert [row["slot"] for row in part["rows"]] == [5, *range(many - EXTREMES, many)]
    of_all, _, half, _ = part["quantiles"]
    assert of_all["state"].startswith("1,023 ")
    assert half["speed"] == "2.0/s"  # Half of the steps take 512 ms at most.
    assert set(half) >= set(part["rows"][0]) - {"slot", "colour", "life"}
    assert not parts.learners(going_on())["quantiles"]


def test_formats_of_many_learners_are_counted() -> None:
    changes = [ChangeRecord(setting="push", slot=slot, after="int2" if slot else "int4") for slot in range(1024)]
    used = parts.settings(going_on(changes=changes))["in_use"]
    assert used == [["push of 1 learners", "int4"], ["push of 1,023 learners", "int2"]]
