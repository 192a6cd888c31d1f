"""`isthmus replay`: a row for each tape and, where a core decides otherwise, its decision; or the same as JSON.

`isthmus why`: one merge, from its opening to its publication, with a row for each learner; or the same as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.text import Text

from isthmus.programs.engine.results import why as why_words
from isthmus.programs.engine.results import words
from isthmus.programs.engine.results.why import MergeQuery, why
from isthmus.programs.engine.results.why_merge_facts import NOT_RECORDED, MergeFacts, RoundAnswer, Why
from isthmus.programs.study.lab import replay as replay_words
from isthmus.programs.study.lab.replay import Replay, replay
from isthmus.programs.study.terminal.figures import Column, Screen, fitted
from isthmus.programs.study.terminal.live import facts


def show_replay(folder: Path, *, as_json: bool) -> bool:
    """Replay the tapes of a run, and print the result; returns whether every core gave the same commands."""
    begun = time.monotonic()
    done = replay(folder)
    took = time.monotonic() - begun
    if as_json:
        typer.echo(json.dumps(replay_words.as_object(done, took), indent=2))
        return done.is_identical
    console = Screen()
    console.print(fitted(_tape_columns(done), console.width, ("merges", "records")))
    for tape in done.tapes:
        if tape.difference is not None:
            console.print(Text(""), facts(list(replay_words.story(tape, tape.difference))), sep="\n")
    console.print()
    for remark in replay_words.remarks(done):
        console.print(remark, markup=False)
    console.print(replay_words.ending(done, took), markup=False)
    return done.is_identical


def _tape_columns(done: Replay) -> list[Column]:
    """A row for each tape; cells that do not apply are empty."""
    tapes = done.tapes
    return [
        Column("tape", [replay_words.name(tape) for tape in tapes], is_text=True),
        Column("records", [words.whole(tape.records) for tape in tapes]),
        Column("commands", [words.whole(tape.commands) for tape in tapes]),
        Column("merges", [words.whole(tape.merges) if tape.merges else "" for tape in tapes]),
        Column("", [replay_words.result(tape) for tape in tapes], is_text=True),
    ]


_DISPENSABLE: Final = ("life", "bytes", "steps")
"""Columns that a narrow terminal omits, in this order."""


def show_why(folder: Path, wanted: MergeQuery, *, as_json: bool) -> None:
    """Print the run folder's record of one merge."""
    answer = why(folder, wanted)
    if as_json:
        typer.echo(json.dumps(_object(answer), indent=2))
        return
    console = Screen()
    for merge in (answer.merge, *answer.recoveries):
        _print(console, merge)
    for away in answer.away:
        console.print(why_words.absent(away), markup=False)
    for note in why_words.notes(answer):
        console.print(note, markup=False, style="dim")


def _object(answer: Why) -> dict[str, Any]:
    """The fields of the merge, and its context in the run."""
    around = {name: value for name, value in asdict(answer).items() if name != "merge"}
    return {**asdict(answer.merge), **around, "not_recorded": NOT_RECORDED}


def _print(console: Console, merge: MergeFacts) -> None:
    console.print(Text(why_words.head(merge), style="bold"))
    console.print(facts(list(why_words.rows(merge))))
    console.print()
    if merge.answers:
        console.print(fitted(_answer_columns(merge.answers), console.width, _DISPENSABLE))
        for answer in merge.answers:
            if remark := why_words.remark(answer):
                console.print(f"learner {answer.slot}: {remark}", markup=False)
        console.print()


def _answer_columns(answers: Sequence[RoundAnswer]) -> list[Column]:
    return [Column(name, cells, is_text=name == "answer") for name, cells in why_words.table(answers).items()]
