"""`isthmus compare`: from the command line to a comparison that is shown.

Everything is checked in a child, which imports the task, before a folder is made or a run is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import msgspec

from isthmus.programs.arguments import config
from isthmus.programs.arguments.options import Options
from isthmus.programs.comparison import folder as folders
from isthmus.programs.comparison.outcome import comparison
from isthmus.programs.comparison.page import write_page
from isthmus.programs.comparison.plan import Pacing, Plan
from isthmus.programs.comparison.runs import carry_out
from isthmus.programs.comparison.wanted import Wanted, plan
from isthmus.programs.request import reference
from isthmus.programs.request.run_lock import InUseError, RunLock
from isthmus.programs.request.settings import Text, collecting
from isthmus.programs.run.in_processes import apart
from isthmus.programs.terminal.comparison import Progress, notes, show
from isthmus.runtime.errors import ConfigError, Fault

PROGRAMS: Final = ("data-parallel", "decoupled-diloco")
"""Default programs: the usual one, which is the reference, and the one meant to replace it."""
SEEDS_MAX: Final = 1000
_DOING: Final = "Reading the options of `isthmus compare`"


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, beside those of `train`; `options.program` is not used."""

    options: Options
    programs: list[str]
    sweeps: list[str]
    seeds: int
    margin: float | None
    speeds: str | None
    folder: Path | None


def compare(asked: Asked, *, as_json: bool) -> bool:
    """Compare; whether every run is done. ConfigError or GraphError if anything is wrong, before anything is started;
    KeyboardInterrupt at a signal."""
    made = msgspec.convert(apart(lambda: msgspec.to_builtins(_plan(asked))), Plan)
    folder = folders.folder_of(made, asked.folder)
    made = folders.opened(folder, made)
    progress = Progress()
    try:
        with RunLock(folder):
            failed = carry_out(folder, made, asked.seeds, progress.hear)
            progress.clear()
            found = comparison(folder, made, asked.seeds, failed)
            write_page(folder, found, list(notes(found)))
    except KeyboardInterrupt:
        progress.broken_off()
        raise
    except InUseError as error:
        do = "Wait for its end; then the same command shows what came of it."
        raise ConfigError(f"Comparing in {folder}", "a folder that nobody else uses", str(error), do) from None
    show(found, as_json=as_json)
    return not failed


def _plan(asked: Asked) -> Plan:
    """The plan; ConfigError with everything that is wrong."""
    given = asked.options
    sections, faults = config.read(given.config, given.model, given.keys(), given.sets or ())
    sweeps: dict[tuple[str, str], list[Any]] = {}
    for text in asked.sweeps:
        with collecting(faults):
            section, key, value = config.assignment(text, "--sweep")
            if (section, key) in sweeps:
                raise ConfigError("Reading --sweep", "each key once", f"{section}.{key} twice", "Name all its values.")
            sweeps[section, key] = [Text(each.strip()) for each in value.split(",")]
    if not 1 <= asked.seeds <= SEEDS_MAX:
        faults.append(Fault(_DOING, f"--seeds from 1 to {SEEDS_MAX}", str(asked.seeds), "Three are a beginning."))
    pacing = None
    with collecting(faults):
        pacing = None if asked.speeds is None else _pacing(asked.speeds)
    named = asked.programs or ([sections.program_reference] if sections.program_reference else PROGRAMS)
    wanted = Wanted(
        programs=tuple(map(reference.absolute, named)),
        task=sections.task_reference,
        sections={"run": sections.run, "program": sections.program, "task": sections.task},
        sweeps=sweeps,
        pacing=pacing,
        margin=asked.margin,
    )
    return plan(wanted, faults)


def _pacing(speeds: str) -> Pacing:
    try:
        return Pacing(tuple(float(each) for each in speeds.split(",")))
    except ValueError:
        do = "Write for example --speeds 1,1,0.8,0.6."
        raise ConfigError("Reading --speeds", "numbers, divided by commas", repr(speeds), do) from None
