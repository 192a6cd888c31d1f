"""`isthmus why`: one merge, from its opening to its publication, with a row for each learner; or the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.text import Text

from isthmus.programs.terminal.fitted_table import Column, fitted
from isthmus.programs.terminal.live import facts
from isthmus.programs.why import words
from isthmus.programs.why.facts import NOT_RECORDED, Answer, MergeFacts, Why
from isthmus.programs.why.folder import Wanted, why

_DISPENSABLE: Final = ("life", "bytes", "steps")
"""Columns that a narrow terminal omits, in this order."""


def show(folder: Path, wanted: Wanted, *, as_json: bool) -> None:
    """Print the run folder's record of one merge."""
    told = why(folder, wanted)
    if as_json:
        typer.echo(json.dumps(_object(told), indent=2))
        return
    console = Console(highlight=False)
    for merge in (told.merge, *told.recoveries):
        _print(console, merge)
    for away in told.away:
        console.print(words.absent(away), markup=False)
    for note in words.notes(told):
        console.print(note, markup=False, style="dim")


def _object(told: Why) -> dict[str, Any]:
    """The fields of the merge, and its context in the run."""
    around = {name: value for name, value in asdict(told).items() if name != "merge"}
    return {**asdict(told.merge), **around, "not_recorded": NOT_RECORDED}


def _print(console: Console, merge: MergeFacts) -> None:
    console.print(Text(words.head(merge), style="bold"))
    console.print(facts(list(words.rows(merge))))
    console.print()
    if merge.answers:
        console.print(fitted(_columns(merge.answers), console.width, _DISPENSABLE))
        for answer in merge.answers:
            if remark := words.remark(answer):
                console.print(f"learner {answer.slot}: {remark}", markup=False)
        console.print()


def _columns(answers: Sequence[Answer]) -> list[Column]:
    return [Column(name, cells, is_text=name == "answer") for name, cells in words.table(answers).items()]
