"""Whoever watches a run reads figures that are right, on a terminal and in a log file."""

from __future__ import annotations

import io
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from isthmus.programs.command import live
from isthmus.programs.request import Request

STATUS = {
    "phase": "training",
    "time": 20.0,
    "tokens": 300_000,
    "tokens_budget": 1_000_000,
    "outer_steps": 120,
    "contributors_mean": 3.94,
    "eval_loss": 2.5,
    "eval_loss_initial": 5.545,
    "learners": {
        1: {"phase": "stepping", "step": 1234, "tokens": 150_000, "loss": 2.25, "staleness": 1, "sick": True},
        0: {
            "phase": "stepping",
            "step": 1240,
            "tokens": 150_000,
            "loss": 2.75,
            "staleness": 0,
            "bytes_sent": 5_000_000,
            "bytes_received": 7_000_000,
            "step_ms": 12.5,
            "sick": False,
        },
    },
    "pacing": {"syncer/0/pacer": {"interval": 31, "overlap": 2}},
}
EARLY = {"phase": "training", "time": 10.0, "tokens": 100_000}
SUMMARY = {
    "outcome": "done",
    "learners": 4,
    "tokens_total": 1_000_448,
    "wall_seconds": 83.0,
    "eval_loss_initial": 5.545,
    "eval_loss_final": 1.625,
    "outer_steps": 400,
    "merged_share": 0.941,
    "contributors_mean": 3.94,
    "goodput": 0.9912,
    "bytes_sent_total": 123_000_000,
    "per_learner": [{"stall_seconds": 0.25}, {"stall_seconds": 0.5}],
}


def request(folder: Path) -> Request:
    """A request, as far as a view looks at it."""
    job = SimpleNamespace(learners=4, tokens=1_000_000, settings=MappingProxyType({"interval": 24, "overlap": 2}))
    return cast(Request, SimpleNamespace(name="ring", job=job, run_dir=folder / "runs" / "a"))


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.chdir(tmp_path)
    return request(tmp_path)


def plain() -> Console:
    return Console(file=io.StringIO(), width=20, highlight=False)


def text_of(console: Console) -> str:
    return cast(io.StringIO, console.file).getvalue()


def test_a_line_says_how_far_how_fast_and_how_well(watched: Request) -> None:
    console = plain()
    now = [0.0]
    lines = live.Lines(live.Figures(watched), console, now=lambda: now[0])
    lines.update(dict(EARLY))
    now[0] = 6.0
    lines.update(dict(STATUS))
    text = text_of(console)
    assert text.splitlines() == [
        "ring: the run folder is runs/a",
        "training, 10 %, 100 k of 1.00 M tokens",
        "training, 30 %, 300 k of 1.00 M tokens, 20.0 k tokens/s, 35.0 s left, loss 2.500, eval loss 5.545 -> 2.500, "
        "120 outer steps by 3.9 of 4 learners, interval raised to 31 steps, learner 1 is sick",
    ]
    assert text.isascii()


def test_lines_come_every_few_seconds_and_when_a_phase_begins(watched: Request) -> None:
    console = plain()
    now = [0.0]
    lines = live.Lines(live.Figures(watched), console, now=lambda: now[0])
    for at, phase in (
        (0, "starting"),
        (1, "starting"),
        (2, "training"),
        (6, "training"),
        (7, "training"),
        (8, "final"),
    ):
        now[0] = float(at)
        lines.update({"phase": phase, "tokens": 1_000})
    said = [line.partition(",")[0] for line in text_of(console).splitlines()[1:]]
    assert said == ["starting: compiling the first step", "training", "training", "merging the last fragments"]


def test_training_has_begun_when_there_are_tokens(watched: Request) -> None:
    console = plain()
    lines = live.Lines(live.Figures(watched), console, now=lambda: 0.0)
    lines.update({"phase": "training", "tokens": 0})
    lines.update({"phase": "training", "tokens": 8})
    assert [line.split(",")[0].split(":")[0] for line in text_of(console).splitlines()[1:]] == ["starting", "training"]


def test_a_status_without_anything_is_shown(watched: Request) -> None:
    for kind in (live.Lines, live.LiveTable, live.LastLine):
        console = plain()
        view = kind(live.Figures(watched), console)
        view.update({})
        view.end()
        assert ("starting" in text_of(console)) == (kind is not live.LastLine)


ENDING = """\
done       1.00 M tokens in 83.0 s by 4 learners
eval loss  5.545 -> 1.625
merged     94.1 % of the tokens, in 400 outer steps by 3.94 learners each
goodput    99.1 %; the learners waited 750 ms in all
sent       123 MB
report     runs/a/report.html
"""


def test_the_end_is_told(watched: Request) -> None:
    console = plain()
    lines = live.Lines(live.Figures(watched), console)
    lines.close(dict(SUMMARY))
    assert text_of(console) == ENDING


def test_a_run_without_a_syncer_tells_of_no_merges(watched: Request) -> None:
    rows = dict(live.Figures(watched).ending({**SUMMARY, "outer_steps": 0, "eval_loss_initial": None}))
    assert "merged" not in rows
    assert rows["eval loss"] == "- -> 1.625"


def test_quiet_is_one_line_at_the_end(watched: Request) -> None:
    console = plain()
    with live.watching(watched, quiet=True, console=console) as view:
        view.update(dict(STATUS))
        view.close(dict(SUMMARY))
    assert text_of(console) == "ring done, eval loss 5.545 -> 1.625, runs/a\n"


def test_the_table_has_a_row_for_each_learner(watched: Request) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None, highlight=False)
    with live.watching(watched, quiet=False, console=console) as view:
        assert isinstance(view, live.LiveTable)
        view.update(dict(EARLY))
        view.update(dict(STATUS))
        view.close(dict(SUMMARY))
    text = text_of(console)
    shown = text[text.rindex("ring  training") :]
    for words in ("30 %", "300 k of 1.00 M tokens", "20.0 k tokens/s", "35.0 s left", "eval loss 5.545 -> 2.500"):
        assert words in shown
    rows = [line.split() for line in shown.splitlines() if "stepping" in line or "sick" in line]
    assert rows[0] == ["0", "stepping", "1", "240", "150", "k", "2.750", "12.5", "ms", "0", "5.00", "MB", "7.00", "MB"]
    assert rows[1][:4] == ["1", "sick:", "not", "finite"]
    assert "eval loss  5.545 -> 1.625" in shown


def test_the_terminal_is_given_back_when_a_run_fails(watched: Request) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)

    def fail(view: Any) -> None:
        view.update(dict(STATUS))
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"), live.watching(watched, quiet=False, console=console) as view:
        fail(view)
    assert text_of(console).endswith("\x1b[?25h")


def test_output_that_is_no_terminal_gets_lines(watched: Request) -> None:
    with live.watching(watched, quiet=False, console=plain()) as view:
        assert isinstance(view, live.Lines)
