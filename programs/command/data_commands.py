"""The commands about training data: data, route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.options import AsJson
from isthmus.runtime.errors import ConfigError, printable

PANEL: Final = "Data"

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def data(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Files and folders. Default: Python's library.", show_default=False),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="FOLDER", help="Read them for this model folder, by its tokenizer.", show_default=False
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="With --model: the field or column of rows that has the text, or a chat. Default: text.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", metavar="NAME", help="With --model: that of what comes before the text.", show_default=False
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens",
            metavar="N",
            help="The tokens to train on, to be told as passes over the data.",
            show_default=False,
            min=1,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            metavar="N",
            help="Without --model: how many ids there are, for files of them.",
            show_default=False,
        ),
    ] = None,
    token_dtype: Annotated[
        str, typer.Option("--token-dtype", metavar="uint16|uint32", help="The dtype of .bin files.")
    ] = "uint16",
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Instead: remove the tokens of texts that are kept in the cache."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what training data are, and start nothing.

    Without --model as the bytes, or ids, that the shipped task trains on. What `train` would refuse is refused behind
    the table.
    """
    from isthmus.programs.engine.request.request import shipped_task
    from isthmus.programs.engine.results.data_words import lines
    from isthmus.programs.reading.forms import form_of
    from isthmus.programs.settings import Schema

    doing = "Reading the command"
    if clear:
        given_beside = {"PATH": paths, "--model": model, "--tokens": tokens, "--vocabulary": vocabulary}
        if beside := [name for name, value in given_beside.items() if value]:
            raise ConfigError(doing, "--clear alone, or with --json", ", ".join(beside), "Leave one of them out.")
        _clear(as_json)
        return
    for option, value in {"--column": column, "--prompt": prompt}.items():
        if value is not None and model is None:
            do = "Name the model folder, or leave it out."
            raise ConfigError(doing, f"--model FOLDER beside {option}, which is of rows", "none", do)
    if vocabulary is not None and model is not None:
        raise ConfigError(doing, "one of --model and --vocabulary", "both", "Leave --vocabulary out.")
    given = {
        "data": tuple(str(Path(each).expanduser()) for each in paths or []),
        "token_dtype": token_dtype,
        "folder": None if model is None else str(model.expanduser()),
        "column": column,
        "prompt": prompt,
        "vocabulary": vocabulary,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    _, shipped = shipped_task(settings)
    settings |= {} if model is None else shipped.READS
    schema = Schema.of("task", shipped.task)
    section = schema.read(settings)
    if faults := list(schema.out_of_range(section)):
        raise ConfigError.of(faults)
    with _progress_shown():
        table = shipped.data_table(section)
    table = table if tokens is None else table.for_budget(int(tokens))
    if as_json:
        typer.echo(json.dumps(table.as_dict()))
    else:
        for line in lines(table):
            typer.echo(printable(line))
        if model is None and any(form_of(f"data{kind}").has_rows for kind in table.tokens_by_kind):
            typer.echo("rows are read as bytes here; --model FOLDER reads them as texts and chats")
    for warning in table.warnings():
        typer.echo(f"isthmus: warning: {printable(str(warning))}", err=True)
    if faults := list(table.faults()):
        raise ConfigError.of(faults)


@contextmanager
def _progress_shown() -> Iterator[None]:
    """Say on a terminal how far the data are, in this block."""
    from isthmus.programs.engine.results.data_words import progress_words
    from isthmus.programs.reading.token_progress import told_by
    from isthmus.programs.study.terminal.figures import ProgressLine

    line = ProgressLine()
    try:
        with told_by(lambda progress: line.show(progress_words(progress))):
            yield
    finally:
        line.show("")


def _clear(as_json: bool) -> None:
    """Empty the cache of token files, and say what was freed."""
    from isthmus.programs.reading.token_files import CACHE, clear
    from isthmus.runtime.system.files import cache_path
    from isthmus.runtime.system.refusals import reason, remedy

    where = cache_path(CACHE)
    try:
        cleared = clear()
    except OSError as error:
        do = remedy(error, "Remove them by hand.")
        raise ConfigError(f"Emptying {where}", "files that can be removed", reason(error), do) from None
    if as_json:
        typer.echo(json.dumps({"folder": None if where is None else str(where), **cleared._asdict()}))
        return
    typer.echo(printable(f"{where}: {cleared.files:,} token files removed, {cleared.bytes:,} bytes freed"))
    if cleared.in_use:
        typer.echo(f"{cleared.in_use:,} of {cleared.in_use_bytes:,} bytes are in use, and stay")


@commands.command(rich_help_panel=PANEL)
def route(
    shards: Annotated[
        int, typer.Option("--shards", metavar="N", help="How many: the paths of the run.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new file, the router.", show_default=False)],
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA]...", help="Files and folders. Default: Python's library.", show_default=False),
    ] = None,
    by: Annotated[
        str,
        typer.Option("--by", metavar="content|source|random", help="What a document's shard follows from."),
    ] = "content",
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of what is drawn.")] = 0,
    column: Annotated[
        str,
        typer.Option("--column", metavar="NAME", help="The field or column of rows that has the text."),
    ] = "text",
    source_column: Annotated[
        str | None,
        typer.Option(
            "--source-column",
            metavar="NAME",
            help="That which has the source. Default: a file of rows, or a folder, is one.",
            show_default=False,
        ),
    ] = None,
    token_dtype: Annotated[
        str, typer.Option("--token-dtype", metavar="uint16|uint32", help="The dtype of .bin files.")
    ] = "uint16",
    losses: Annotated[
        Path | None,
        typer.Option(
            "--from-losses",
            metavar="FILE.npy",
            help="Route again, by the loss of each document for training by each path.",
            show_default=False,
        ),
    ] = None,
    router: Annotated[
        Path | None,
        typer.Option("--router", metavar="FILE", help="With --from-losses: that of the run.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give the documents of training data to shards, one for each path.

    A document is a file, or a row of .jsonl, .csv, .parquet and the like; files are cut where there are few.

    content: k-means on the first 64 bytes of a document, with equal shards. source: the folder, or a column of rows.
    """
    from isthmus.programs import routers

    where = [str(Path(each).expanduser()) for each in data or []]
    if losses is None and router is None:
        routed = routers.route(
            where,
            shards=shards,
            out=out.expanduser(),
            by=by,
            seed=seed,
            column=column,
            source_column=source_column,
            token_dtype=token_dtype,
        )
    else:
        routed = routers.reroute_from(
            losses, where, router, shards=shards, out=out.expanduser(), seed=seed, token_dtype=token_dtype
        )
    if as_json:
        typer.echo(json.dumps(routed.as_dict()))
        return
    for line in routed.lines():
        typer.echo(printable(line))
