"""The command `isthmus`.

Modules that take time to import are imported by the commands that need them, so that help and a mistyped option answer
at once.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from isthmus.programs.command import (
    data_commands,
    lab_commands,
    launch_commands,
    machine_commands,
    model_commands,
    run_commands,
)
from isthmus.programs.command.options import Commands
from isthmus.programs.engine.run.interrupts import handle, ignore, interrupt, leave_output, open_standard_streams
from isthmus.runtime.system.processes import check_linux, signal_masks, unblock

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(run_commands.commands)
app.add_typer(run_commands.past_commands)
app.add_typer(lab_commands.chaos_commands)
app.add_typer(lab_commands.plan_commands)
app.add_typer(machine_commands.commands)
app.add_typer(
    launch_commands.commands,
    name="launch",
    rich_help_panel=machine_commands.PANEL,
    help="Launch a run on Slurm, Ray or Kubernetes; scale it, end it.",
)
app.add_typer(
    lab_commands.simulate_commands,
    name="simulate",
    rich_help_panel=run_commands.PANEL,
    help="Simulate runs, or their goodput, without any machine.",
)
app.add_typer(model_commands.commands)
app.add_typer(data_commands.commands)


@app.callback(invoke_without_command=True)
def isthmus(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Train models as dataflow graphs."""
    if version:
        typer.echo(f"isthmus {metadata.version('isthmus')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        return
    check_linux(f"Starting `isthmus {ctx.invoked_subcommand}`")


def main() -> None:
    """The console script."""
    open_standard_streams()
    inherited = signal_masks()
    unblock()
    handle(interrupt)
    try:
        app(prog_name="isthmus", obj=inherited)
    except BrokenPipeError:  # As with `| head`: whoever reads has what they wanted.
        leave_output()
    finally:
        # A Ctrl-C while Python shuts down has nothing left to stop, and would end in a traceback.
        ignore()
