"""`isthmus replay`: a row for each tape and, where a core decides otherwise, its decision; or the same as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from isthmus.programs.replay import words
from isthmus.programs.replay.outcome import Replay
from isthmus.programs.replay.run_folder import replay
from isthmus.programs.results import numbers
from isthmus.programs.terminal.fitted_table import Column, fitted
from isthmus.programs.terminal.live import facts


def show(folder: Path, *, as_json: bool) -> bool:
    """Replay the tapes of a run, and print the result; returns whether every core gave the same commands."""
    begun = time.monotonic()
    done = replay(folder)
    took = time.monotonic() - begun
    if as_json:
        typer.echo(json.dumps(words.as_object(done, took), indent=2))
        return done.is_identical
    console = Console(highlight=False)
    console.print(fitted(_columns(done), console.width, ("merges", "records")))
    for tape in done.tapes:
        if tape.difference is not None:
            console.print(Text(""), facts(list(words.story(tape, tape.difference))), sep="\n")
        if tape.computed is not None and (other := tape.computed.difference) is not None:
            console.print(Text(""), facts(list(words.other_bytes(tape, other))), sep="\n")
    console.print()
    for remark in words.remarks(done):
        console.print(remark, markup=False)
    console.print(words.ending(done, took), markup=False)
    return done.is_identical


def _columns(done: Replay) -> list[Column]:
    """A row for each tape; cells that do not apply are empty."""
    tapes = done.tapes
    return [
        Column("tape", [words.name(tape) for tape in tapes], is_text=True),
        Column("records", [numbers.whole(tape.records) for tape in tapes]),
        Column("commands", [numbers.whole(tape.commands) for tape in tapes]),
        Column("merges", [numbers.whole(tape.merges) if tape.merges else "" for tape in tapes]),
        Column("", [words.told(tape) for tape in tapes], is_text=True),
    ]
