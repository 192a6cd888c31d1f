"""`isthmus compare`: from the command line to a comparison that is shown.

Everything is checked in a child, which imports the task, before a folder is made or a run is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import msgspec

from isthmus.programs.command import config
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.cluster.cluster_file import HOSTS_OF_RUN
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.new_folder import InUseError, RunLock
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.engine.run.room_for_hosts import check_compiler, check_room_for
from isthmus.programs.settings import Text, collecting
from isthmus.programs.study.terminal.figures import show
from isthmus.programs.wings.compare import compare as folders
from isthmus.programs.wings.compare.compare import ComparisonPlan, ComparisonRequest, Pacing, plan
from isthmus.programs.wings.compare.compare_outcome import comparison
from isthmus.programs.wings.compare.compare_page import PAGE, sheet
from isthmus.programs.wings.compare.compare_runs import carry_out
from isthmus.programs.wings.report.page import write_sheet
from isthmus.runtime.errors import ConfigError, Fault

PROGRAMS: Final = ("data-parallel", "decoupled-diloco")
"""Default programs: the usual one, which is the reference, and the one meant to replace it."""
SEEDS_MAX: Final = 1000
_READING_OPTIONS: Final = "Reading the options of `isthmus compare`"


@final
@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of the command, beside those of `train`; `options.program` is not used."""

    options: Options
    programs: list[str]
    sweeps: list[str]
    seeds: int
    margin: float | None
    speeds: str | None
    delay_ms: float | None
    folder: Path | None


def compare(options: CompareOptions, *, as_json: bool) -> bool:
    """Compare; whether every run is done. ConfigError or GraphError if anything is wrong, before anything is started;
    KeyboardInterrupt at a signal."""
    check_compiler("Comparing")
    comparison_plan = msgspec.convert(in_child(lambda: msgspec.to_builtins(_plan(options))), ComparisonPlan)
    if comparison_plan.pacing is None:
        learners = max(variant.run.learners for variant, _ in comparison_plan.runs(options.seeds))
        check_room_for("Comparing", learners + HOSTS_OF_RUN)
    folder = folders.folder_of(comparison_plan, options.folder)
    comparison_plan = folders.opened(folder, comparison_plan)
    try:
        with RunLock(folder):
            failed = carry_out(folder, comparison_plan, options.seeds)
            result = sheet(comparison(folder, comparison_plan, options.seeds, failed))
            write_sheet(folder / PAGE, result)
    except InUseError as error:
        do = "Wait for its end; then the same command shows what came of it."
        raise ConfigError(f"Comparing in {folder}", "a folder that nobody else uses", str(error), do) from None
    show(result, as_json=as_json, last=f"Runs and page: {folder}")
    return not failed


def _plan(options: CompareOptions) -> ComparisonPlan:
    """The plan; ConfigError with everything that is wrong."""
    shared = options.options
    sections, faults = config.read(shared.config, shared.model, shared.keys(), shared.sets or ())
    sweeps: dict[tuple[str, str], list[Any]] = {}
    for text in options.sweeps:
        with collecting(faults):
            section, key, value = config.assignment(text, "--sweep")
            if (section, key) in sweeps:
                raise ConfigError("Reading --sweep", "each key once", f"{section}.{key} twice", "Name all its values.")
            sweeps[section, key] = [Text(each.strip()) for each in value.split(",")]
    if not 1 <= options.seeds <= SEEDS_MAX:
        faults.append(
            Fault(_READING_OPTIONS, f"--seeds from 1 to {SEEDS_MAX}", str(options.seeds), "Three are a beginning.")
        )
    pacing = None
    with collecting(faults):
        pacing = _pacing(options.speeds, options.delay_ms)
    named = options.programs or ([sections.program_reference] if sections.program_reference else PROGRAMS)
    wanted = ComparisonRequest(
        programs=tuple(map(reference.absolute, named)),
        task=sections.task_reference,
        sections={"run": sections.run, "program": sections.program, "task": sections.task},
        sweeps=sweeps,
        pacing=pacing,
        margin=options.margin,
    )
    return plan(wanted, faults)


def _pacing(speeds: str | None, delay_ms: float | None) -> Pacing | None:
    """The pacing of virtual time; None in real time. Its ranges are checked by the plan."""
    if speeds is None and delay_ms is not None:
        raise ConfigError("Reading --delay", "--speeds with it", "no --speeds", "Add --speeds 1: real links delay.")
    if speeds is None:
        return None
    try:
        numbers = tuple(float(each) for each in speeds.split(","))
    except ValueError:
        do = "Write for example --speeds 1,1,0.8,0.6."
        raise ConfigError("Reading --speeds", "numbers, divided by commas", repr(speeds), do) from None
    return Pacing(numbers) if delay_ms is None else Pacing(numbers, delay_ms=delay_ms)
