"""`isthmus chaos`: its request, checked before anything starts, and its results.

`isthmus simulate world`: universes by the hundred, shown as text or as JSON.

Decides how the outcomes of seeds are shown; the meaning of a seed is in `simulation.seeds`, and the processes that run
them in `simulation.workers`.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from isthmus.programs import DEFAULT, SHIPPED, settings
from isthmus.programs.command.config import absolute
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.report.sheet import PageSection, Sheet, table
from isthmus.programs.engine.request.new_folder import choose
from isthmus.programs.engine.results.words import seconds
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.study.lab import chaos_plan as plans
from isthmus.programs.study.lab.chaos_page import PAGE, write_page
from isthmus.programs.study.lab.chaos_plan import ChaosPlan
from isthmus.programs.study.lab.chaos_strikes import check_permitted
from isthmus.programs.study.lab.chaos_trial import TrainingOrder, Tried, as_data, try_program
from isthmus.programs.study.lab.demands import Demand, check
from isthmus.programs.study.simulation import searches
from isthmus.programs.study.simulation.searches import PHASES, idle, rare, rare_steps
from isthmus.programs.study.simulation.seeds import run, shape_of
from isthmus.programs.study.simulation.universe import Outcome
from isthmus.programs.study.terminal.figures import ProgressLine, show
from isthmus.runtime.errors import ConfigError, RunError
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.system.files import write_json

PROGRAMS: Final = (DEFAULT, "data-parallel", "elastic-data-parallel")
FIGURES: Final = "chaos.json"
_SUFFIX: Final = ".toml"


def chaos(what: Sequence[str], run_dir: Path | None, *, as_json: bool) -> bool:
    """Try programs under a plan, and show the figures; whether all runs were done and all faults happened.

    A program that fails is told, and the others go on; RunError if all do. ConfigError for a plan or a request that is
    wrong, before anything starts.
    """
    file, programs = _named(what)
    plan = plans.ChaosPlan() if file is None else _read(file)
    plans.check_programs(plan, [*programs, *SHIPPED])
    orders = [_order(plan, program) for program in programs]
    hosts = in_child(lambda: {order.program: _hosts(order) for order in orders})
    plans.check_hosts(plan, sorted({host for each in hosts.values() for host in each}))
    check_permitted()
    orders = [_placed(plan, order, hosts[order.program]) for order in orders]
    folder = choose(run_dir, "chaos", datetime.now())
    tried, failures, line = list[Tried](), list[RunError](), ProgressLine()
    for order in orders:
        try:
            tried.append(try_program(order, hosts[order.program], plan, folder, tried[:1], line.say))
        except RunError as error:
            failures.append(error)
            line.say(f"{order.program} failed: {error}")
            continue
        write_json(folder / FIGURES, as_data(tried))
        sheet = write_page(folder, tried)
    if not tried:
        raise failures[0]
    show(sheet, as_json=as_json, last=f"page  {os.path.relpath(folder / PAGE)}")
    return not failures and all(each.is_good for each in tried)


def _named(what: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The plan's file and the programs."""
    doing = "Reading the command line of `isthmus chaos`"
    files, programs = [text for text in what if text.endswith(_SUFFIX)], []
    if len(files) > 1:
        raise ConfigError(doing, "one plan", " and ".join(files), "Name one.")
    for text in what:
        if text in programs:
            raise ConfigError(doing, "each program once", f"{text} twice", "Name it once.")
        programs += [text] * (text not in files)
    return (Path(files[0]) if files else None), programs or list(PROGRAMS)


def _read(file: Path) -> ChaosPlan:
    document = settings.read_file(file, "the plan", "Name a plan, or leave it out for the built-in one.")
    return plans.read(document, str(file)).in_folder(file.absolute().parent, absolute)


def _order(plan: ChaosPlan, program: str) -> TrainingOrder:
    """A program with the settings of a plan's sections."""
    run = {key: value for key, value in plan.run.items() if key != "task"}
    sections = {"run": run, "program": plan.program.get(program, {}), "task": plan.task}
    keys = [(f"{name}.{key}", value) for name, section in sections.items() for key, value in section.items()]
    return TrainingOrder(
        program, plan.run.get("task"), tuple(f"{key}={settings.value(value)}" for key, value in keys), plan.links
    )


def _placed(plan: ChaosPlan, order: TrainingOrder, hosts: Sequence[str]) -> TrainingOrder:
    """The same order, on the plan's machines."""
    learners = sum(host.startswith(LEARNER) for host in hosts)
    return replace(order, machines=plans.machines_of(plan, hosts), learners=learners)


def _hosts(order: TrainingOrder) -> list[str]:
    """The hosts at the start of a run; ConfigError with the faults of the request."""
    from isthmus.programs.engine.recorder.summary import roster_counts

    request = Options(order.program, None if order.task is None else [order.task], sets=list(order.sets)).request()
    counts = roster_counts(request.to_train().graph, request.job.learners)
    return [f"{role}/{slot}" for role, count in counts.items() for slot in range(count)]


SEARCHES: Final[Mapping[str, Callable[..., Outcome]]] = {
    "deaths": searches.run_deadly,
    "gangs": searches.run_ganged,
    "notices": searches.run_noticed,
    "liars": searches.run_lying,
}
"""What happens beside the usual faults."""
SEED_MAX: Final = (1 << 63) - 1
PROGRESS_SECONDS: Final = 0.5


def world(
    seed: int,
    seeds: int,
    program: str,
    *,
    least: int = 0,
    beside: Sequence[str] = (),
    as_json: bool,
) -> bool:
    """Run seeds `seed` to `seed + seeds - 1`, and show the results; returns whether the search passed.

    It passes if there is no violation, every kind of fault happened at least `least` times in every phase of the runs,
    and, with `least`, every guard fired. `beside` names at most one of SEARCHES. With 'deaths', everything dies in each
    run, and `least` is the minimum of deaths at each step of a snapshot. With 'gangs', islands have several processes,
    and with `least` the faults of such islands have to happen. With 'notices', machines are told to leave, with
    'liars' parties of several machines lie. ConfigError for numbers out of range and for programs that cannot be
    simulated.
    """
    _check(seed, seeds, least, program)
    if "deaths" in beside and program != DEFAULT:
        do = "Leave --program out, or --deaths."
        raise ConfigError("Reading the options of `isthmus simulate world`", f"--deaths of {DEFAULT}", program, do)
    if len(beside) > 1:
        doing = "Reading the options of `isthmus simulate world`"
        found = " and ".join(f"--{name}" for name in beside)
        raise ConfigError(doing, f"one of {', '.join(f'--{name}' for name in SEARCHES)}", found, "Leave one out.")
    search = beside[0] if beside else ""
    if search == "gangs":
        searches.check(program)
    again = partial(command, program=program, more=f" --{search}" if search else "")
    begun = told_at = time.monotonic()
    outcomes, failed, line = list[Outcome](), 0, ProgressLine()
    tried = partial(SEARCHES.get(search, run), program=program)
    interrupted: KeyboardInterrupt | None = None
    running = searches.outcomes(tried, range(seed, seed + seeds))
    try:
        for outcome in running:
            outcomes.append(outcome)
            failed += outcome.violation is not None
            if outcome.violation is not None and not as_json:
                line.show("")
                sys.stdout.write(story(outcome, again) + "\n")
                sys.stdout.flush()
            now = time.monotonic()
            if now - told_at >= PROGRESS_SECONDS:
                told_at = now
                line.show(progress(len(outcomes), seeds, failed, now - begun))
    except KeyboardInterrupt as error:
        interrupted = error
    finally:
        running.close()
    line.show("")
    outcomes.sort(key=lambda outcome: outcome.seed)
    took = time.monotonic() - begun
    phases = sum((outcome.phases for outcome in outcomes), Counter[tuple[str, str]]())
    guards = sum((outcome.guards for outcome in outcomes), Counter[str]())
    missing: list[str] = []
    if interrupted is not None:
        missing = []  # What is rare so far says nothing.
    elif search == "deaths":
        missing = rare_steps(phases, least)
    elif search == "gangs":
        missing = searches.unseen(guards) if least else []
    elif not search:
        missing = rare(phases, program, least) + (idle(guards, program) if least else [])
    show(_sheet(outcomes, seeds, phases, guards, took, again, missing), as_json=as_json)
    if interrupted is not None:
        raise interrupted
    return not failed and not missing


def progress(done: int, seeds: int, failed: int, took: float) -> str:
    """One line: the progress of a search, and the time left."""
    left = seconds((seeds - done) * took / done)
    wrong = f", {failed} with a violation" if failed else ""
    return f"{done} of {seeds} seeds{wrong}; {60 * done / took:.0f} a minute, about {left} left"


def story(outcome: Outcome, again: Callable[[int], str]) -> str:
    """The violation of a seed, its faults, and the command that repeats it."""
    lines = [f"seed {outcome.seed} failed after {outcome.seconds:.3f} virtual seconds: {outcome.violation}"]
    lines = lines[0].splitlines()
    lines += [f"    {line}" for line in outcome.story or ["    no fault had happened"]]
    return "\n".join([*lines, f"  again: {again(outcome.seed)}", ""])


def command(seed: int, program: str, *, more: str = "") -> str:
    """The command that runs a seed again, with `more` options."""
    named = "" if program == DEFAULT else f" --program {program}"
    return f"isthmus simulate world --seed {seed}{named}{more}"


def _sheet(
    outcomes: list[Outcome],
    asked: int,
    phases: Counter[tuple[str, str]],
    guards: Counter[str],
    took: float,
    again: Callable[[int], str],
    missing: list[str],
) -> Sheet:
    """Counts of each kind of fault by phase of the runs, and of each guard; in its data `failures` are the seeds with a
    violation, `too_rare` the `missing` faults, `seeds` those of the `asked` ones that have finished."""
    counts = {kind: {phase: phases[kind, phase] for phase in PHASES} for kind in sorted({kind for kind, _ in phases})}
    failures = [
        {
            "seed": outcome.seed,
            "violation": outcome.violation,
            "seconds": outcome.seconds,
            "story": outcome.story,
            "command": again(outcome.seed),
        }
        for outcome in outcomes
        if outcome.violation is not None
    ]
    digest = {"tape_digest": outcomes[0].tape_digest} if len(outcomes) == 1 else {}
    data = {
        "seeds": len(outcomes),
        "seeds_asked": asked,
        "violations": len(failures),
        "faults": {kind: sum(each.values()) for kind, each in counts.items()},
        "phases": counts,
        "guards": dict(sorted(guards.items())),
        "seeds_per_minute": round(60 * len(outcomes) / took, 1),
        "failures": failures,
        "too_rare": missing,
        **digest,
    }
    virtual = sum(outcome.seconds for outcome in outcomes)
    many = f"{len(outcomes)} seed{'s' * (len(outcomes) > 1)}"
    if len(outcomes) < asked:
        many = f"{len(outcomes)} of {asked} seeds had finished when it was ended"
    lead = (
        f"{many}, {len(failures) or 'none'} with a violation; "
        f"{seconds(virtual)} of virtual time in {seconds(took)}, {60 * len(outcomes) / took:.0f} seeds a minute"
    )
    faults = [[kind, *map(str, (*each.values(), sum(each.values())))] for kind, each in counts.items()]
    tables = [
        table(("fault", *PHASES, "in all"), faults),
        table(("guard", "times"), [(name, str(count)) for name, count in sorted(guards.items())]),
    ]
    notes = [lead, *(f"tape {each}" for each in digest.values()), *(f"too rare: {each}" for each in missing)]
    return Sheet("Universes", lead, [PageSection("Faults", tables, notes)], data)


def _check(seed: int, seeds: int, least: int, program: str) -> None:
    wanted = [
        Demand(0 <= seed <= SEED_MAX, f"--seed from 0 to {SEED_MAX}", str(seed), "Choose another."),
        Demand(seeds >= 1, "--seeds of at least 1", str(seeds), "Say how many seeds to try."),
        Demand(least >= 0, "--each of at least 0", str(least), "Say how often each fault has to happen."),
    ]
    check("Reading the options of `isthmus simulate world`", wanted)
    shape_of(seed, program)
