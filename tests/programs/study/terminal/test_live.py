"""Whoever watches a run reads figures that are right, on a terminal and in a log file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest
from rich.console import Console

from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import evaluated_at, times
from isthmus.programs.engine.run.in_processes import Resumption
from isthmus.programs.reading.token_progress import MakingProgress
from isthmus.programs.study.terminal import figures, live
from isthmus.programs.study.terminal.figures import evaluated, resumption_words
from tests.programs.engine.results import event_lines

STATUS = {
    "phase": "training",
    "time": 20.0,
    "tokens": 300_000,
    "tokens_budget": 1_000_000,
    "outer_steps": 120,
    "contributors_mean": 3.94,
    "merged_share": 0.9312,
    "goodput": 0.9712,
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
    "pacing": {
        "syncer/0/pacer": {"interval": 31, "overlap": 2},
        "syncer/1/pacer": {"interval": "often", "overlap": [3]},
    },
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
    "bytes_home_total": 23_000_000,
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
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: now[0])
    lines.update(dict(EARLY))
    now[0] = 6.0
    lines.update(dict(STATUS))
    text = text_of(console)
    assert text.splitlines() == [
        "ring: the run folder is runs/a",
        "training, 10 %, 100 k of 1.00 M tokens",
        "training, 30 %, 300 k of 1.00 M tokens, 20.0 k tokens/s, 35.0 s left, loss 2.500, eval loss 5.545 -> 2.500, "
        "120 outer steps by 3.9 of 4 learners, merged 93.1 %, goodput 97.1 %, interval raised to 31 steps",
    ]
    assert text.isascii()


def test_a_learner_whose_loss_was_not_finite_is_told_once_a_life_and_step(watched: Request) -> None:
    console = plain()
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: 0.0)
    well, first = {"incarnation": 1, "sick_step": 0}, {"incarnation": 1, "sick_step": 50}
    again, next_life = {"incarnation": 1, "sick_step": 90}, {"incarnation": 2, "sick_step": 90}
    for report in (well, first, {**first, "sick": False}, again, next_life):
        lines.update({**EARLY, "learners": {2: report}, "time": 3.0})
    told = [line for line in text_of(console).splitlines() if "not finite" in line]
    anew = "its moments begin anew, its counters do not"
    words = f"at 3.0 s learner 2: loss not finite at step {{}}, goes on from the global model; {anew}"
    assert told == [words.format(step) for step in (50, 90, 90)]


def test_books_that_disagree_are_told_at_the_end_and_the_reason_of_a_failure_comes_first(watched: Request) -> None:
    sampled = {"kind": "merges", "shards": 7, "recorded": 5, "difference": 2}
    steps = {"kind": "steps", "learner": 1, "incarnation": 2, "steps": 5, "tokens_by_steps": 40, "tokens_reported": 48}
    heard = {
        "kind": "heard",
        "learner": 0,
        "incarnation": 1,
        "tokens_reported": 8,
        "tokens_heard": 16,
        "difference": -8,
    }
    sides = {"learner_merged": 5, "shard_merged": 6, "trained": 10, "difference": 0, "gap": -2}
    fates = {"kind": "fates", "learner": 0, "incarnation": 1, "fragment": 3, **sides}
    books = {"differences": [sampled, {**steps, "difference": 8}, heard, fates], "unreported_estimate": 0}
    rows = live.FigureWords(watched).ending({**SUMMARY, "error": "no learner is left", "books": books})
    assert rows[0] == ("error", "no learner is left")
    assert [text for word, text in rows if word == "books"] == [
        "merges.jsonl has 5 of 7 merges",
        "learner 1, life 2: 48 tokens reported, its 5 steps make 40",
        "learner 0, life 1: 8 tokens reported, others have heard of 16",
        "learner 0, life 1, fragment 3: 2 of 10 tokens do not add up; its account has 5 merged, the shards' has 6",
    ]


def test_lines_come_every_few_seconds_and_when_a_phase_begins(watched: Request) -> None:
    console = plain()
    now = [0.0]
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: now[0])
    for at, phase in (
        (0, "starting"),
        (1, "starting"),
        (2, "training"),
        (6, "training"),
        (7, "training"),
        (8, "final"),
    ):
        now[0] = float(at)
        lines.update({"phase": phase, "tokens": 0 if phase == "starting" else 1_000, "outer_steps": 7})
    said = [line.partition(",")[0] for line in text_of(console).splitlines()[1:]]
    assert said == ["starting: compiling the first step", "training", "training", "merging the last fragments"]


def test_the_start_takes_a_line_for_each_thing_that_begins(watched: Request) -> None:
    console = plain()
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: 0.0)
    for phases in ("gg", "sg", "cg", "cc", "cr", "rr"):
        known = {
            "g": ("gone", "gone"),
            "s": ("starting", "alive"),
            "c": ("compiling", "alive"),
            "r": ("ready", "alive"),
        }
        hosts = [{"role": "learner", "phase": known[each][0], "state": known[each][1]} for each in phases]
        lines.update({"phase": "starting", "hosts": hosts})
    assert text_of(console).splitlines()[1:] == [
        "starting: 0 of 2 processes are there",
        "starting: learners compile, 0 of 2 are ready",
        "starting: all learners are ready, and begin with the same model",
    ]


def test_the_end_of_a_run_without_fragments_is_not_called_a_merge(watched: Request) -> None:
    assert live.FigureWords(watched).phase({"phase": "final", "tokens": 1_000}) == "coming to the end"


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (("evaluation", 2.0, 42.0, False), "evaluating the final model, about 40.0 s; Ctrl-C leaves it out"),
        (("evaluation", 2.0, None, False), "evaluating the final model; Ctrl-C leaves it out"),
        (
            ("evaluation", 50.0, 42.0, False),
            "evaluating the final model, longer than the 42.0 s of before; Ctrl-C leaves it out",
        ),
        (("evaluation", 2.0, 42.0, True), "evaluating the final model, for a few seconds at most"),
        (("model", 0.5, None, False), "merging the last fragments"),
        (("model", 12.0, None, True), "merging the last fragments, 12.0 s so far"),
        (("reports", 0.5, None, False), "awaiting the last reports"),
    ],
)
def test_what_a_run_awaits_at_its_end_is_said_and_for_how_long(watched: Request, ending: Any, said: str) -> None:
    status = {"phase": "final", "tokens": 1_000, "outer_steps": 7}
    status["ending"] = dict(zip(("awaits", "seconds", "usual_seconds", "is_stopped"), ending, strict=True))
    assert live.FigureWords(watched).phase(status) == said


def test_a_line_is_written_once_the_evaluation_alone_is_awaited(watched: Request) -> None:
    console, now = plain(), [0.0]
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: now[0])
    for at, awaits in ((0, "model"), (1, "model"), (2, "evaluation"), (3, "evaluation"), (8, "evaluation")):
        now[0] = float(at)
        ending = {"awaits": awaits, "seconds": float(at), "usual_seconds": 60.0, "is_stopped": False}
        lines.update({"phase": "final", "tokens": 1_000, "outer_steps": 7, "ending": ending})
    said = [line.partition(",")[0] for line in text_of(console).splitlines()[1:]]
    assert said == ["merging the last fragments", "evaluating the final model", "evaluating the final model"]


def test_the_times_of_a_run_have_shares_of_their_sum() -> None:
    figures = {"trained_seconds": 124.0, "evaluated_seconds": 62.0, "ending_seconds": 62.0}
    parts = times(figures).split(", ")
    assert [part.rpartition("(")[2] for part in parts] == ["50.0 %)", "25.0 %)", "25.0 %)"]
    assert [len(times({**figures, "evaluated_seconds": each}).split(", ")) for each in (None, 0.0)] == [2, 2]
    assert times(dict.fromkeys(figures)) == times({}) == ""


def test_training_has_begun_when_there_are_tokens(watched: Request) -> None:
    console = plain()
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: 0.0)
    lines.update({"phase": "training", "tokens": 0})
    lines.update({"phase": "training", "tokens": 8})
    assert [line.split(",")[0].split(":")[0] for line in text_of(console).splitlines()[1:]] == ["starting", "training"]


def test_a_status_without_anything_is_shown(watched: Request) -> None:
    figures, news = live.FigureWords(watched), live.NoticeFeed(watched.run_dir)
    for kind in (live.LineView, live.LiveTable, live.LastLine):
        console = plain()
        view = kind(figures, news, console)
        view.update({})
        view.end()
        assert ("starting" in text_of(console)) == (kind is not live.LastLine)


ENDING = """\
done       1.00 M tokens in 83.0 s by 4 learners
eval loss  5.545 -> 1.625
merged     94.1 % of the tokens, in 400 outer steps by 3.94 learners each
goodput    99.1 %; the learners waited 750 ms in all
sent       123 MB; for evaluation and records 23.0 MB
report     runs/a/report.html
"""


def test_the_end_is_told(watched: Request) -> None:
    console = plain()
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console)
    lines.close(dict(SUMMARY))
    assert text_of(console) == ENDING


AT = "of the tokens trained"


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"tokens": 1000, "eval_tokens": 958}, f"at 95.8 % {AT} so far"),
        ({"tokens": 1000, "eval_tokens": 0}, f"at 0 % {AT} so far"),
        ({"tokens": 1000, "eval_tokens": 1020}, f"at 100 % {AT} so far"),  # It heard of them before the recorder.
        ({"tokens": 1000, "eval_tokens": 1020, "tokens_undone": 400}, "before the resume, which has undone it"),
        ({"tokens": 0, "eval_tokens": 0}, ""),
        ({"tokens": 1000}, ""),
        ({"outcome": "interrupted", "tokens_total": 1400, "tokens_undone": 400, "eval_tokens_last": 958}, "at 95.8 %"),
        ({"outcome": "stopped", "tokens_total": 1000, "eval_tokens_last": 994}, f"at 99.4 % {AT} so far"),
        ({"outcome": "done", "tokens_total": 1000, "eval_tokens_last": 994}, f"at 99.4 % {AT}"),
        ({"outcome": "done", "tokens_total": 1000, "eval_tokens_last": None}, ""),
    ],
)
def test_an_evaluation_says_of_which_tokens_it_is(figures: dict[str, Any], told: str) -> None:
    assert evaluated_at(figures).startswith(told)
    name = "eval_loss_last" if "tokens_total" in figures else "eval_loss"
    shown = evaluated({**figures, name: 2.034, "eval_loss_initial": 5.493})
    assert shown == f"5.493 -> 2.034 {evaluated_at(figures)}".strip()


def test_of_a_run_that_was_interrupted_the_last_loss_is_told_and_that_it_is_not_the_final_models(
    watched: Request,
) -> None:
    ended = {"outcome": "interrupted", "eval_loss_final": None, "eval_loss_last": 2.034, "eval_tokens_last": 958_000}
    rows = dict(live.FigureWords(watched).ending({**SUMMARY, **ended, "tokens_total": 1_000_000}))
    assert rows["eval loss"] == f"5.545 -> 2.034 at 95.8 % {AT} so far; the final model was not evaluated"


def test_a_run_without_a_syncer_tells_of_no_merges(watched: Request) -> None:
    rows = dict(live.FigureWords(watched).ending({**SUMMARY, "outer_steps": 0, "eval_loss_initial": None}))
    assert "merged" not in rows
    assert rows["eval loss"] == "1.625"


def test_quiet_is_one_line_at_the_end(watched: Request) -> None:
    console = plain()
    with live.watching(watched, quiet=True, console=console) as view:
        view.update(dict(STATUS))
        view.close(dict(SUMMARY))
    assert text_of(console) == "ring done, eval loss 5.545 -> 1.625, runs/a\n"


LOSSES: Final = {
    "losses_not_finite": 12,
    "per_learner": [
        {"learner": slot, "stall_seconds": 0.0, "restarts": 0, "tokens_lost": 0.0, "losses_not_finite": count}
        for slot, count in ((0, 11), (1, 0), (2, 1))
    ],
}


@pytest.mark.parametrize("quiet", [False, True])
def test_losses_that_are_not_finite_are_told_in_the_last_lines(watched: Request, *, quiet: bool) -> None:
    unknown: dict[str, Any] = {**SUMMARY, "losses_not_finite": None}
    for summary, is_told in ((SUMMARY, False), ({**SUMMARY, **LOSSES}, True), (unknown, False)):
        console = plain()
        with live.watching(watched, quiet=quiet, console=console) as view:
            view.close(dict(summary))
        assert ("12 losses not finite: learner 0 11, learner 2 1" in text_of(console)) == is_told
    assert ("not finite", "12 losses") in list(figures.shown({"losses_not_finite": 12}, 4))
    assert not list(figures.shown({"losses_not_finite": 0}, 4))


def test_the_reason_of_a_failure_is_left_to_the_commands_last_line(watched: Request) -> None:
    for kind in (live.LineView, live.LiveTable):
        console = plain()
        view = kind(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console)
        view.close({**SUMMARY, "outcome": "failed", "error": "no learner is left"})
        assert "no learner is left" not in text_of(console)


def test_the_table_has_a_row_for_each_learner(watched: Request) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None, highlight=False)
    with live.watching(watched, quiet=False, console=console) as view:
        assert isinstance(view, live.LiveTable)
        view.update(dict(EARLY))
        view.update(dict(STATUS))
        view.close(dict(SUMMARY))
    text = text_of(console)
    shown = text[text.rindex("ring  training") :]
    for words in ("30 %", "300 k of 1.00 M tokens", "20.0 k tokens/s", "35.0 s left", "interval raised to 31 steps"):
        assert words in shown
    lines = [line.split() for line in shown.splitlines()]
    figures = lines[next(i for i, line in enumerate(lines) if line[:1] == ["eval"]) + 1]
    assert figures == ["5.545", "->", "2.500", "3.9", "of", "4", "120", "93.1", "%", "97.1", "%"]
    rows = [line.split() for line in shown.splitlines() if "stepping" in line or "sick" in line]
    assert rows[0] == ["0", "stepping", "1,240", "150", "k", "2.750", "12.5", "ms", "0", "5.00", "MB", "7.00", "MB"]
    assert rows[1][:4] == ["1", "sick:", "not", "finite"]
    assert "eval loss  5.545 -> 1.625" in shown


@pytest.mark.parametrize("width", [60, 118])
def test_a_line_below_the_table_says_what_its_names_mean(watched: Request, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    with live.watching(watched, quiet=False, console=console) as view:
        view.update(dict(EARLY))
        assert figures.legend(["goodput"], width).plain not in text_of(console)
        view.update(dict(STATUS))
    shown = text_of(console)[text_of(console).rindex("ring  training") :]
    names = ("goodput", "merged", "stale") if width > 80 else ("goodput",)
    assert figures.legend(names, width).plain in shown
    assert max(map(len, shown.splitlines())) <= width


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
        assert isinstance(view, live.LineView)


# -- processes ---------------------------------------------------------------------------------------------------------


def host(name: str, phase: str, incarnation: int = 1, state: str = "alive") -> dict[str, Any]:
    """What the daemon says of a host."""
    role = name.partition("/")[0]
    return {"name": name, "role": role, "phase": phase, "incarnation": incarnation, "state": state, "reason": None}


def apart(**phases: str) -> list[dict[str, Any]]:
    """Four learners that step, and the others that serve."""
    learners = [host(f"learner/{slot}", phases.get(f"learner{slot}", "stepping")) for slot in range(4)]
    others = [host(f"{role}/0", phases.get(role, "serving")) for role in ("syncer", "evaluator", "recorder")]
    return [*learners, *others]


HOSTS = [
    host("learner/0", "stepping"),
    host("learner/1", "stepping", state="suspect"),
    host("learner/2", "compiling", 3),
    {**host("learner/3", "gone", 0, "gone"), "reason": msgspec.to_builtins(event_lines.KILLED)},
    host("learner/4", "starting", 2),
    host("learner/5", "stepping", state="slow"),
    host("learner/6", "stepping", state="stopped"),
    host("syncer/0", "serving", 2),
]
REPORT = {"incarnation": 1, "phase": "stepping", "tokens": 2_150_000, "loss": 2.25, "staleness": 117, "sick": False}
REPORT |= {"step": 123_456, "bytes_sent": 999_000_000, "bytes_received": 1_010_000_000, "step_ms": 112.5}
DEADLY = {
    **STATUS,
    "hosts": HOSTS,
    "epochs": {0: 2},
    "learners": dict.fromkeys(range(4), REPORT),
    "zero": 5_000_000_000,
}


def die(run: Request) -> None:
    """Let the folder of a run tell of a death, 10 s after the first step."""
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "spec.json").write_text('{"zero_ns": 1000}')
    step = {"name": "step", "role": "learner", "firing": "AllOf(own)", "mode": "free-running", "blocked_by": []}
    (run.run_dir / "graph.json").write_text(json.dumps({"nodes": [step]}))
    line = event_lines.line(15_000_001_000, "learner/3", 1, event_lines.KILLED)
    (run.run_dir / "events.jsonl").write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_tells_who_is_there_and_who_is_not(watched: Request, width: int) -> None:
    console = Console(
        file=io.StringIO(), width=width, height=40, force_terminal=True, color_system=None, highlight=False
    )
    with live.watching(watched, quiet=False, console=console) as view:
        view.update(dict(EARLY))
        die(watched)
        view.update(dict(DEADLY))
    text = text_of(console)
    shown = text[text.rindex("ring  training") :]
    assert "\u2026" not in shown, "a column was cut off"
    rows = {words[0]: words for words in map(str.split, shown.splitlines()) if words and words[0] in "0123456"}
    assert [rows[slot][1:3] for slot in "012"] == [["stepping", "1"], ["suspect", "1"], ["compiling", "3"]]
    assert rows["3"][1:3] == ["gone", "-"]
    assert rows["4"][1:3] == ["restarting", "2"]
    assert [rows[slot][1] for slot in "56"] == ["slow", "stopped"]
    assert rows["0"][3:] == [*["123,456", "2.15", "M", "2.250", "112", "ms", "117", "999", "MB", "1.01", "GB"]]
    assert "10.0 s  learner 3 was killed by signal SIGKILL; the others go on without it" in shown
    assert max(map(len, shown.splitlines())) <= width
    assert "epoch" in shown


def test_hosts_that_end_with_the_run_are_not_gone(watched: Request) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with live.watching(watched, quiet=False, console=console) as view:
        view.update({**DEADLY, "phase": "done"})
    text = text_of(console)
    text = text[text.rindex("ring  ended, writing") :].partition("\n")[2]
    assert text.count("ended") == 4
    assert not {"gone", "suspect", "stopped"} & set(text.split())


def test_lines_tell_of_deaths_at_once(watched: Request) -> None:
    console, now = plain(), [0.0]
    lines = live.LineView(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: now[0])
    lines.update(dict(DEADLY))
    die(watched)
    lines.update(dict(DEADLY))
    assert text_of(console).splitlines()[-1] == (
        "at 10.0 s learner 3 was killed by signal SIGKILL; the others go on without it"
    )


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ([], "compiling the first step"),
        ([each for each in apart() if each["role"] != "learner"], "no learner is there so far"),
        ([{**item, "state": "starting", "phase": "starting"} for item in apart()], "0 of 7 processes are there"),
        (apart(learner1="compiling", learner2="compiling", learner3="starting"), "learners compile, 1 of 4 are ready"),
        (apart(), "all learners are ready, and begin with the same model"),
    ],
)
def test_the_start_is_told_step_by_step(watched: Request, hosts: list[dict[str, Any]], words: str) -> None:
    assert live.FigureWords(watched).phase({"phase": "starting", "hosts": hosts}) == f"starting: {words}"


def test_the_start_says_what_is_compiled_and_who_waits_for_it(watched: Request) -> None:
    hosts = apart(learner0="compiling", learner1="compiling", learner2="compiling")
    for slot, (function, awaits) in enumerate((("step", ""), ("step", "learner/0"), ("copy", ""))):
        (host,) = (each for each in hosts if each["name"] == f"learner/{slot}")
        host["now_ns"] = 9_000_000_000
        since = 8_900_000_000 if function == "copy" else 1_000_000_000
        host["published"] = {"inner-step": {"compiles": function, "awaits": awaits, "compiles_since": since}}
    assert live.FigureWords(watched).phase({"phase": "starting", "hosts": hosts}) == (
        "starting: learners compile, 1 of 4 are ready: learner/0 compiles step, 8.00 s; learner/1 waits for it"
    )


def test_the_table_says_for_how_long_it_has_been_starting(watched: Request) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    now = [100.0]
    table = live.LiveTable(live.FigureWords(watched), live.NoticeFeed(watched.run_dir), console, now=lambda: now[0])
    now[0] = 112.0
    table.update({"hosts": apart(learner1="compiling")})
    table.end()
    assert "learners compile, 3 of 4 are ready (12 s)" in text_of(console)


def test_time_left_is_that_of_late(watched: Request) -> None:
    figures = live.FigureWords(watched)
    for second in range(40):
        figures.speed({"time": float(second), "tokens": 1_000 * (second + 1)})
    for second in range(40, 61):
        figures.speed({"time": float(second), "tokens": 40_000 + 10_000 * (second - 39)})
    speed, left = figures.speed({"time": 61.0, "tokens": 260_000})
    assert (speed, left) == ("10.0 k tokens/s", "74.0 s left")


def test_what_is_prepared_is_said_and_wiped_away() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with live.preparing(quiet=False, console=console):
        assert "preparing: " in text_of(console)
    assert text_of(console).endswith("\r\x1b[2K")
    for silent in (plain(), Console(file=io.StringIO(), force_terminal=True)):
        with live.preparing(quiet=silent.is_terminal, console=silent):
            pass
        assert text_of(silent) == ""


def test_how_far_the_data_are_is_said_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    listeners: list[Callable[[MakingProgress], object]] = []
    monkeypatch.setattr(live, "listening", lambda listener: listeners.append(listener) or nullcontext())
    with live.preparing(quiet=False, console=console):
        for progress in (MakingProgress(1234, 5, 67), MakingProgress(elsewhere_bytes=5_000_000)):
            listeners[0](progress)
    _, _, *said, last = text_of(console).split("\r\x1b[2K")
    assert last == ""
    assert [len(each) <= console.width for each in said] == [True, True]
    assert "1,234" in said[0]
    assert "\n" not in text_of(console)


def test_deaths_and_errors_are_told_at_the_end(watched: Request) -> None:
    learners = [{"stall_seconds": 0.25, "restarts": 2, "tokens_lost": 1234.4}, {"stall_seconds": 0.5, "restarts": 0}]
    rows = dict(live.FigureWords(watched).ending({**SUMMARY, "per_learner": learners, "error": "learner/0 is broken"}))
    assert rows["restarts"] == "2; 1.23 k tokens died with learners"
    assert rows["error"] == "learner/0 is broken"


def test_the_table_that_stays_has_the_last_known_losses(watched: Request) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    learner = STATUS["learners"][0]
    ended = {**learner, "phase": "final", "loss": None}
    with live.watching(watched, quiet=False, console=console) as view:
        view.update(dict(STATUS))
        view.update({**STATUS, "phase": "done", "learners": {0: ended, 1: {**ended, "sick": True}}})
    text = text_of(console)
    rows = [line.split() for line in text[text.rindex("ring  ended") :].splitlines() if "MB" in line]
    assert [row[row.index("k") + 1] for row in rows] == ["2.750", "-"], "a loss that was not finite is not hidden"


def _hosts(phase: str, life: int) -> list[dict[str, Any]]:
    names = ("learner/0", "learner/1", "syncer/0")
    fields = {"phase": phase, "incarnation": life, "state": "alive"}
    return [{"name": name, "role": name.partition("/")[0], **fields} for name in names]


RESUMED = {**STATUS, "learners": {slot: {**report, "incarnation": 1} for slot, report in STATUS["learners"].items()}}


def test_a_resumed_run_is_starting_until_a_learner_of_it_works(watched: Request) -> None:
    console, now = plain(), [0.0]
    words, feed = live.FigureWords(watched), live.NoticeFeed(watched.run_dir)
    lines = live.LineView(words, feed, console, now=lambda: now[0])
    for phase in ("compiling", "recovering", "stepping"):
        now[0] += 6
        lines.update({**RESUMED, "hosts": _hosts(phase, 2), "time": 20.0 + now[0]})
    assert text_of(console).splitlines()[1:] == [
        "starting: learners compile, 0 of 2 are ready",
        "starting: all learners are ready, and begin with the same model",
        "training, 30 %, 300 k of 1.00 M tokens, loss 2.500, eval loss 5.545 -> 2.500, "
        "120 outer steps by 3.9 of 4 learners, merged 93.1 %, goodput 97.1 %, interval raised to 31 steps",
    ]


def test_a_daemon_that_has_not_heard_of_phases_yet_starts_nothing(watched: Request) -> None:
    words = live.FigureWords(watched)
    assert words.phase({**RESUMED, "hosts": _hosts("starting", 1)}) == "training"
    assert words.phase({**RESUMED, "hosts": _hosts("starting", 2)}).startswith("starting: ")
    assert words.phase({**STATUS, "phase": "starting"}) == "training"  # The time of the first step is unknown.


def test_the_time_left_of_a_run_that_ends_is_none_whatever_it_has_trained(watched: Request) -> None:
    words = live.FigureWords(watched)
    words.speed(EARLY)
    assert words.speed({**STATUS, "phase": "done"}) == ("20.0 k tokens/s", "")
    assert words.phase({**STATUS, "phase": "done"}) == "ended, writing summary and report"  # Stopped, perhaps.


def test_a_resume_says_what_it_goes_on_from_and_only_what_is_known() -> None:
    known = Resumption(7, outer_steps=240, tokens=1_200_000, tokens_undone=34_500, age_seconds=12.3)
    assert resumption_words(known) == (
        "goes on from snapshot 7, 12.3 s old: 240 outer steps, the work of 1.20 M tokens; "
        "34.5 k tokens that were trained after it are undone"
    )
    assert resumption_words(Resumption(7)) == "goes on from snapshot 7"
