"""`isthmus compile`: the functions of a run's learners, for islands that are not here, or for a run to come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import typer

from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.islands.kept_programs import kept_programs
from isthmus.programs.engine.request import new_spec
from isthmus.programs.engine.results.words import seconds
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.study.terminal.figures import ProgressLine
from isthmus.programs.study.terminal.start_view import compiled_lines
from isthmus.programs.task import OwnTask
from isthmus.programs.wings.compile.compiling import check_compiler, compiled_for, compiled_here, keep, lines_of
from isthmus.programs.wings.compile.figures import Target, target
from isthmus.runtime.errors import ConfigError, Fault

_READING_ISLANDS: Final = "Reading --island"
_PREPARING: Final = "the request is read, the task is run on shapes"


def compile_for(options: Options, islands: Sequence[str], *, fit: bool, as_json: bool) -> bool:
    """Compile the functions of each learner for its island, the first for slot 0, and show the figures.

    With `fit` also the largest batch. Returns whether all fit. ConfigError with the faults of the request, or if there
    is no compiler.
    """
    targets = _targets(islands)
    check_compiler(f"Compiling for {targets[0].name}")
    line = _CompilingLine()
    try:
        line.show(_PREPARING)
        spec = in_child(lambda: _spec_of(options, targets))
        figures = [compiled_for(each, slot, spec, line.on_compiling, fit=fit) for slot, each in enumerate(targets)]
    finally:
        line.clear()
    keep(spec, dict(enumerate(zip(targets, figures, strict=True))))
    if as_json:
        typer.echo(json.dumps({"islands": [each.as_data() for each in figures]}, indent=2))
    else:
        typer.echo("\n\n".join(map(lines_of, figures)))
    return all(each.fits for each in figures)


def compile_here(options: Options, *, as_json: bool) -> None:
    """Compile the functions of a learner for an island of this machine, and show what was made, with seconds.

    ConfigError with the faults of the request.
    """
    line = _CompilingLine()
    try:
        line.show(_PREPARING)
        spec = in_child(lambda: _spec_of(options, ()))
        programs = compiled_here(spec, lambda function, since: line.on_compiling("this machine", function, since))
    finally:
        line.clear()
    kept = kept_programs(programs)
    if as_json:
        where = None if kept is None else {"folder": str(kept.folder), "bytes": kept.bytes, "programs": kept.programs}
        typer.echo(json.dumps({"programs": [each._asdict() for each in programs], "kept": where}, indent=2))
    else:
        typer.echo("\n".join(compiled_lines(programs, kept)))


def _targets(islands: Sequence[str]) -> list[Target]:
    """The islands that were named; one ConfigError with all that are none."""
    if not islands:
        raise ConfigError(
            _READING_ISLANDS,
            "the islands to compile for",
            "none",
            "Name one: --island v5p:2x2x1, or v6e:2x2; or --here, for those of this machine.",
        )
    targets, faults = list[Target](), list[Fault]()
    for text in islands:
        try:
            targets.append(target(text, _READING_ISLANDS))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError.of(faults)
    return targets


def _spec_of(options: Options, targets: Sequence[Target]) -> dict[str, Any]:
    """The spec of the requested run; ConfigError if its mesh does not fit an island's devices."""
    from isthmus.programs.engine.request.faults import mesh_faults

    request = options.request()
    if len(request.tasks) > 1:
        do = "Compile for each task by itself: --task once."
        raise ConfigError("Compiling ahead of time", "one task", f"{', '.join(request.tasks)}", do)
    if isinstance(request.task, OwnTask):
        do = "Name a task in jax, or the shipped one: other frameworks compile, if at all, in their first step."
        raise ConfigError("Compiling ahead of time", "a task in jax", f"a {type(request.task).__name__}", do)
    faults = [
        fault
        for slot, each in enumerate(targets)
        for fault in mesh_faults(request.task, each.count, request.job.seed, slot, f"an island {each.name}")
    ]
    if faults:
        raise ConfigError.of(faults)
    return new_spec.of(request, zero_ns=0, cpu_seconds=0.0)


class _CompilingLine:
    """A progress line on standard error: on a terminal one that changes, elsewhere one for each island."""

    def __init__(self) -> None:
        self._line, self._said = ProgressLine(), ""

    def on_compiling(self, island: str, function: str, since: float) -> None:
        """Show the function that is being compiled, its island, and the seconds so far."""
        self.show(f"compiling for {island}", f": {function}, {seconds(since)}" if function else "")

    def show(self, text: str, more: str = "") -> None:
        """Show a line; `more` changes with time."""
        self._line.show(text + more)
        if not self._line.is_terminal and text != self._said:
            self._line.say(text)
        self._said = text

    def clear(self) -> None:
        """Take the line away."""
        self._line.show("")
