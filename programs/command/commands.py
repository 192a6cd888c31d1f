"""A group of commands that turns every failure into one message and an exit status.

Exit status: 0 done; 1 the run failed, or was ended by a second Ctrl-C; 2 the request was wrong, always with one message
that states what was expected, what was found and what to do, and nothing started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import typer
from typer.core import TyperGroup

from isthmus.programs.command.proposals import meant_by
from isthmus.runtime.errors import (
    INTERRUPTED_STATUS,
    ConfigError,
    Fault,
    InterruptedRunError,
    RequestError,
    RunError,
    UnfinishedScriptsError,
    nearest,
    printable,
)
from isthmus.runtime.system.disk import IrregularFileError
from isthmus.runtime.system.refusals import fault_of

LOOP: Final = "--loop"
LOOP_ARGUMENT: Final = "--loop-argument"
"""The option that stands for each argument behind `--`."""
FAILED: Final = 1
WRONG: Final = 2
GONE: Final = {"link": "It is: isthmus doctor --link A B, or isthmus doctor --links --cluster FILE.toml."}
"""Commands of an earlier version, and what to type now."""
_SHORT_MAX: Final = 200
"""Characters; the first sentence of a command's help is never cut."""

# typer keeps its own copy of click, or not, depending on its version; this is the usage error of the one it uses.
_UsageError: Final[Any] = typer.BadParameter.__base__


@final
class Commands(TyperGroup):
    """The commands, with one place that turns errors into messages and exit statuses."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the command itself is one screen; that of a group below it is typer's."""
        if ctx.parent is None:
            formatter.write(_first_screen(str(self.help), self.commands))
        else:
            super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The named command; ConfigError if there is none of that name."""
        if args and args[0] not in self.commands:
            do = GONE.get(args[0]) or nearest(args[0], self.commands)
            raise ConfigError("Reading the command line", "a command", repr(args[0]), do)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        return _guarded(lambda: super(Commands, self).invoke(ctx))

    def main(self, args: Any = None, *more: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Parse the command line and run it; ends the process with the exit status if `standalone_mode`."""
        parent: Any = super()
        args = _with_loop_arguments(sys.argv[1:] if args is None else list(args))
        try:
            status = _guarded(lambda: parent.main(args, *more, standalone_mode=False, **extra))
        except typer.Exit as exit_:
            status = exit_.exit_code
        if standalone_mode:
            sys.exit(status or 0)
        return status


def _with_loop_arguments(arguments: list[str]) -> list[str]:
    """A command line in which what follows `--` is written as options: it belongs to a script, and not to PROGRAM; and
    in which `--loop -m MODULE` is one option with its value."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own = arguments[:at]
    for place, words in enumerate(zip(own, own[1:], own[2:], strict=False)):
        if words[:2] == (LOOP, "-m"):
            own[place : place + 3] = [f"{LOOP}=-m {words[2]}"]
            break
    return [*own, *(f"{LOOP_ARGUMENT}={each}" for each in arguments[at + 1 :])]


def _first_screen(about: str, commands: Mapping[str, Any]) -> str:
    """All commands in their groups, a line each, those about runs first: the frames that typer draws take more lines
    than commands do."""
    groups: dict[str, list[str]] = {}
    width = max(map(len, commands), default=0)
    for command_name, command in commands.items():
        does = command.get_short_help_str(_SHORT_MAX)
        groups.setdefault(str(command.rich_help_panel), []).append(f"  {command_name.ljust(width)}  {does}")
    lines = [f"{about} Usage: isthmus COMMAND [--help] | --version"]
    for group, rows in groups.items():
        lines += [group, *rows]
    return "\n".join([*lines, ""])


def _guarded(run: Callable[[], Any]) -> Any:
    """The result of `run`. Errors of request or run are printed on standard error, and become a typer.Exit."""
    try:
        return run()
    except RequestError as error:
        _complain(error.faults)
        status = WRONG
    except _UsageError as error:
        _complain([_usage(error)])
        status = WRONG
    except IrregularFileError as error:
        do = "Take it away, or copy the file there from where it is whole."
        _complain([Fault(f"Reading {error.filename}", "a regular file", str(error.strerror), do)])
        status = WRONG
    except UnfinishedScriptsError as error:
        _say(f"{error}")
        status = FAILED
    except InterruptedRunError as error:
        _say(f"{error}")
        status = INTERRUPTED_STATUS
    except RunError as error:
        _say(f"the run failed: {error}")
        status = FAILED
    except OSError as error:
        if (fault := fault_of(error)) is None:
            raise
        _complain([fault])
        status = WRONG
    except KeyboardInterrupt as error:
        _say(f"ended by {str(error) or 'Ctrl-C'}.")
        status = INTERRUPTED_STATUS if str(error) else FAILED  # A notice to leave: it is to be started again.
    raise typer.Exit(status)


def _usage(error: Any) -> Fault:
    """A fault that typer found in the command line."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "isthmus"
    doing, do = f"Reading the command line of `{command}`", f"`{command} --help` shows what there is."
    name = getattr(error, "option_name", None)
    if name is not None and hasattr(error, "possibilities"):
        near = sorted(error.possibilities or ())
        meant = meant_by(name, _options(context)) if context is not None and context.command.name == "train" else ""
        return Fault(doing, "one of its options", name, meant or (f"Did you mean {near[0]}?" if near else do))
    message = str(error.format_message()).rstrip(".")
    return Fault(doing, "options and arguments as its help shows them", f"{message[:1].lower()}{message[1:]}", do)


def _options(context: Any) -> dict[str, str]:
    """The options of a command, by their names in small letters and with _."""
    names = [name for each in context.command.params for name in each.opts if name.startswith("--")]
    return {name[2:].replace("-", "_"): name for name in names}


def _complain(faults: Sequence[Fault]) -> None:
    if len(faults) == 1:
        _say(str(faults[0]))
    else:
        _say("\n".join([f"{len(faults)} things are wrong with this request.", *map(str, faults)]))


def _say(message: str) -> None:
    sys.stderr.write(f"isthmus: {printable(message)}\n")
