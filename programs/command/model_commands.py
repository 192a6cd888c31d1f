"""The commands about trained models: export, sample, evaluate."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.options import AsJson
from isthmus.programs.engine.results.words import UNKNOWN, decimal, without_figures
from isthmus.runtime.errors import ConfigError, printable

if TYPE_CHECKING:
    from isthmus.programs.trained.evaluate import FileLoss

PANEL: Final = "Models"
Run: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/latest.")]
Model: TypeAlias = Annotated[
    Path, typer.Argument(metavar="RUN|FOLDER", help="A run folder, such as runs/latest, or a model folder.")
]
Snapshot: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--snapshot",
        metavar="N",
        help="The model of this snapshot. Default: the final one, or the newest snapshot while the run goes on.",
        show_default=False,
    ),
]

PathNumber: TypeAlias = Annotated[
    int | None,
    typer.Option("--path", metavar="N", help="Of a model made of modules: the path.", show_default=False),
]

PERPLEXITY_OF_MAX: Final = 700.0
"""A loss of more has a perplexity beyond all numbers."""
FILES_SHOWN: Final = 40
"""Of a folder with more, a screen has no place for all."""

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def export(
    run: Run,
    form: Annotated[
        str, typer.Option("--format", metavar="huggingface|safetensors|orbax", help="How.", show_default=False)
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder.", show_default=False)],
    snapshot: Snapshot = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="float32|float16|bfloat16",
            help="Of all tensors. Default: that in which each is trained.",
            show_default=False,
        ),
    ] = None,
    is_merged: Annotated[
        bool, typer.Option("--merged", help="Of an adapter of peft: the model that it adapts, with it.")
    ] = False,
    path: PathNumber = None,
) -> None:
    """Write the model of a run as a folder for others.

    huggingface: a folder that transformers loads, with its tokenizer; of the shipped language model without experts, of
    a model folder, and of a module of transformers; the adapter, of a module of peft.

    safetensors, orbax: the merged leaves by name, of any task.

    It may be asked while the run goes on. Nothing is written over.
    """
    from isthmus.programs.trained.export import export

    run, to = _expanded(run), _expanded(to)
    for line in export(run, to, form, snapshot=snapshot, dtype=dtype, is_merged=is_merged, path=path):
        typer.echo(line)


@commands.command(rich_help_panel=PANEL)
def sample(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="How it begins. -: standard input, as by default, unless that is a terminal.",
            show_default=False,
        ),
    ] = None,
    is_chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message, which the model answers by its chat template.")
    ] = False,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="How many, after the prompt.")] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0.0, help="0: always the most likely token.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="S", min=0, help="Of what is drawn.")] = 0,
    snapshot: Snapshot = None,
    path: PathNumber = None,
) -> None:
    """Let a language model write.

    Standard output has the prompt and what follows it, as it is written, and nothing else; with --chat the answer.

    Of a run, also while it goes on, or of a model folder.
    """
    from isthmus.programs.trained.sample import Writer
    from isthmus.programs.trained.text_model import text_model

    folder = _expanded(model)
    doing = f"Sampling from {folder}"
    text = _prompt(prompt, doing)
    writer = Writer(text_model(folder, doing, snapshot, path), doing)
    write = writer.answer if is_chat else writer.continuation
    pieces = write(text, tokens, temperature=temperature, seed=seed)
    is_terminal = sys.stdout.isatty()
    first = next(pieces)  # Faults are found by now.
    for piece in (*([] if is_chat else [text.decode(errors="surrogateescape")]), first):
        _write(piece, is_terminal=is_terminal)
    for piece in pieces:
        _write(piece, is_terminal=is_terminal)
    if is_terminal:
        typer.echo()


def _prompt(given: str | None, doing: str) -> bytes:
    """The prompt that was given, or what standard input has; ConfigError where that is a terminal."""
    if given is not None and given != "-":
        return os.fsencode(given)
    if given is None and sys.stdin.isatty():
        do = "Give one with --prompt, or by a pipe; --prompt - reads what is typed, until Ctrl-D."
        raise ConfigError(doing, "a prompt", "none", do)
    return sys.stdin.buffer.read()


@commands.command(rich_help_panel=PANEL)
def evaluate(
    model: Model,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="A file or folder, all of it; may be repeated, each is measured by itself. Default: the run's "
            "held-out text.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="The field or column of rows that has the text. Default: that of the run, else text.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="NAME",
            help="That of what comes before the text, and is not measured. Default: that of the run, else none.",
            show_default=False,
        ),
    ] = None,
    snapshot: Snapshot = None,
    path: PathNumber = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well a language model predicts texts, also by file.

    Of a run, also while it goes on, or of a model folder; computed in float32.

    Of a run that was stopped, and has left out the evaluation of its final model: that is made now, of any task, and
    written into the run's summary.
    """
    from isthmus.programs.trained.evaluate import evaluate
    from isthmus.programs.trained.text_model import text_model

    folder = _expanded(model)
    doing = f"Evaluating {folder}"
    if not data and snapshot is None and path is None and _evaluate_later(folder, doing, as_json=as_json):
        return
    where = None if not data else list(dict.fromkeys(_expanded(each) for each in data))
    found = evaluate(text_model(folder, doing, snapshot, path), where, doing, column, prompt)
    if as_json:
        typer.echo(json.dumps({**found.as_dict(), "written": False}))
        return
    bits = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.4f} bits a byte"
    typer.echo(f"loss {found.loss:.4f} nats a token, perplexity {found.perplexity:.4g}{bits}")
    typer.echo(f"{found.tokens:,} tokens in {found.windows:,} windows")
    for line in _by_file(found.files) if len(found.files) > 1 else ():
        typer.echo(line)


def _by_file(files: Sequence[FileLoss]) -> Iterator[str]:
    """The lines of the first files, and how many there are besides."""
    yield f"{'loss':>8}  {'bits a byte':>11}  {'tokens':>11}  file"
    for file in files[:FILES_SHOWN]:
        bits = UNKNOWN if file.bits_per_byte is None else f"{file.bits_per_byte:.4f}"
        loss = UNKNOWN if file.loss is None else f"{file.loss:.4f}"
        yield f"{loss:>8}  {bits:>11}  {file.tokens:>11,}  {printable(file.path)}"
    if len(files) > FILES_SHOWN:
        yield f"and {len(files) - FILES_SHOWN} more: --json has all of them"


def _evaluate_later(folder: Path, doing: str, *, as_json: bool) -> bool:
    """Make the evaluation of the final model that a run lacks, and print it; returns whether it lacked one."""
    from isthmus.programs.engine.results.run_files import check_files
    from isthmus.programs.trained.final_evaluation import is_lacking, make_later
    from isthmus.programs.trained.text_model import is_run

    if not is_run(folder):
        return False
    check_files(folder, doing)
    if not is_lacking(folder, doing) or (found := make_later(folder, doing)) is None:
        return False
    is_known = found.tokens is not None and found.loss is not None and found.loss < PERPLEXITY_OF_MAX
    perplexity = math.exp(found.loss) if is_known and found.loss is not None else None
    if as_json:
        shown = {"loss": found.loss, "perplexity": perplexity, "bits_per_byte": None, "tokens": found.tokens}
        own = {"metrics": found.metrics, "figures": found.figures, "figures_fault": found.fault}
        typer.echo(json.dumps({**shown, "windows": found.windows, **own, "written": True}))
        return True
    unit = "" if perplexity is None else f" nats a token, perplexity {perplexity:.4g}"
    others = "".join(f", {name} {decimal(value)}" for name, value in found.metrics.items())
    typer.echo(f"loss {decimal(found.loss, 4)}{unit}{others}")
    if found.tokens is not None:
        typer.echo(f"{found.tokens:,} tokens in {found.windows:,} windows")
    for name, value in found.figures.items():
        typer.echo(f"{printable(name)} {decimal(value)}")
    if why := without_figures({"final_figures_fault": found.fault}):
        typer.echo(f"figures: {printable(why)}")
    typer.echo("The run had no evaluation of its final model, or lacked its figures: this one is in its summary now.")
    return True


def _expanded(path: Path) -> Path:
    return Path(os.path.expanduser(path))


def _write(text: str, *, is_terminal: bool) -> None:
    """Write some text as it is; to a terminal without what would move the cursor."""
    sys.stdout.buffer.write((printable(text) if is_terminal else text).encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()
