"""`isthmus simulate world`: universes by the hundred, told to people or as JSON.

It decides how the outcomes of seeds are shown, and over how many processes they are spread; what a seed is, `simulate`
says. The outcome of a seed does not depend on the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final

from isthmus.programs.program import DEFAULT, Program
from isthmus.programs.simulate import Outcome, run
from isthmus.runtime.errors import ConfigError, Fault

APART_MIN: Final = 40
"""Fewer seeds are over before other processes have started."""
BATCH: Final = 4
SEED_MAX: Final = (1 << 63) - 1
PROGRESS_SECONDS: Final = 0.5
PHASES: Final = ("starting", "stepping", "final")


def world(seed: int, seeds: int, program: str, *, as_json: bool) -> bool:
    """Run seeds `seed` to `seed + seeds - 1`, and show what came of them; whether nothing was wrong.

    ConfigError for numbers out of range and for programs that cannot be simulated.
    """
    _check(seed, seeds, program)
    begun = time.monotonic()
    outcomes, told = [], begun
    for outcome in _outcomes(seed, seeds, program):
        outcomes.append(outcome)
        if outcome.violation is not None and not as_json:
            _clear()
            sys.stdout.write(story(outcome, program))
        now = time.monotonic()
        if now - told >= PROGRESS_SECONDS and sys.stderr.isatty():
            told = now
            _clear(f"{len(outcomes)} of {seeds} seeds")
    _clear()
    took = time.monotonic() - begun
    shown = json.dumps(as_object(outcomes, took, program), indent=2) + "\n" if as_json else table(outcomes, took)
    sys.stdout.write(shown)
    return all(outcome.violation is None for outcome in outcomes)


def story(outcome: Outcome, program: str) -> str:
    """What was wrong with a seed, what had happened to it, and how to see it again."""
    lines = [f"seed {outcome.seed} failed after {outcome.seconds:.3f} virtual seconds: {outcome.violation}"]
    lines += [f"    {line}" for line in outcome.story or ["    no fault had happened"]]
    return "\n".join([*lines, f"  again: {command(outcome.seed, program)}", ""])


def command(seed: int, program: str) -> str:
    """The command that runs a seed again."""
    more = "" if program == DEFAULT else f" --program {program}"
    return f"isthmus simulate world --seed {seed}{more}"


def table(outcomes: list[Outcome], took: float) -> str:
    """How often each kind of fault happened in each phase of the runs, and the figures."""
    phases = _phases(outcomes)
    lines = [f"{'fault':<8}" + "".join(f"{phase:>10}" for phase in PHASES) + f"{'in all':>10}"]
    for kind in sorted({kind for kind, _ in phases}):
        counts = [phases[kind, phase] for phase in PHASES]
        lines.append(f"{kind:<8}" + "".join(f"{count:>10}" for count in (*counts, sum(counts))))
    failed = sum(outcome.violation is not None for outcome in outcomes)
    passed = sum(outcome.seconds for outcome in outcomes)
    many = "1 seed" if len(outcomes) == 1 else f"{len(outcomes)} seeds"
    lines += [
        "",
        f"{many}, {failed or 'none'} with a violation; {passed:.0f} virtual seconds in {took:.1f} s, "
        f"{60 * len(outcomes) / took:.0f} seeds a minute",
    ]
    if len(outcomes) == 1:
        lines.append(f"tape {outcomes[0].tape_digest}")
    return "\n".join(lines) + "\n"


def as_object(outcomes: list[Outcome], took: float, program: str) -> dict[str, Any]:
    """The same for programs; `failures` are the seeds with a violation."""
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults += outcome.faults
    failures = [
        {
            "seed": outcome.seed,
            "violation": outcome.violation,
            "seconds": outcome.seconds,
            "story": outcome.story,
            "command": command(outcome.seed, program),
        }
        for outcome in outcomes
        if outcome.violation is not None
    ]
    phases = _phases(outcomes)
    told: dict[str, Any] = {
        "seeds": len(outcomes),
        "violations": len(failures),
        "faults": dict(sorted(faults.items())),
        "phases": {kind: {phase: phases[kind, phase] for phase in PHASES} for kind in sorted(faults)},
        "seeds_per_minute": round(60 * len(outcomes) / took, 1),
        "failures": failures,
    }
    if len(outcomes) == 1:
        told["tape_digest"] = outcomes[0].tape_digest
    return told


def _check(seed: int, seeds: int, program: str) -> None:
    doing, faults = "Reading the options of `isthmus simulate world`", []
    if not 0 <= seed <= SEED_MAX:
        faults.append(Fault(doing, f"--seed from 0 to {SEED_MAX}", str(seed), "Choose another."))
    if seeds < 1:
        faults.append(Fault(doing, "--seeds of at least 1", str(seeds), "Say how many seeds to try."))
    if faults:
        raise ConfigError.of(faults)
    Program(program).builder()
    if program != DEFAULT:
        do = "Its invariants are those that are checked; test other programs with the fixture `world`."
        raise ConfigError(doing, f"--program {DEFAULT}", program, do)


def _outcomes(seed: int, seeds: int, program: str) -> Iterator[Outcome]:
    """Of all seeds, in order."""
    wanted = range(seed, seed + seeds)
    if seeds < APART_MIN:
        yield from (run(each, program) for each in wanted)
        return
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(run, program=program), wanted, chunksize=BATCH)


def _phases(outcomes: list[Outcome]) -> Counter[tuple[str, str]]:
    phases: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        phases += outcome.phases
    return phases


def _clear(line: str = "") -> None:
    """Show a line of progress in the place of the one before."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
