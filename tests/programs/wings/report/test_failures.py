"""The report of a run in which hosts died: who was away, what the others did meanwhile, what was lost."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.programs.engine.results.reading import read_absences
from isthmus.programs.engine.results.record import RunRecord
from isthmus.programs.wings.report.charts_absence import draw_absence
from isthmus.programs.wings.report.charts_lines import charts
from isthmus.programs.wings.report.charts_merges import draw_merges
from isthmus.programs.wings.report.charts_timeline import TimeWindow, close_ups, steps_between, windows
from isthmus.programs.wings.report.page import absence_svg, load, page, write_report
from isthmus.runtime.cores.membership_messages import HeardAgain, KeepsUp, Pace, SlowHost
from isthmus.runtime.supervision.incidents import (
    BodyRaised,
    Ended,
    Exited,
    GivenUp,
    Joined,
    MachineTaken,
    NumbersLost,
    Raised,
    Restarted,
)
from tests.programs.engine.results import made_up_deaths
from tests.programs.engine.results.event_lines import KILLED, silent
from tests.programs.engine.results.made_up_run import build, write_json, write_lines

SILENT = silent(1.8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learner 2 dies and comes back; later the evaluator, then the syncer; learner 1 is paused; hosts close."""
    run = build(tmp_path_factory.mktemp("runs") / "run", steps=1200, away=2)
    gone, back = made_up_deaths.kill_learner(run, 2)
    made_up_deaths.kill_evaluator(run, 18.0, 21.5)
    made_up_deaths.kill_syncer(run, 24.0, 25.0)
    made_up_deaths.apart(
        run,
        (gone + 0.05, "learner/2", 1, KILLED),
        (gone + 0.06, "learner/2", 2, Restarted()),
        (18.0, "evaluator/0", 1, KILLED),
        (18.01, "evaluator/0", 2, Restarted()),
        (24.0, "syncer/0", 1, KILLED),
        (24.01, "syncer/0", 2, Restarted()),
        (24.8, "learner/1", 1, SILENT),
        (26.0, "learner/1", 1, HeardAgain(3_000_000_000)),
        (31.0, "learner/0", 1, SILENT),
    )
    assert back - gone > 2
    return run


def words(text: str) -> str:
    """Markup as somebody reads it."""
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def failures_section(record: RunRecord) -> str:
    """That part of the page."""
    return page(record).partition('<section id="failures"')[2].partition("</section>")[0]


def test_absences_are_placed_on_the_time_of_the_run(folder: Path) -> None:
    record = load(folder)
    assert [(item.host, item.kind) for item in record.absences] == [
        ("learner/2", "gone"),
        ("evaluator/0", "gone"),
        ("learner/1", "silent"),
        ("syncer/0", "gone"),
    ]
    learner, evaluator, paused, syncer = record.absences
    first = next(report for report in record.reports if report.incarnation == 2)
    assert learner.ended == first.time
    assert (evaluator.begun, syncer.begun) == (pytest.approx(18.0), pytest.approx(24.0))
    assert evaluator.ended == next(item.time for item in record.evaluations if item.time > 19)
    assert syncer.ended == next(item.time for item in record.merges if item.version == [2, item.version[1]])
    assert (paused.begun, paused.ended) == (pytest.approx(23.0), pytest.approx(26.0))
    assert read_absences(folder) == record.absences
    assert not record.problems


def test_the_table_says_what_happened_and_what_was_lost(folder: Path) -> None:
    section = words(failures_section(load(folder)))
    for told in (
        "was killed by signal SIGKILL",
        "as life 2",
        "1,234 tokens; its optimizer&#39;s moments",
        "under epoch 2: it has the newest fragments that hosts held, and what the recorder keeps of their momentum",
        "answers that were under way; its momentum, where the recorder has none that fits",
        "evaluations that were due meanwhile",
        "silent (suspect): no heartbeat for 1.80 s",
        "heard again at 26.0 s",
    ):
        assert told in section, told
    assert "learner 0 was away" not in section


def test_a_killed_life_is_drawn_from_its_reports_and_the_others_from_their_trace(folder: Path) -> None:
    record = load(folder)
    (window, absences), *_ = windows(record)
    assert [item.host for item in absences] == ["learner/2"]
    steps = steps_between(record, window)
    (told,) = steps[2].reported
    assert told == (window.begin, pytest.approx(absences[0].begun))
    assert all(firing.begun >= absences[0].begun for firing in steps[2].traced)
    for other in (steps[0], steps[1], steps[3]):
        assert not other.reported
        assert other.pause_max == pytest.approx(4e-5, abs=1e-6)
    chart = ET.fromstring(absence_svg(folder))
    hatched = [item for item in chart.iter() if item.get("fill", "").startswith("url(#told-")]
    assert len(hatched) == 1
    assert len([item for item in chart.iter() if item.get("class") == "cross"]) == 1
    frame = next(item for item in chart.iter() if item.get("class") == "absent")
    scale = float(hatched[0].get("width")) / (told.end - told.begin)
    assert float(frame.get("width")) == pytest.approx(scale * absences[0].seconds, abs=0.02)
    assert "was killed by signal SIGKILL, away for" in "".join(chart.itertext())


@pytest.mark.slow
def test_the_numbers_of_the_others_are_those_of_the_trace(folder: Path) -> None:
    record = load(folder)
    absence = record.absences[0]
    counts = [
        len(record.timeline.between(f"learner/{slot}", "inner-step", absence.begun, absence.ended))
        for slot in (0, 1, 3)
    ]
    section = words(failures_section(record))
    assert f"learners 0, 1 and 3 made {sum(counts)} inner steps" in section
    assert re.search(r"The longest pause between two of their steps was 40\.0 us\.", section)


def test_close_ups_show_single_steps_around_death_and_return(folder: Path) -> None:
    record = load(folder)
    (goes, said), (back, then) = close_ups(record, record.absences)
    assert (said, then) == ("learner 2 goes", "learner 2 is back")
    assert (goes.begin + goes.end) / 2 == pytest.approx(record.absences[0].begun)
    assert (back.begin + back.end) / 2 == pytest.approx(record.absences[0].ended)
    chart = ET.fromstring(draw_absence(record, goes, record.absences, 530))
    shades = [item for item in chart.iter() if re.fullmatch(r"step( odd)? c0", item.get("class", ""))]
    boxes = sum(item.get("d", "").count("z") for item in shades)
    assert len(shades) == 2
    assert boxes == len(record.timeline.between("learner/0", "inner-step", *goes))


@pytest.mark.slow
def test_absences_that_meet_share_a_picture(folder: Path) -> None:
    found = windows(load(folder))
    hosts = [[item.host for item in absences] for _, absences in found]
    assert hosts == [["learner/2"], ["evaluator/0", "learner/1", "syncer/0"]]
    assert all(0 <= window.begin < window.end <= load(folder).wall_seconds for window, _ in found)


def test_the_curve_of_evaluations_has_a_gap(folder: Path) -> None:
    chart = charts(load(folder), None)[0]
    curve, (band,) = chart.curves[-1], chart.bands
    assert curve.values.count(None) == 1
    gap = curve.values.index(None)
    for axis in ("tokens", "time"):
        places, (begin, end) = getattr(curve, axis), getattr(band, axis)
        assert places[gap - 1] <= begin < end
        assert places[gap - 1] < places[gap] < places[gap + 1]
    assert curve.time[gap + 1] == pytest.approx(band.time[1], abs=1e-3)


def test_merges_and_pace_show_the_deaths(folder: Path) -> None:
    record = load(folder)
    merges = draw_merges(record)
    assert merges.count('class="absent"') == 8  # In the row of every fragment.
    assert "recover" not in merges
    assert "the only member voted" not in merges
    (away,) = charts(record, None)[-1].bands
    assert (away.name, away.time) == ("learner 2 away", (record.absences[0].begun, record.absences[0].ended))


def test_a_host_that_did_not_come_back_is_said_to(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=300)
    made_up_deaths.apart(run, (4.0, "evaluator/0", 1, Ended(Exited(1))))
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", {**summary, "outcome": "failed", "error": "evaluator/0 <ended> 6 times"})
    rows = [row for row in made_up_deaths.read_lines(run / "evaluations.jsonl") if row["time"] < 4]
    made_up_deaths.write_lines(run / "evaluations.jsonl", rows)
    written = write_report(run).read_text()
    assert "it did not come back" in written
    assert written.index(">evaluator/0 &lt;ended&gt; 6 times</p>") < written.index("<main>")
    assert "and did not come back" in written


def test_where_every_host_was_killed_the_trace_is_of_their_last_lives_and_says_little(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=300)
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    last = {event["pid"]: event for event in events if event["name"] == "inner-step"}
    write_json(run / "trace.json", {"traceEvents": [*(each for each in events if each["ph"] == "M"), *last.values()]})
    record = load(run)
    assert record.timeline is not None
    begun = sorted(step.begun for step in record.timeline.steps_between(0.0, 1e9))
    assert begun == pytest.approx(sorted(event["ts"] / 1e6 for event in last.values())), "on the time of the run"
    assert 'id="failures"' in write_report(run).read_text()
    write_lines(run / "merges.jsonl", [{**row, "time": 1.0} for row in made_up_deaths.read_lines(run / "merges.jsonl")])
    assert "<strong>What happened at once</strong>: There is no trace" in write_report(run).read_text()


@pytest.mark.slow
def test_a_host_that_goes_again_and_again_has_one_row(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=300)
    made_up_deaths.apart(run, (1.0, "learner/1", 1, Ended(Exited(1))))
    record = load(run)
    (absence,) = record.absences
    absences = tuple(replace(absence, begun=begun, ended=begun + 0.5) for begun in (1.0, 2.0, 3.0, 4.0))
    table = failures_section(replace(record, absences=absences)).partition("<tbody>")[2]
    assert table.count("<tr>") == 1
    assert "4 times" in table
    assert failures_section(replace(record, absences=absences[:2])).partition("<tbody>")[2].count("<tr>") == 2


@pytest.mark.slow
def test_a_close_up_without_any_traced_step_is_left_out(folder: Path) -> None:
    record = load(folder)
    assert record.timeline is not None
    steps = {place: spans for place, spans in record.timeline.firings.items() if place[1] != "inner-step"}
    few = {("learner/0", "inner-step"): record.timeline.firings["learner/0", "inner-step"][:3]}
    section = failures_section(replace(record, timeline=replace(record.timeline, firings={**steps, **few})))
    assert "Close up" in failures_section(record)
    assert "Close up" not in section
    assert "learner 2 away" not in section


def test_nobody_died(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    assert "All hosts shared one process" in failures_section(load(run))
    with pytest.raises(ValueError, match="expected an absence"):
        absence_svg(run)
    made_up_deaths.apart(run)
    assert "No host ended before its time" in failures_section(load(run))
    assert 'class="absent"' not in write_report(run).read_text()


def test_without_a_summary_times_count_from_the_submission(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.name != "summary.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    record = load(tmp_path)
    assert record.absences[0].begun == pytest.approx(load(folder).absences[0].begun + made_up_deaths.START_SECONDS)
    assert not windows(record)
    section = failures_section(record)
    assert "times count from the submission" in section
    assert "did not come back" not in section


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\x00", b"[1]\n{}\n", b'{"at": 1e999, "host": "x", "what": 3}\n'])
@pytest.mark.parametrize("name", ["events.jsonl", "spec.json"])
def test_damaged_files_cost_only_what_they_hold(tmp_path: Path, name: str, data: bytes) -> None:
    run = build(tmp_path / "run", steps=60)
    made_up_deaths.apart(run, (0.5, "learner/0", 1, KILLED))
    (run / name).write_bytes(data)
    assert 'id="failures"' in write_report(run).read_text()


def test_what_hosts_say_is_only_text(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=200)
    hostile = "<script>alert(1)</script>"
    host = "<script>alert(0)/0"
    made_up_deaths.apart(
        run,
        (1.0, host, 1, BodyRaised(Raised("data", "ValueError", hostile, "", 0))),
        (1.0, host, 1, KILLED),
        (2.0, "evaluator/0", 1, KILLED),
        (3.0, "learner/1", 1, Joined(hostile)),
    )
    written = write_report(run).read_text()
    assert "<script>alert" not in written
    for told in (
        "&lt;script&gt;alert(0) 0",
        "failed: ValueError: &lt;script&gt;alert(1)",
        "machine &lt;script&gt;alert(1)",
    ):
        assert told in written, told


def test_what_is_no_absence_is_told_for_itself(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    slow, taken = Pace(410e6, 42e6, 3), Ended(MachineTaken("gamma", "expelled"))
    made_up_deaths.apart(
        run,
        (0.1, "learner/3", 1, Joined("gamma")),
        (0.2, "learner/2", 1, SlowHost(slow)),
        (0.3, "learner/2", 1, KeepsUp(slow)),
        (0.4, "daemon/0", 1, NumbersLost(1_000_001)),
        (0.5, "learner/3", 1, taken),
    )
    section = words(failures_section(load(run)))
    for told in (
        "Machines came or went, which is no failure:",
        "at 100 ms learner 3 joined with its machine gamma",
        "at 500 ms learner 3 was expelled with its machine gamma; the others go on",
        "Learners were slow, which is no failure:",
        "at 200 ms learner 2 is slow: 410 ms a step, the others 42.0 ms",
        "at 300 ms learner 2 keeps up again: 410 ms a step, the others 42.0 ms",
        "The daemon lost its ledger, which is no failure:",
        "at 400 ms the daemon lost its ledger, or a part of it: lives are numbered from 1000001 on",
        "No host ended before its time",
    ):
        assert told in section, told


def test_a_host_that_was_given_up_is_said_to_be(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    crash = Ended(Exited(3))
    made_up_deaths.apart(
        run,
        (0.3, "learner/3", 1, crash),
        (0.4, "learner/3", 2, Restarted()),
        (0.5, "learner/3", 2, crash),
        (0.6, "learner/3", 2, GivenUp(6, crash)),
    )
    section = words(failures_section(load(run)))
    assert "Hosts were given up, and the run went on without them:" in section
    assert "at 600 ms learner 3 was given up after 6 lives; the others go on" in section
    assert "exited with status 3; 2 lives in a row" in section
    assert "it did not come back" in section


def test_lines_that_are_no_incidents_are_counted(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=60)
    made_up_deaths.apart(run, (0.5, "learner/0", 1, KILLED))
    odd = [
        {"at": 1, "host": "learner/0", "incarnation": 1, "kind": "new since then"},
        {"at": 1, "host": "learner/0", "incarnation": 1, "kind": "restarted", "by": "somebody"},
        {"at": int("9" * 400), "host": "learner/0", "incarnation": 1, "kind": "restarted"},
        {"host": "learner/0", "incarnation": 1, "kind": "restarted"},
    ]
    with (run / "events.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in odd))
    record = load(run)
    assert [item.host for item in record.absences] == ["learner/0"]
    assert record.problems == ["events.jsonl: 4 of 5 lines cannot be read and are left out."]


@pytest.mark.long
@pytest.mark.slow
def test_many_deaths_stay_small(tmp_path: Path) -> None:
    run = build(tmp_path / "run", learners=8, steps=1500)
    often = [(at, "learner/1", life, KILLED) for life, at in enumerate(range(1, 30), 1)]
    starts = [(at + 0.5, "learner/1", life + 1, Restarted()) for at, _, life, _ in often]
    made_up_deaths.apart(run, *sorted([*often, *starts]))
    assert len(write_report(run).read_bytes()) < 2_000_000


@pytest.mark.slow
def test_an_empty_window_is_no_accident(folder: Path) -> None:
    record = load(folder)
    chart = ET.fromstring(draw_absence(record, TimeWindow(5.0, 6.0), [], 530))
    assert not [item for item in chart.iter() if item.get("class") == "absent"]


@pytest.mark.slow
def test_in_a_program_whose_learners_wait_nobody_is_said_to_go_on_without_them(tmp_path: Path) -> None:
    run = build(tmp_path / "run", steps=600, away=2)
    gone, _ = made_up_deaths.kill_learner(run, 2)
    made_up_deaths.apart(run, (gone, "learner/2", 1, KILLED), (gone, "learner/2", 2, Restarted()))
    step = {"name": "inner-step", "role": "learner", "firing": "AllOf(batch, permit)", "mode": "waiting"}
    merge = {"name": "merge", "role": "syncer", "firing": "Quorum(answer, round)", "blocked_by": ["inner-step"]}
    nodes = [{**step, "blocked_by": ["inner-step", "merge"]}, merge]
    write_json(run / "graph.json", {"program": "diloco", "nodes": nodes})
    section = words(failures_section(load(run)))
    assert "the others no longer wait for it" in section
    assert "go on without it" not in section
    assert "its optimizer&#39;s moments" in section
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", {**summary, "outer_steps": 0})
    assert "moments" not in words(failures_section(load(run)))
