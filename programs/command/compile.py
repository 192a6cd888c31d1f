"""`isthmus compile`: the functions of a run's learners, compiled for islands that are not here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer

from isthmus.programs.ahead.compiling import check_compiler, compiled_for
from isthmus.programs.ahead.known import keep
from isthmus.programs.ahead.targets import Target, target
from isthmus.programs.ahead.words import told
from isthmus.programs.arguments.options import Options
from isthmus.programs.results.numbers import seconds
from isthmus.programs.run.in_processes import apart
from isthmus.runtime.errors import ConfigError, Fault

_DOING: Final = "Reading --island"
_PREPARING: Final = "the request is read, the task is run on shapes"


def compile_for(asked: Options, islands: Sequence[str], *, fit: bool, as_json: bool) -> bool:
    """Compile the functions of each learner for its island, the first for slot 0, and show the figures.

    With `fit` also the largest batch. Returns whether all fit. ConfigError with the faults of the request, or if there
    is no compiler.
    """
    targets = _targets(islands)
    check_compiler(f"Compiling for {targets[0].name}")
    line = _Line()
    try:
        line.show(_PREPARING)
        spec = apart(lambda: _spec_of(asked, targets))
        found = [compiled_for(each, slot, spec, line.hear, fit=fit) for slot, each in enumerate(targets)]
    finally:
        line.clear()
    keep(spec, dict(enumerate(zip(targets, found, strict=True))))
    if as_json:
        typer.echo(json.dumps({"islands": [each.as_data() for each in found]}, indent=2))
    else:
        typer.echo("\n\n".join(map(told, found)))
    return all(each.fits for each in found)


def _targets(islands: Sequence[str]) -> list[Target]:
    """The islands that were named; one ConfigError with all that are none."""
    if not islands:
        raise ConfigError(_DOING, "the islands to compile for", "none", "Name one: --island v5p:2x2x1, or v6e:2x2.")
    found, faults = list[Target](), list[Fault]()
    for text in islands:
        try:
            found.append(target(text, _DOING))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError.of(faults)
    return found


def _spec_of(asked: Options, targets: Sequence[Target]) -> dict[str, Any]:
    """The spec of the requested run; ConfigError if its mesh does not fit an island's devices."""
    from isthmus.programs.checks.meshes import mesh_faults
    from isthmus.programs.request import spec

    request = asked.request()
    faults = [
        fault
        for slot, each in enumerate(targets)
        for fault in mesh_faults(request.task, each.count, request.job.seed, slot, f"an island {each.name}")
    ]
    if faults:
        raise ConfigError.of(faults)
    return spec.of(request, zero_ns=0, cpu_seconds=0.0)


class _Line:
    """A progress line on standard error: on a terminal one that changes, elsewhere one for each island."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._said = ""

    def hear(self, island: str, function: str, since: float) -> None:
        """Show the function that is being compiled, its island, and the seconds so far."""
        what = f" {function}, {seconds(since)}" if function else ""
        self.show(f"compiling for {island}", f":{what}" if what else "")

    def show(self, text: str, more: str = "") -> None:
        """Show a line; `more` changes with time."""
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[2K{text}{more}")
        elif text != self._said:
            sys.stderr.write(f"{text}\n")
        self._said = text
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
