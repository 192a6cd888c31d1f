"""`isthmus replay`: a row for each tape and, where a core decides otherwise, its decision; or the same as JSON.

`isthmus why`: one merge, from its opening to its publication, with a row for each learner; or the same as JSON.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from isthmus.programs.study.terminal.figures import Screen, fitted, show
from isthmus.programs.study.terminal.live import facts
from isthmus.programs.study.terminal.sheet import Column
from isthmus.programs.wings.why import replay as replay_words
from isthmus.programs.wings.why import why as why_words
from isthmus.programs.wings.why.merge_facts import NOT_RECORDED, MergeFacts, Why
from isthmus.programs.wings.why.replay import replay
from isthmus.programs.wings.why.why import MergeQuery, why


def show_replay(folder: Path, *, as_json: bool) -> bool:
    """Replay the tapes of a run, and print the result; returns whether every core gave the same commands."""
    begun = time.monotonic()
    done = replay(folder)
    took = time.monotonic() - begun
    show(replay_words.sheet(done, took), as_json=as_json, last=replay_words.ending(done, took))
    return done.is_identical


_DISPENSABLE: Final = ("life", "bytes", "steps")
"""Columns that a narrow terminal omits, in this order."""
_NUMBERS: Final = ("learner", "times", "in all", "each")


def show_why(folder: Path, wanted: MergeQuery, *, as_json: bool) -> None:
    """Print the run folder's record of one merge."""
    answer = why(folder, wanted)
    if as_json:
        typer.echo(json.dumps(_object(answer), indent=2, default=msgspec.structs.asdict))
        return
    console = Screen()
    for merge in (answer.merge, *answer.recoveries):
        _print(console, merge)
    if waits := why_words.waits_table(answer.host_waits):
        columns = [Column(name, cells, is_text=name not in _NUMBERS) for name, cells in waits.items()]
        console.print(fitted(columns, console.width, _DISPENSABLE))
        console.print()
    for away in answer.away:
        console.print(why_words.absence_of(away), markup=False)
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
        console.print(fitted(_answer_columns(merge), console.width, _DISPENSABLE))
        for answer in merge.answers:
            if remark := why_words.remark(answer):
                console.print(f"{merge.by} {answer.slot}: {remark}", markup=False)
        console.print()


def _answer_columns(merge: MergeFacts) -> list[Column]:
    return [Column(name, cells, is_text=name == "answer") for name, cells in why_words.table(merge).items()]
