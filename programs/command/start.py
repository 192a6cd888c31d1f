"""`isthmus train` in processes: under a private daemon or under the home of a cluster's runs, watched or detached.

A home is called before anything is prepared, and asks all other machines whether they take the request before anything
is written, so that a wrong request leaves nothing behind.

A request made ready for the machines of a cluster: placed, and checked with each before anything is written.

`isthmus compile`: the functions of a run's learners, compiled for islands that are not here.

`isthmus compare`: from the command line to a comparison that is shown.

Everything is checked in a child, which imports the task, before a folder is made or a run is started.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import msgspec
import typer

from isthmus.programs.command import config
from isthmus.programs.command.options import Options
from isthmus.programs.engine.cluster import handover as digest
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import Handover, Sites
from isthmus.programs.engine.cluster.placing import elastic_sizes, placed
from isthmus.programs.engine.machine import client as machine_client
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.new_folder import InUseError, RunLock
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import seconds
from isthmus.programs.engine.run.in_processes import DetachedError, Submitted, detach, in_child, submit_in_child
from isthmus.programs.engine.run.resume import check_program, is_store, resumed
from isthmus.programs.settings import Text, collecting
from isthmus.programs.study.aot.compiling import check_compiler, compiled_for, finder, keep, lines_of
from isthmus.programs.study.aot.figures import Target, target
from isthmus.programs.study.lab import compare as folders
from isthmus.programs.study.lab.compare import ComparisonPlan, ComparisonRequest, Pacing, plan
from isthmus.programs.study.lab.compare_outcome import comparison
from isthmus.programs.study.lab.compare_page import RunsProgress, notes, show, write_page
from isthmus.programs.study.lab.compare_runs import carry_out
from isthmus.programs.study.terminal.live import announce, announce_resumption, preparing, watching
from isthmus.programs.training import start_on_machine, start_processes
from isthmus.runtime.errors import ConfigError, Fault, PlacementError
from isthmus.runtime.graph.placement import Placement


def train(options: Options, *, is_detached: bool, quiet: bool) -> None:
    """Prepare the requested run, and start it; watch it unless it is detached."""
    cluster = options.machines
    if options.transport == "inproc":
        option = "--detach" if cluster is None else "--cluster"
        do = "Leave --transport out."
        raise ConfigError(f"Reading {option}", "a run in processes", "--transport inproc", do)
    if cluster is not None:
        _train_there(options, cluster, is_detached=is_detached, quiet=quiet)
        return
    with preparing(quiet=quiet):
        submitted = submit_in_child(lambda: options.request().to_train().with_store())
    announce(submitted.chosen, submitted.warnings, quiet=quiet)
    _run(submitted, is_detached=is_detached, quiet=quiet)


def resume(where: str, options: Options, *, is_detached: bool, quiet: bool) -> None:
    """Go on with a run that was cut off, in its folder or from a store; watch it unless it is detached."""
    options.check_resume(*(["run_dir"] if is_store(where) else []))

    def request_of(folder: Path, more: Mapping[str, Any], doing: str) -> Request:
        asked = {each.split("=")[0].strip() for each in options.sets or ()}
        sets = [f"run.{name}={value}" for name, value in more.items() if f"run.{name}" not in asked]
        wanted = options.resumed(folder).with_sets(sets)
        check_program(spec.load(folder), wanted.program_reference(), doing)
        return wanted.request()

    with preparing(quiet=quiet):
        submitted = resumed(where, options.run_dir, request_of)
    if submitted.resumption is not None:
        announce_resumption(submitted.resumption, quiet=quiet)
    _run(submitted, is_detached=is_detached, quiet=quiet)


def resume_elsewhere(run: str, cluster: Cluster | None, home: str | None, run_dir: Path | None) -> None:
    """Make another machine the home of a run whose home was lost: of its folder there, or of the snapshots at a URL."""
    if cluster is None:
        do = f"Name the machines with --cluster FILE.toml; a run of this machine alone: isthmus train --resume {run}"
        raise ConfigError("Reading the command line of `isthmus resume`", "--cluster", "none", do)
    daemon = DaemonClient.next_of(cluster, home)
    answer = machine_client.resume_there(daemon, cluster, run, run_dir)
    lines = [
        f"{daemon.name} is the home of {answer['name']}, in term {answer['term']}; its folder there is {answer['run']}"
    ]
    lines += [f"{machine} does not take part yet: {why}" for machine, why in answer["missing"].items()]
    lines.append(f"watch it   isthmus status --watch {answer['run']}        (on {daemon.name})")
    typer.echo("\n".join(lines))


def _run(submitted: Submitted, *, is_detached: bool, quiet: bool) -> None:
    if is_detached:
        detach(submitted)
        typer.echo(_parting(submitted, "by itself", quiet=quiet))
        return
    try:
        with watching(submitted, quiet=quiet, is_resumed=submitted.resumption is not None) as view:
            start_processes(submitted, view, detaches=True)
    except DetachedError:
        typer.echo(f"isthmus: standard output was closed; {_parting(submitted, 'by itself', quiet=False)}", err=True)


def _train_there(options: Options, cluster: Cluster, *, is_detached: bool, quiet: bool) -> None:
    """Let the machines of a cluster train."""
    daemon = DaemonClient.of(cluster)
    folder = machine_client.folder_there(daemon, daemon.find()["root"], options.run_dir)

    def work() -> dict[str, Any]:

        # The home chooses the folder.
        request = replace(options, run_dir=None).request().to_train().with_store()
        data = handover(request, cluster, folder).as_data()
        return {"handover": data, "warnings": request.warnings, "chosen": dict(request.chosen)}

    with preparing(quiet=quiet):
        prepared = in_child(work)
    handed = Handover.read(prepared["handover"])
    announce(prepared["chosen"], [Fault(*warning) for warning in prepared["warnings"]], quiet=quiet)
    if is_detached:
        submitted = machine_client.hand_over_detached(daemon, handed)
        typer.echo(_parting(submitted, f"under the daemon {daemon.name}", quiet=quiet))
        return
    start_on_machine(daemon, handed, lambda submitted: watching(submitted, quiet=quiet))


def _parting(submitted: Submitted, whose: str, *, quiet: bool) -> str:
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


def handover(request: Request, cluster: Cluster, folder: str) -> Handover:
    """The handover to the home of a run, for a folder of that name there.

    ConfigError with the refusals of all machines, and the obstacles to placing the run.
    """
    from isthmus.programs.engine.cluster.prediction import nodes_placed
    from isthmus.programs.engine.request.graph_view import as_json

    daemon = DaemonClient.of(cluster)
    faults: list[Fault] = []
    placement = Placement({}, daemon.name)
    try:
        placement = placed(request, cluster.topology, finder(request))
    except PlacementError as error:
        faults = list(error.faults)
    job = request.job
    modules_digest = digest.digest(job.program, job.task.text)
    sites = Sites.of(daemon.name, cluster.machines, placement.machines, modules_digest)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    run_spec = spec.of(request, zero_ns=0, cpu_seconds=sum(usage.ru_utime + usage.ru_stime for usage in used))
    run_spec["settings"]["processes"] = list(placement.processes)
    if not faults:
        run_spec["elastic"] = elastic_sizes(request, cluster.topology, placement)
    message = {
        "type": "check",
        "program": job.program,
        "task": job.task.text,
        "computing": run_spec["computing"],
        "run": folder or request.name,
        "cluster": sites.as_data(),
        "faults": [list(fault) for fault in faults],
    }
    _check(daemon, message, faults)
    shape = as_json(request.graph, request.proof, request.fingerprint, nodes_placed(request, placement))
    return Handover(request.name, folder, request.config_text, shape, run_spec, sites)


def _check(daemon: DaemonClient, message: dict[str, Any], faults: list[Fault]) -> None:
    """Let the home ask all machines; ConfigError with their refusals, and the faults that are known already."""
    try:
        daemon.say(message)
    except ConfigError as error:
        raise ConfigError.of([*(fault for fault in faults if fault not in error.faults), *error.faults]) from None


_READING_ISLANDS: Final = "Reading --island"
_PREPARING: Final = "the request is read, the task is run on shapes"


def compile_for(options: Options, islands: Sequence[str], *, fit: bool, as_json: bool) -> bool:
    """Compile the functions of each learner for its island, the first for slot 0, and show the figures.

    With `fit` also the largest batch. Returns whether all fit. ConfigError with the faults of the request, or if there
    is no compiler.
    """
    targets = _targets(islands)
    check_compiler(f"Compiling for {targets[0].name}")
    line = _Line()
    try:
        line.show(_PREPARING)
        spec = in_child(lambda: _spec_of(options, targets))
        figures = [compiled_for(each, slot, spec, line.hear, fit=fit) for slot, each in enumerate(targets)]
    finally:
        line.clear()
    keep(spec, dict(enumerate(zip(targets, figures, strict=True))))
    if as_json:
        typer.echo(json.dumps({"islands": [each.as_data() for each in figures]}, indent=2))
    else:
        typer.echo("\n\n".join(map(lines_of, figures)))
    return all(each.fits for each in figures)


def _targets(islands: Sequence[str]) -> list[Target]:
    """The islands that were named; one ConfigError with all that are none."""
    if not islands:
        raise ConfigError(
            _READING_ISLANDS, "the islands to compile for", "none", "Name one: --island v5p:2x2x1, or v6e:2x2."
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
    folder: Path | None


def compare(options: CompareOptions, *, as_json: bool) -> bool:
    """Compare; whether every run is done. ConfigError or GraphError if anything is wrong, before anything is started;
    KeyboardInterrupt at a signal."""
    comparison_plan = msgspec.convert(in_child(lambda: msgspec.to_builtins(_plan(options))), ComparisonPlan)
    folder = folders.folder_of(comparison_plan, options.folder)
    comparison_plan = folders.opened(folder, comparison_plan)
    progress = RunsProgress()
    try:
        with RunLock(folder):
            failed = carry_out(folder, comparison_plan, options.seeds, progress.on_event)
            progress.clear()
            outcome = comparison(folder, comparison_plan, options.seeds, failed)
            write_page(folder, outcome, list(notes(outcome)))
    except KeyboardInterrupt:
        progress.broken_off()
        raise
    except InUseError as error:
        do = "Wait for its end; then the same command shows what came of it."
        raise ConfigError(f"Comparing in {folder}", "a folder that nobody else uses", str(error), do) from None
    show(outcome, as_json=as_json)
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
        pacing = None if options.speeds is None else _pacing(options.speeds)
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


def _pacing(speeds: str) -> Pacing:
    try:
        return Pacing(tuple(float(each) for each in speeds.split(",")))
    except ValueError:
        do = "Write for example --speeds 1,1,0.8,0.6."
        raise ConfigError("Reading --speeds", "numbers, divided by commas", repr(speeds), do) from None
