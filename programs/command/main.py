"""The command `isthmus`.

Modules that take time to import are imported by the commands that need them, so that help and a mistyped option answer
at once. So are the commands of wings. typer takes time, too: it builds the options of all commands that it is given,
which takes longer than most commands; so it is given the one that is named, and for the list of all of them none with
its options (`narrowed`).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from isthmus.programs import wing_table
from isthmus.programs.command import data_commands, machine_commands, model_commands, run_commands
from isthmus.programs.command.commands import Commands
from isthmus.programs.engine.run.interrupts import (
    drop_untaken_output,
    handle,
    ignore,
    interrupt,
    leave_output,
    open_standard_streams,
)
from isthmus.runtime.system.processes import check_descriptors, check_linux, signal_masks, unblock

_HELP: Final = ("-h", "--help")


def _empty() -> typer.Typer:
    """The command line without commands."""
    return typer.Typer(
        cls=Commands,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(_HELP)},
    )


def isthmus(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Train models as dataflow graphs."""
    if version:
        from importlib import metadata

        typer.echo(f"isthmus {metadata.version('isthmus')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        return
    check_linux(doing := f"Starting `isthmus {ctx.invoked_subcommand}`")
    check_descriptors(doing, has_own=True)


def narrowed(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the one command that the arguments name; with all, but without options, where they ask for
    help."""
    if not arguments or arguments[0] in _HELP:
        return _of(map(_without_options, _infos(None)))
    named = [info for info in _infos(arguments[0]) if _name_of(info) == arguments[0]]
    return _of(named or _infos(None))


def whole() -> typer.Typer:
    """The command line with all commands."""
    return _of(_infos(None))


def _infos(name: str | None) -> Iterator[Any]:
    """What typer knows of each command, and of each group of commands, in their order: of wings those that have the one
    of this name, all for None."""
    offered = _empty()
    for module in (run_commands, machine_commands, model_commands, data_commands):
        offered.add_typer(module.commands)
    for wing in wing_table.commands_of(name):
        wing.offer(offered)
    for group in offered.registered_groups:
        if isinstance(group.name, str) or group.typer_instance is None:
            yield group
        else:
            yield from group.typer_instance.registered_commands


def _of(infos: Iterable[Any]) -> typer.Typer:
    made = _empty()
    made.callback(invoke_without_command=True)(isthmus)
    for info in infos:
        (made.registered_groups if hasattr(info, "typer_instance") else made.registered_commands).append(info)
    return made


def _name_of(info: Any) -> str:
    return str(info.name or typer.main.get_command_name(info.callback.__name__))


def _without_options(info: Any) -> Any:
    """A command as its group's help shows it."""
    bare = copy.copy(info)
    if hasattr(info, "typer_instance"):
        bare.typer_instance = typer.Typer(cls=Commands)
        return bare

    def nothing() -> None: ...

    nothing.__name__, nothing.__doc__ = info.callback.__name__, info.callback.__doc__
    bare.callback = nothing
    return bare


def main() -> None:
    """The console script."""
    open_standard_streams()
    inherited = signal_masks()
    unblock()
    handle(interrupt)
    try:
        narrowed(sys.argv[1:])(prog_name="isthmus", obj=inherited)
    except BrokenPipeError:  # As with `| head`: whoever reads has what they wanted.
        leave_output()
    except SystemExit as end:
        if end.code:  # Why it did not succeed was told.
            drop_untaken_output()
        raise
    finally:
        # A Ctrl-C while Python shuts down has nothing left to stop, and would end in a traceback.
        ignore()
