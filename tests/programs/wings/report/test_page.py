"""The report: it is complete, true to the summary, harmless, small, and there whatever the folder is like."""

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from configparser import ConfigParser
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from isthmus.programs.engine.results.site_words import NOT_TOLD
from isthmus.programs.engine.results.words import decimal, whole
from isthmus.programs.wings.report.charts_lines import charts
from isthmus.programs.wings.report.charts_timeline import choose_window, longest_pause, visible_rounds
from isthmus.programs.wings.report.page import load, timeline_svg, write_report
from isthmus.programs.wings.report.sections import data_parallel_bytes, header
from tests.command_line import app
from tests.programs.engine.results.made_up_run import SHAPES, build, write_json, write_lines

SECTIONS = (
    "headline",
    "curves",
    "timeline",
    "failures",
    "merges",
    "accounts",
    "learners",
    "data",
    "graph",
    "configuration",
)
FILES = (
    "summary.json",
    "config.toml",
    "graph.json",
    "metrics.jsonl",
    "evaluations.jsonl",
    "merges.jsonl",
    "trace.json",
)
TITLES = {
    "curves": "Over the run",
    "timeline": "What happened at once",
    "merges": "Merges",
    "accounts": "Where every token went",
    "learners": "Learners",
    "data": "The data",
    "graph": "The graph",
    "configuration": "Configuration",
}
VOID = {"meta", "input", "br", "hr", "col"}
SIZE_MAX_BYTES = 1_500_000
UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


class Reader(HTMLParser):
    """Reads a page, and insists on balanced tags and ids that are used once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.figures: dict[str, float] = {}
        self.text: dict[str, str] = {}
        self.attributes: list[tuple[str, str]] = []
        self.page = path.read_text(encoding="utf-8")
        self.feed(self.page)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        known = {name: value or "" for name, value in attrs}
        assert len(known) == len(attrs)
        self.attributes += known.items()
        if "id" in known:
            self.ids.append(known["id"])
        if "data-figure" in known:
            self.figures[known["data-figure"]] = float(known["value"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data


def told(page: Reader) -> set[str]:
    """The parts of the page that are there, in their order and none twice, or said to be missing, and why."""
    there = [name for name in page.ids if name in SECTIONS]
    missing = [name for name, title in TITLES.items() if f"<strong>{title}</strong>: " in page.page]
    assert there == [name for name in SECTIONS if name in there]
    assert not {*there} & {*missing}
    return {*there, *missing} - {"headline"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "decoupled-diloco-20250203-101112", away=2)


@pytest.fixture(scope="module")
def reader(folder: Path) -> Reader:
    return Reader(write_report(folder))


# -- what is on the page -----------------------------------------------------------------------------------------------


def test_every_section_is_there_in_its_order(reader: Reader) -> None:
    assert [name for name in reader.ids if name in SECTIONS] == [name for name in SECTIONS if name != "data"]
    assert {"header", "footer", "title", "svg"} <= reader.tags
    assert reader.text["h1"].startswith("decoupled-diloco")
    assert "3 February 2025, 10:11" in reader.page
    assert "Not everything is there" not in reader.page


def test_nothing_is_loaded_and_nothing_runs_but_the_scripts_of_the_package(reader: Reader) -> None:
    package = files("isthmus.programs.wings.report")
    names = ("uplot/uPlot.iife.min.js", "plots.js", "charts.js", "merges.js")
    scripts = re.findall(r"<script>(.*?)</script>", reader.page, re.S)
    assert scripts == [(package / name).read_text() for name in names]
    assert reader.page.count("<script") == 6, "and the data of the curves and the merges"
    allowed = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', reader.page)
    sources = " ".join(f"'sha256-{each}'" for each in allowed)
    assert unescape(policy) == f"default-src 'none'; style-src 'unsafe-inline'; script-src {sources}"
    assert not reader.tags & {"link", "img", "iframe", "object", "use", "image", "a"}
    assert not [name for name, _ in reader.attributes if name in ("src", "href") or name.startswith("on")]
    rest = reader.page.replace(scripts[0], "")
    assert not re.search(r"https?:|@import|@font-face", rest)
    assert set(re.findall(r"url\((.)", rest)) <= {"#"}


def test_the_library_in_the_page_is_the_one_that_was_released(reader: Reader) -> None:
    folder = files("isthmus.programs.wings.report") / "uplot"
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in UPLOT}
    assert digests == UPLOT
    assert "uPlot 1.6.32, MIT" in (folder / "README.md").read_text()
    assert "Copyright (c) 2022 Leon Sorokin" in reader.page


def test_the_page_holds_the_curves(folder: Path, reader: Reader) -> None:
    (data,) = re.findall(r'<script type="application/json" id="curves-data">(.*?)</script>', reader.page, re.S)
    expected = charts(load(folder), choose_window(load(folder)))
    assert json.loads(data) == json.loads(msgspec.json.encode(expected))
    assert [chart["name"] for chart in json.loads(data)] == ["loss", "pace"]
    assert reader.page.count("data-chart=") == 2


def test_figures_tables_and_timeline_are_there_without_the_scripts(folder: Path, reader: Reader) -> None:
    page = re.sub(r"<script.*?</script>", "", reader.page, flags=re.S)
    assert page.count("<svg") == 4, "timeline, merges twice, graph"
    assert "A script in this page draws these curves." in page
    evaluations = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    for item in evaluations:
        assert f"<td>{whole(item['tokens'])}</td><td>{decimal(item['eval_loss'])}</td>" in page


def test_the_figures_are_those_of_the_summary(folder: Path, reader: Reader) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    names = [name for name in summary if name.startswith(("tokens_", "eval_loss_"))]
    names += ["learners", "outer_steps", "contributors_mean", "merged_share", "goodput", "uptime", "wall_seconds"]
    for name in [*names, "bytes_sent_total", "cpu_seconds_total"]:
        assert reader.figures[name] == summary[name], name
    for row in summary["per_learner"]:
        for name in ("steps", "tokens", "stall_seconds", "bytes_sent", "bytes_received", "restarts"):
            assert reader.figures[f"learner-{row['learner']}-{name}"] == row[name]


def test_the_bytes_of_data_parallel_follow_the_formula_and_are_marked(folder: Path, reader: Reader) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    parameters = sum(rows * (columns[0] if columns else 1) for rows, *columns in SHAPES.values())
    steps = sum(row["steps"] for row in summary["per_learner"])
    assert data_parallel_bytes(load(folder)) == pytest.approx(2 * 3 / 4 * parameters * 4 * steps, rel=1e-12)
    assert "(computed)" in reader.page
    assert "Not measured: what data-parallel training would have sent" in reader.page


def test_losses_that_are_not_finite_are_told_at_the_top(folder: Path) -> None:
    record = load(folder)
    rows = [{**row, "losses_not_finite": 3 * (row["learner"] == 1)} for row in record.per_learner]
    named = replace(record, summary={**record.summary, "losses_not_finite": 3, "per_learner": rows})
    assert header(named).problems == [*header(record).problems, "3 losses not finite: learner 1 3."]


def test_every_merge_is_told(folder: Path, reader: Reader) -> None:
    merges = [json.loads(line) for line in (folder / "merges.jsonl").read_text().splitlines()]
    for merge in merges:
        assert f"fragment {merge['fragment']}, round {merge['round']}, version 1." in reader.page
    assert "left out: learner 2" in reader.page
    assert "refused: " in reader.page


def test_writing_again_replaces_the_report_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    before = sorted(path.name for path in run.iterdir())
    assert write_report(run) == run / "report.html"
    first = (run / "report.html").read_bytes()
    assert write_report(run).read_bytes() == first
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "report.html"])


# -- whatever the folder is like ---------------------------------------------------------------------------------------


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\x00\ud800]]>"


def test_texts_of_the_run_are_only_text(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=120, program=HOSTILE)
    summary = json.loads((run / "summary.json").read_text())
    summary["outcome"] = HOSTILE
    summary["per_learner"][0]["device_kind"] = HOSTILE
    write_json(run / "summary.json", summary)
    merges = [json.loads(line) for line in (run / "merges.jsonl").read_text().splitlines()]
    write_lines(run / "merges.jsonl", [{**merge, "reason": HOSTILE, "refused": [[1, HOSTILE]]} for merge in merges])
    graph = json.loads((run / "graph.json").read_text())
    graph["nodes"][0]["name"] = graph["roles"][0]["name"] = HOSTILE
    write_json(run / "graph.json", {**graph, "fingerprint": HOSTILE})
    (run / "config.toml").write_text(f"# {HOSTILE[:40]}\n[run]\ntask = '''{HOSTILE[:30]}'''\n")
    trace = (run / "trace.json").read_text().replace('"fragment-send"', json.dumps(HOSTILE.replace("\ud800", "")))
    (run / "trace.json").write_text(trace)
    page = Reader(write_report(run))
    assert page.page.count("<script") == 6, "plots, curves and merges, the data of both, and uPlot"
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text["h1"].startswith("<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\ufffd\ufffd]]>")
    ET.fromstring(timeline_svg(run))


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = Reader(write_report(tmp_path))
    assert told(page) == {*TITLES, "failures"}
    assert not {*TITLES, "headline"} & {*page.ids}
    assert "There is no summary" in page.page
    for name in FILES:
        assert f"{name} is not there." in page.page


TABLE = {
    "files": 2,
    "bytes": 1000,
    "documents": 7,
    "tokens": 400,
    "tokens_by_kind": {".jsonl": 400},
    "epochs": 3.25,
    "pad_share": 0.125,
    "beginnings": ["<script>alert(1)</script> and words"],
    "left_out": [{"reason": "hidden", "files": 4, "first": ["/home/me/.a", "/home/me/.b", "/home/me/.c"]}],
}


def test_of_each_site_the_page_has_its_data_by_model(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=40)
    told = {"site": "<alpha>", "learners": [0], "digest": "ab" * 16, "bytes": 4000, "data_tokens": 1000, "told": True}
    told |= {"tokens": 640, "epochs": 0.64, "global_first": 5.5, "global_now": 3.0, "own_now": 2.75, "is_final": True}
    told |= {"global_last": 2.0, "own_last": 1.75, "same_data": ["beta"], "global_metrics": {"loss/<set>": 1.0}}
    kept = {"site": "beta", "told": False, "global_last": None, "tokens": 64, "data_tokens": 1000, "same_data": []}
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "sites": [told, kept]}))
    page = Reader(write_report(run))
    assert page.figures["site-<alpha>-global_first"] == 5.5
    assert page.figures["site-<alpha>-own_last"] == 1.75
    assert page.figures["site-<alpha>-gap"] == -0.25
    assert page.figures["site-beta-tokens"] == 64
    assert not [name for name in page.figures if name.startswith("site-beta-g")]
    assert page.page.count(NOT_TOLD) == 6
    assert "sites" in page.ids
    (run / "summary.json").write_text(json.dumps({**summary, "sites": []}))
    assert "sites" not in Reader(write_report(run)).ids


def test_the_table_of_the_data_is_on_the_page(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    write_json(run / "data.json", TABLE)
    page = Reader(write_report(run))
    assert "data" in page.ids
    for text in ("3.25 passes", "pads: 12.5 %", "&lt;script&gt;alert(1)", ".a, .b, .c, and 1 more"):
        assert text in page.page
    assert "/home/me" not in page.page
    assert 'class="left wrap odd"' not in page.page
    write_json(run / "data.json", {**TABLE, "epochs": 100.5})
    assert Reader(write_report(run)).page.count('class="left wrap odd"') == 1
    chats = {"predicted": 123, "documents_by_form": {"chats": 7}, "answers_by": ["prefixes"], "learned": ["<White.>"]}
    write_json(run / "data.json", {**TABLE, **chats, "chats_without_stop": 2, "ends_with": ["<|end|>"]})
    page = Reader(write_report(run))
    assert page.page.count('class="left wrap odd"') == 1
    for text in ("123 of ", " tokens: 7 chats", "what an answer adds", "&lt;White.&gt;"):
        assert text in page.page
    assert "&lt;|end|&gt;" not in page.page, "it stands behind no chat"
    write_json(run / "data.json", {**TABLE, "documents_by_form": {"chats": 6, "texts": 1}, "ends_with": ["<|end|>"]})
    assert "&lt;|end|&gt;" in Reader(write_report(run)).page


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"files": "two"}', b"\xff\x00"])
def test_a_damaged_table_of_the_data_is_named(tmp_path: Path, damage: bytes) -> None:
    run = build(tmp_path / "run", steps=60)
    (run / "data.json").write_bytes(damage)
    page = Reader(write_report(run))
    assert told(page) == {*TITLES, "failures"}
    assert "data" not in page.ids
    assert "data.json cannot be read" in page.page


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "binary", "wrong"])
def test_a_damaged_file_costs_only_what_it_holds(tmp_path: Path, name: str, damage: str) -> None:
    run = build(tmp_path / "run", steps=60)
    path = run / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        wrong = {
            "empty": b"",
            "torn": data[: 2 * len(data) // 3],
            "binary": b"\xff\x00\x93" * 99,
            "wrong": b"[[1], {}]",
        }
        path.write_bytes(wrong[damage])
    page = Reader(write_report(run))
    assert told(page) == {*TITLES, "failures"}
    if damage in ("missing", "binary") and name != "config.toml":
        assert f"{name}" in page.page


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.sampled_from(["", "learner/0", "<b>"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["learner", "name", "to", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "small", steps=40, learners=2, fragments=2)


@pytest.mark.slow
@given(data=st.data())
def test_any_value_in_any_place_gives_a_page(
    small: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("run")
    name = data.draw(st.sampled_from([file for file in FILES if file.endswith(("json", "jsonl"))]))
    for file in FILES:
        (run / file).write_bytes((small / file).read_bytes())
    lines = name.endswith("l")
    text = (run / name).read_text()
    values = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    target = data.draw(st.sampled_from(values)) if values else {}
    while (
        isinstance(inner := target[key := data.draw(_key(target))], dict | list) and inner and data.draw(st.booleans())
    ):
        target = inner
    target[key] = data.draw(JSON)
    (run / name).write_text("\n".join(json.dumps(value) for value in values))
    Reader(write_report(run))


def _key(value: dict | list) -> st.SearchStrategy:
    return st.sampled_from(sorted(value)) if isinstance(value, dict) else st.integers(0, len(value) - 1)


# -- other runs --------------------------------------------------------------------------------------------------------


def test_a_program_without_syncer(tmp_path: Path) -> None:
    run = build(tmp_path / "run", program="gossip.py:build", steps=80)
    (run / "merges.jsonl").write_text("")
    summary = json.loads((run / "summary.json").read_text())
    nothing = dict.fromkeys(("syncer_shards", "fragments", "outer_steps", "contributors_mean", "merged_share"), 0)
    write_json(run / "summary.json", {**summary, **nothing})
    trace = json.loads((run / "trace.json").read_text())
    pid = next(event["pid"] for event in trace["traceEvents"] if event.get("args", {}).get("name") == "syncer/0")
    write_json(run / "trace.json", {"traceEvents": [event for event in trace["traceEvents"] if event["pid"] != pid]})
    page = Reader(write_report(run))
    assert "no fragment was merged" in page.page
    assert "No fragment was merged: the program has no outer steps" in page.page
    assert "The program merges no fragments" in page.page
    assert "all learners together, for an item or a credit" in page.page
    assert "not yet sent when the run ended" not in page.page
    assert "syncer 0" not in page.page


def test_one_learner(tmp_path: Path) -> None:
    page = Reader(write_report(build(tmp_path / "run", learners=1, steps=80)))
    assert "1 learner ·" in page.page
    assert "one learner alone: data-parallel would have sent nothing" in page.page


def test_a_run_that_diverged(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=120)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for index, row in enumerate(rows):
        row["loss"] = None if index % 3 else float("nan")
    write_lines(run / "metrics.jsonl", rows)
    write_lines(run / "evaluations.jsonl", [{"time": 1.0, "tokens": 5, "eval_loss": None, "kind": "initial"}])
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", {**summary, "outcome": "failed", "eval_loss_final": float("nan")})
    page = Reader(write_report(run))
    assert f"{whole(len(rows))} of {whole(len(rows))} reports had no finite loss." in page.page
    assert "eval_loss_final is not known" in page.page
    assert "nan" not in re.sub(r"<(style|script).*?</\1>", "", page.page, flags=re.S).lower()


@pytest.mark.soak
def test_many_learners_and_a_long_trace_stay_small(tmp_path: Path) -> None:
    run = build(tmp_path / "run", learners=64, fragments=24, steps=800, step_seconds=0.2)
    assert len(json.loads((run / "trace.json").read_text())["traceEvents"]) > 150_000
    page = Reader(write_report(run))
    assert len(page.page.encode()) < SIZE_MAX_BYTES
    assert "The first 8 of 64 learners are drawn." in page.page


@pytest.mark.long
@pytest.mark.slow
def test_many_merges_share_cells(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    row = {"kind": "merge", "version": [1, 1], "voters": [0, 1, 2], "left_out": [3], "reason": "the grace window ended"}
    rows = [{"time": i / 100, "fragment": i % 8, "round": i, **row} for i in range(40_000)]
    write_lines(run / "merges.jsonl", rows)
    page = Reader(write_report(run))
    assert len(page.page.encode()) < SIZE_MAX_BYTES
    assert "3.00 of 4 contributors on average; left out: learner 3 " in page.page


# -- the timeline ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_window_shows_whole_rounds_and_single_steps(folder: Path) -> None:
    record = load(folder)
    window = choose_window(record)
    assert window is not None
    assert 0 < window.begin < window.end < record.wall_seconds
    assert visible_rounds(record, window)
    assert (window.begin + window.end) / 2 == pytest.approx(record.wall_seconds / 2, rel=0.2)
    chart = ET.fromstring(timeline_svg(folder))
    boxes = [item for item in chart.iter() if item.get("class", "").startswith("step ")]
    steps = [len(record.timeline.between(f"learner/{slot}", "inner-step", *window)) for slot in range(4)]
    assert len(boxes) == sum(steps)
    assert all(20 <= count <= 60 for count in steps)


def test_the_drawing_is_to_scale(folder: Path) -> None:
    record, window = load(folder), choose_window(load(folder))
    chart = ET.fromstring(timeline_svg(folder))
    boxes = [item for item in chart.iter() if re.fullmatch(r"step( odd)? c0", item.get("class", ""))]
    firings = record.timeline.between("learner/0", "inner-step", *window)
    widths = [float(box.get("width", 0)) for box in boxes]
    scale = widths[3] / (firings[3].ended - firings[3].begun)
    assert widths == pytest.approx([scale * (firing.ended - firing.begun) for firing in firings], abs=0.01)
    assert longest_pause(record.timeline, "learner/0", window) == pytest.approx(4e-5, abs=1e-6)


def test_a_trace_on_another_zero_is_moved_to_the_zero_of_the_run(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=150)
    expected = timeline_svg(run)
    trace = json.loads((run / "trace.json").read_text())
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += 7_654_321.0
    write_json(run / "trace.json", trace)
    assert _near(timeline_svg(run), expected)
    # The oldest spans are gone, so the first step that is left is not the zero.
    middle = 7_654_321.0 + 2e6
    kept = [event for event in trace["traceEvents"] if event.get("ts", middle) >= middle]
    write_json(run / "trace.json", {"traceEvents": kept})
    begun = load(run).timeline.firings["learner/0", "inner-step"][0].begun
    assert begun == pytest.approx(2.0, abs=0.05)


def test_merges_that_were_not_written_down_do_not_mislead(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=300)
    merges = (run / "merges.jsonl").read_text().splitlines(keepends=True)
    kept = [line for index, line in enumerate(merges) if index % 7 not in (1, 4, 5)]
    (run / "merges.jsonl").write_text("".join(kept))
    trace = json.loads((run / "trace.json").read_text())
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += 1_234_567.0
    write_json(run / "trace.json", trace)
    begun = load(run).timeline.firings["learner/0", "inner-step"][0].begun
    assert begun == pytest.approx(0.0, abs=1e-4)
    told = f"Drawn are {whole(len(kept))} of {whole(len(merges))}"
    assert told in Reader(write_report(run)).page


def test_whose_shares_were_bounded_is_told_with_when(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    rows = [json.loads(line) for line in (run / "merges.jsonl").read_text().splitlines()]
    for row in rows[2:5]:
        row["capped"] = [["alpha", 0.5 + row["round"] / 100, 0.25]]
    write_lines(run / "merges.jsonl", rows)
    (told,) = (sentence for sentence in Reader(write_report(run)).page.split(". ") if "its largest share" in sentence)
    assert "alpha had its largest share of the weight, 25.0 %, in 3 merges" in " ".join(told.split())


def _near(one: str, other: str) -> bool:
    """Equal but for the last digits of numbers."""
    number = re.compile(r"-?\d+\.?\d*")
    same_text = number.sub("#", one) == number.sub("#", other)
    pairs = zip(number.findall(one), number.findall(other), strict=True)
    return same_text and all(abs(float(a) - float(b)) <= 0.11 for a, b in pairs)


def test_no_trace_is_no_timeline(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    (run / "trace.json").unlink()
    with pytest.raises(ValueError, match=r"expected a trace\.json with inner steps"):
        timeline_svg(run)
    assert "there is no timeline" in Reader(write_report(run)).page


def test_a_learner_that_joined_is_counted(tmp_path: Path) -> None:
    run = build(tmp_path / "run", learners=2, steps=80)
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", {**summary, "learners": 1})
    page = Reader(write_report(run))
    assert page.figures["learners"] == 2
    assert "2 learners ·" in page.page
    assert "one learner alone" not in page.page


def test_what_fires_before_the_first_step_does_not_move_the_window(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=150)
    expected = choose_window(load(run))
    trace = json.loads((run / "trace.json").read_text())
    step = next(event for event in trace["traceEvents"] if event["name"] == "inner-step")
    trace["traceEvents"].append({**step, "ts": -9e6, "dur": 10})
    write_json(run / "trace.json", trace)
    assert load(run).timeline.firings["learner/0", "inner-step"][0].begun == pytest.approx(-9.0, abs=0.1)
    assert choose_window(load(run)) == pytest.approx(expected, abs=1e-3)


def test_nodes_that_only_hold_have_no_lane(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=150)
    (run / "trace.json").write_text((run / "trace.json").read_text().replace('"evaluate"', '"hold-evaluator"'))
    assert any(node == "hold-evaluator" for _, node in load(run).timeline.firings)
    assert "hold-evaluator" not in timeline_svg(run)


def test_an_installation_has_every_file_of_the_page() -> None:
    config = ConfigParser()
    config.read(Path(__file__).parents[4] / "setup.cfg")
    patterns = config["options.package_data"]["isthmus.programs.wings.report"].split(", ")
    folder = Path(str(files("isthmus.programs.wings.report")))
    needed = [
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert len(needed) > 10
    assert [path for path in needed if not any(path.match(pattern) for pattern in patterns)] == []


def test_the_command_writes_report_and_drawings(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    done = CliRunner().invoke(app, ["report", str(run), "--pictures", str(tmp_path / "drawings")])
    assert done.exit_code == 0, done.output
    assert (run / "report.html").stat().st_size > 10_000
    ET.fromstring((tmp_path / "drawings" / "timeline.svg").read_text())
    assert not (tmp_path / "drawings" / "absence.svg").exists()
    assert "not drawn: drawing who was away" in done.output
