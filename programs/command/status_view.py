"""`isthmus status`: the processes of a run and its figures, as a table or as JSON, once or until the run is over."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isthmus.programs.command import runs
from isthmus.runtime.errors import ConfigError

WATCH_SECONDS: Final = 0.5


def show(run: Path | None, *, every: bool, watch: bool, as_json: bool) -> None:
    """Print what there is to know of one run, or of every run that somebody answers for."""
    folders = runs.all_folders() if every else [runs.folder_of(run)]
    if as_json:
        found = [_complete(status) for status in _statuses(folders, must_answer=not every)]
        typer.echo(json.dumps(found if every else found[0], indent=2))
        return
    console = Console(highlight=False)
    if not watch:
        for status in _statuses(folders, must_answer=not every):
            console.print(_table(status))
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            statuses = _statuses(folders, must_answer=not every)
            live.update(Group(*map(_table, statuses)), refresh=True)
            if all(status["outcome"] != "running" for status in statuses):
                return
            time.sleep(WATCH_SECONDS)


def _statuses(folders: list[Path], *, must_answer: bool) -> list[dict[str, Any]]:
    statuses = []
    for folder in folders:
        if must_answer:
            statuses.append(runs.status(folder))
        else:
            with suppress(ConfigError):
                statuses.append(runs.status(folder))
    return statuses


def _complete(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status with JSON's idea of numbers: NaN, which a learner's loss may be, becomes null."""
    cleaned: dict[str, Any] = json.loads(json.dumps(status), parse_constant=lambda _: None)
    return cleaned


def _table(status: Mapping[str, Any]) -> Group:
    """One run: a line of figures, and a row for each process."""
    training = status.get("training") or {}
    words = [Path(status["run"]).name, str(status["outcome"])]
    if training.get("tokens_budget"):
        words.append(f"{training['tokens']:,} of {training['tokens_budget']:,} tokens")
    if training.get("eval_loss") is not None:
        words.append(f"eval loss {training['eval_loss']:.3f}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("host", "phase", "life", "pid", "what was last said of it"):
        table.add_column(heading)
    for row in runs.rows(status):
        table.add_row(*row)
    return Group(Text("  ".join(words), style="bold"), table)
