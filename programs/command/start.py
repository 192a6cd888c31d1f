"""`isthmus train` in processes, under the run's own daemon, watched or detached.

A new run is prepared by another process, and this one imports what shows runs meanwhile: here there are only those
imports that have to come before that one is forked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.run.in_processes import Submitted, detach, submit_ahead
from isthmus.programs.engine.run.watch_loop import DetachedError, say
from isthmus.programs.settings import parse
from isthmus.runtime.errors import ConfigError

if TYPE_CHECKING:
    from isthmus.programs.command.metered import Meter
    from isthmus.programs.engine.request.request import Request


_OF_RUN: Final = ("isthmus.programs.command.metered", "isthmus.programs.engine.run.private_daemon")
"""What `_run` imports, with all that these need."""


@dataclass(frozen=True, slots=True)
class Starting:
    """How a run is started: whether it `is_detached`, what is printed, the `grace` at SIGTERM in seconds, where its
    weights are, if it does not begin at random, what serves its figures, whether the phases of its start are printed,
    too, and whether one that goes on may do so with other sources."""

    is_detached: bool
    quiet: bool
    grace: float
    begins_from: Path | None = None
    meter: Meter | None = None
    is_verbose: bool = False
    accepts_changes: bool = False


def train(options: Options, starting: Starting) -> None:
    """Prepare the requested run, and start it; watch it unless it is detached."""
    from isthmus.programs.engine.run.room_for_hosts import check_compiler

    if options.transport == "inproc":
        option = "--detach" if options.cluster is None else "--cluster"
        do = "Leave --transport out."
        raise ConfigError(f"Reading {option}", "a run in processes", "--transport inproc", do)
    options = replace(options, goes_on_from=starting.begins_from)
    check_compiler("Training on this machine")  # Before processes begin that load kernels ahead.
    with ExitStack() as while_preparing:

        def show() -> None:
            from isthmus.programs.study.terminal.live import preparing

            while_preparing.enter_context(preparing(quiet=starting.quiet))
            for name in _OF_RUN:
                import_module(name)

        submitted = submit_ahead(
            lambda: _with_room(options.request().to_train().with_store()), starting.begins_from, meanwhile=show
        )
    from isthmus.programs.study.terminal.live import announce

    announce(submitted.chosen, submitted.warnings, submitted.data, quiet=starting.quiet)
    if submitted.begins and not starting.quiet:
        typer.echo(submitted.begins)
    _run(submitted, starting)


def _with_room(request: Request) -> Request:
    """The request, if there are room for its snapshots and memory; in the process that prepares it."""
    from isthmus.programs.engine.islands.memory_room import with_memory
    from isthmus.programs.engine.request.snapshot_room import with_room

    return with_room(with_memory(request))


def resume_or_start(options: Options, where: str | None, starting: Starting) -> None:
    """Begin the run in the run folder, or go on with it; nothing is to do for one that is done."""
    from isthmus.programs.engine.run.resume import ALIKE, DoneError, alone, is_there, resumed
    from isthmus.programs.study.terminal.live import preparing

    doing = "Reading --resume-or-start"
    folder = options.run_dir
    if folder is None:
        raise ConfigError(doing, "--run-dir RUN, where the same command finds its run again", "none", "Name a folder.")
    if where is not None or options.cluster is not None:
        beside = "--resume" if where is not None else "--cluster"
        do = "Leave one of them out."
        if where is None:
            do = "A daemon goes on with the runs of a cluster by itself; with changes: isthmus train --resume RUN "
            do += "--cluster FILE --accept-changes, or isthmus daemon --run FILE --resume-or-start --accept-changes."
        raise ConfigError(doing, "a run of this machine alone", beside, do)
    with alone(folder, f"Starting {folder}"):
        if not is_there(folder, say):
            train(options, starting)
            return
        try:
            with preparing(quiet=starting.quiet):
                again = partial(_again, options)
                submitted = resumed(str(folder), None, again, ALIKE, accepts=starting.accepts_changes)
        except DoneError as error:
            say(f"{folder} is done: {error.total:,} tokens were to be trained")
            return
        _go_on(submitted, starting)


def _again(options: Options, folder: Path, more: Mapping[str, Any], doing: str) -> Request:
    from isthmus.programs.engine.request import spec
    from isthmus.programs.engine.run.resume import check_program

    wanted = options.again()
    check_program(spec.load(folder), wanted.program_reference(), doing)
    return wanted.request()


def resume(where: str, options: Options, starting: Starting) -> None:
    """Go on with a run that was cut off, in its folder or from a store; watch it unless it is detached."""
    from isthmus.programs.engine.run.resume import is_store, resumed
    from isthmus.programs.engine.run.scripts_again import is_for_scripts, start_again, unfinished
    from isthmus.programs.study.terminal.live import preparing

    options.check_resume(*(["run_dir"] if is_store(where) else []))
    asked = [*options.run, *(each.split("=")[0].strip() for each in options.sets or ())]
    unfinished_of = [] if is_store(where) else unfinished(Path(where))
    if unfinished_of and is_for_scripts(asked):
        submitted = start_again(Path(where), _run_values(options.sets or ()))
        say(f"the run is over; with its final model the scripts of {', '.join(unfinished_of)} begin again")
        _run(submitted, starting)
        return

    with preparing(quiet=starting.quiet):
        request_of = partial(resumed_request, options)
        submitted = resumed(where, options.run_dir, request_of, accepts=starting.accepts_changes)
    _go_on(submitted, starting)


def resumed_request(options: Options, folder: Path, more: Mapping[str, Any], doing: str) -> Request:
    """Today's request of the run in a folder, with these keys of section `run.` where nothing else was asked for."""
    from isthmus.programs.engine.request import spec
    from isthmus.programs.engine.run.resume import check_program

    asked = {each.split("=")[0].strip() for each in options.sets or ()}
    sets = [f"run.{name}={value}" for name, value in more.items() if f"run.{name}" not in asked]
    wanted = options.resumed(folder).with_sets(sets)
    check_program(spec.load(folder), wanted.program_reference(), doing)
    return wanted.request()


def _run_values(sets: Sequence[str]) -> dict[str, Any]:
    """The values that `--set run.KEY=VALUE` gives; a text that is no TOML value is refused with the others."""
    values = dict[str, Any]()
    for each in sets:
        key, _, text = each.partition("=")
        with suppress(ValueError):
            values[key.strip().removeprefix("run.")] = parse(text)
    return values


def _go_on(submitted: Submitted, starting: Starting) -> None:
    from isthmus.programs.study.terminal.live import announce_resumption

    if submitted.resumption is not None:
        announce_resumption(submitted, quiet=starting.quiet)
    _run(submitted, starting)


def _run(submitted: Submitted, starting: Starting) -> None:
    from isthmus.programs.command.metered import viewing
    from isthmus.programs.training import start_processes

    if starting.is_detached:
        detach(submitted, starting.grace)
        typer.echo(parting(submitted, "by itself", quiet=starting.quiet))
        return
    try:
        is_resumed = submitted.resumption is not None
        with viewing(starting.meter, submitted, quiet=starting.quiet, is_resumed=is_resumed) as view:
            if starting.is_verbose and not is_resumed:
                from isthmus.programs.study.terminal.start_view import StartView

                view = StartView(view, submitted.run_dir, typer.echo)
            start_processes(submitted, view, detaches=True, grace=starting.grace)
    except DetachedError:
        typer.echo(f"isthmus: standard output was closed; {parting(submitted, 'by itself', quiet=False)}", err=True)


def parting(submitted: Submitted, whose: str, *, quiet: bool) -> str:
    """The text for a user who detaches from a run."""
    folder = submitted.run_dir
    name = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    if quiet:
        return name
    return "\n".join(
        [
            f"{submitted.name} goes on {whose}; the run folder is {name}",
            f"watch it   isthmus status --watch {name}",
            f"stop it    isthmus stop {name}",
        ]
    )
