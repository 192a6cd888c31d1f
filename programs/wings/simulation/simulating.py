"""`isthmus simulate world`: universes by the hundred, shown as text or as JSON.

Decides how the outcomes of seeds are shown; the meaning of a seed is in `seeds`, and the search in `searches`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from isthmus.programs import DEFAULT
from isthmus.programs.command.demands import Demand, check
from isthmus.programs.engine.results.words import seconds
from isthmus.programs.study.terminal.figures import ProgressLine, show
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.simulation import searches
from isthmus.programs.wings.simulation.searches import PHASES, idle, rare, rare_steps
from isthmus.programs.wings.simulation.seeds import run, shape_of
from isthmus.programs.wings.simulation.universe import Outcome
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNERS_MAX

SEARCHES: Final[Mapping[str, Callable[..., Outcome]]] = {
    "deaths": searches.run_deadly,
    "gangs": searches.run_ganged,
    "notices": searches.run_noticed,
    "liars": searches.run_lying,
}
"""What happens beside the usual faults."""
SEED_MAX: Final = (1 << 63) - 1
PROGRESS_SECONDS: Final = 0.5
LEARNERS_MIN: Final = 2
_DOING: Final = "Reading the options of `isthmus simulate world`"


def world(
    seed: int,
    seeds: int,
    program: str,
    *,
    least: int = 0,
    beside: Sequence[str] = (),
    learners: int | None = None,
    as_json: bool,
) -> bool:
    """Run seeds `seed` to `seed + seeds - 1`, and show the results; returns whether the search passed.

    It passes if there is no violation, every kind of fault happened at least `least` times in every phase of the runs,
    and, with `least`, every guard fired. `beside` names at most one of SEARCHES. With 'deaths', everything dies in each
    run, and `least` is the minimum of deaths at each step of a snapshot. With 'gangs', islands have several processes,
    and with `least` the faults of such islands have to happen. With 'notices', machines are told to leave, with
    'liars' parties of several machines lie. With `learners` each run has so many, of which some die and some join,
    instead of the few that its seed draws. ConfigError for numbers out of range and for programs that cannot be
    simulated.
    """
    _check(seed, seeds, least, program, learners)
    if "deaths" in beside and program not in searches.DEADLY:
        do = "Leave --program out, or --deaths."
        raise ConfigError(_DOING, f"--deaths of {' or '.join(searches.DEADLY)}", program, do)
    if len(beside) > 1:
        found = " and ".join(f"--{name}" for name in beside)
        raise ConfigError(_DOING, f"one of {', '.join(f'--{name}' for name in SEARCHES)}", found, "Leave one out.")
    search = beside[0] if beside else ""
    if search == "liars" and learners is not None:
        do = "Leave one out: the learners of such a run are its parties'."
        raise ConfigError(_DOING, "--learners without --liars", "both", do)
    if search == "gangs":
        searches.check(program)
    crowd = {} if learners is None else {"learners": learners}
    more = [f" --{search}"] * bool(search) + [f" --learners {learners}"] * bool(crowd)
    again = partial(command, program=program, more="".join(more))
    begun = told_at = time.monotonic()
    outcomes, failed, line = list[Outcome](), 0, ProgressLine()
    tried = partial(SEARCHES.get(search, run), program=program, **crowd)
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


def _check(seed: int, seeds: int, least: int, program: str, learners: int | None) -> None:
    wanted = [
        Demand(0 <= seed <= SEED_MAX, f"--seed from 0 to {SEED_MAX}", str(seed), "Choose another."),
        Demand(seeds >= 1, "--seeds of at least 1", str(seeds), "Say how many seeds to try."),
        Demand(least >= 0, "--each of at least 0", str(least), "Say how often each fault has to happen."),
    ]
    if learners is not None:
        within = f"--learners from {LEARNERS_MIN} to {LEARNERS_MAX} (LEARNERS_MAX)"
        is_within = LEARNERS_MIN <= learners <= LEARNERS_MAX
        wanted.append(Demand(is_within, within, str(learners), "Choose another number, or leave it to the seeds."))
    check(_DOING, wanted)
    shape_of(seed, program)
