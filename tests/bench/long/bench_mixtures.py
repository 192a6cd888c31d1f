"""Mixtures of learners, beside what was published: of two speeds, or with some that join half-way.

    python -m tests.bench.long.bench_mixtures speeds [--learners 8] [--slower .847] [--steps 100] [--json] [--page FILE]
    python -m tests.bench.long.bench_mixtures borrowed [--learners 4] [--steps 200] [--json] [--page FILE]

Each case is a whole run of the simulator's toy in virtual time: hosts, cores, wire and supervision are those of a real
run, and steps take the given time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.command.demands import Demand, check, within
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, roster_counts
from isthmus.programs.engine.recorder.roles import least_replicas
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.request.run_settings import SNAPSHOT_SECONDS_DEFAULT
from isthmus.programs.engine.results.words import percent, seconds
from isthmus.programs.program_graph import REGION
from isthmus.programs.study.terminal.figures import show
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.report.charts_lines import ChartLine, draw_lines
from isthmus.programs.wings.report.page import write_sheet
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.places import MACHINES, cast_of
from isthmus.programs.wings.simulation.universe import FOLDER
from isthmus.programs.wings.simulation.virtual_run import VirtualPace
from isthmus.runtime.errors import ConfigError, RunError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.host.contract import Span, Trace
from isthmus.runtime.host.virtual_time import Spread, evenly, normally
from isthmus.runtime.ids import ONE_RECORDER
from isthmus.runtime.sim.faults import Fault as SimulatedFault
from isthmus.runtime.sim.faults import Join
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import BOOT_SECONDS, Universe
from isthmus.runtime.supervision.flows import RunFlows


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a run, as in `summary.json`, its spans, and how often each kind of fault happened."""

    summary: dict[str, Any]
    spans: list[Span]
    faults: dict[str, int]


def measured(
    program: Program,
    *,
    learners: int,
    steps: int,
    pace: VirtualPace,
    faults: Iterable[SimulatedFault] = (),
    boot_seconds: float = BOOT_SECONDS,
    seed: int = 0,
    seconds_max: float = 36_000.0,
    spread: Spread = evenly,
) -> Measured:
    """Train the toy for `steps` a learner, on average; the summary's `outcome` is how it ended. `spread` draws jitter.

    RunError if a body fails, TimeoutError if it does not end.
    """
    graph = toy_task.graph_of(program, learners=learners, steps=steps, seed=seed)
    counts, trace = roster_counts(graph, learners), Trace()

    universe = Universe(
        lower(graph),
        cast_of(counts, least_replicas(graph)),
        MACHINES,
        seed=seed,
        resolve=resolving(FOLDER, resolve, SNAPSHOT_SECONDS_DEFAULT),
        duration=pace.duration,
        jitter=pace.jitter,
        spread=spread,
        climate=Climate(latency=pace.delay_ms / 1e3, jitter=pace.jitter * pace.delay_ms / 1e3),
        faults=faults,
        trace=trace,
        boot_seconds=boot_seconds,
    )
    try:
        universe.run(lambda: universe.outcome is not None, seconds_max=seconds_max)
        recorder = universe.last(ONE_RECORDER)
        if universe.outcome is None or recorder is None:
            raise RunError("the simulated run ended without a word of its recorder")
        summary = summarise(
            recorder.host.published["record"],
            trace.spans,
            program=program.name,
            outcome=universe.outcome,
            learners=learners,
            shards=counts.get("syncer", 0),
            fragment_sizes=fragment_sizes(graph),
            ended=universe.clock.now(),
            cpu_seconds=0.0,
            graph=graph,
            flows=RunFlows.of(((replica, host.flows) for replica, host in universe.hosts.items()), REGION),
            step_tokens=toy_task.TOKENS_PER_BATCH,
        )
        return Measured(summary, list(trace.spans), dict(universe.injector.counts))
    finally:
        universe.close()


BORROWED_PUBLISHED: Final = {0.25: (1.07, 0.90), 0.5: (1.09, 0.83), 1.0: (1.02, 0.75), 3.0: (0.80, 0.62)}
"""More learners, as a share: time to finish of data-parallel training, and of Decoupled DiLoCo, against none more
(arXiv 2604.21428)."""
BORROWED_LEARNERS_MAX: Final = 16
"""64 in all with three times as many on top."""
_PACE: Final = VirtualPace(step_ms=1000.0, jitter=0.1)


@final
@dataclass(frozen=True, slots=True)
class Borrowed:
    """The case of `more` learners, as a share of the original ones, which trained `share` of all tokens.

    `time` to finish is relative to the run without them; `limit` is that time if joining cost nothing.
    """

    more: float
    joined: int
    seconds: float
    time: float
    limit: float
    share: float
    published: float
    published_data_parallel: float


def borrowed(learners: int, steps: int, seed: int) -> list[Borrowed]:
    """All cases; ConfigError for numbers out of range.

    When learners were borrowed was not published; from half of the tokens on, without any cost, is 1/2 + 1/2 / (1 +
    more), within a point of the published figure for each case.
    """
    is_right = 4 <= learners <= BORROWED_LEARNERS_MAX and learners % 4 == 0
    expected = f"--learners a multiple of 4 from 4 to {BORROWED_LEARNERS_MAX}"
    do = "25 % more of it has to be a number of learners."
    wanted = Demand(is_right, expected, str(learners), do)
    check("Reading the options", [wanted, _steps(steps)])
    alone = measured(Program("decoupled-diloco"), learners=learners, steps=steps, pace=_PACE, seed=seed).summary
    half = alone["start_seconds"] + alone["wall_seconds"] / 2
    cases = []
    for more, (data_parallel, decoupled) in BORROWED_PUBLISHED.items():
        joining = [Join(f"learner/{slot}", at=half) for slot in range(learners, learners + round(more * learners))]
        program = Program("decoupled-diloco")
        run = measured(program, learners=learners, steps=steps, pace=_PACE, seed=seed, faults=joining).summary
        guests = sum(each["tokens"] for each in run["per_learner"] if each["learner"] >= learners)
        took, limit = run["wall_seconds"], 0.5 + 0.5 / (1 + more)
        time, share = took / alone["wall_seconds"], guests / run["tokens_total"]
        cases.append(Borrowed(more, len(joining), took, time, limit, share, decoupled, data_parallel))
    return cases


JITTER: Final = 0.1
"""As published; that it is normal is how we read it."""
STEPS_MAX: Final = 10_000
SPEEDS_LEARNERS_MAX: Final = 64
WARM_UP: Final = 5_000_000_000
"""Nanoseconds: before their first steps learners take the global fragments."""
_PARTS: Final = 1000
"""Whatever is no step takes a thousandth of one, so that goodput shows who waits for whom and nothing else."""
_EACH_STEP: Final = "all wait at every step"
_OVERWRITTEN: Final = "quorum 1, overwritten"
CASES: Final = {
    _EACH_STEP: Program("streaming-diloco", fragments=4, interval=4, overlap=0),
    "all wait, tau = 2": Program("streaming-diloco", overlap=2),
    _OVERWRITTEN: Program("decoupled-diloco", quorum=1, grace=False, carry=False),
    "quorum 1, carried": Program("decoupled-diloco", quorum=1, grace=False),
    "quorum 1 with grace": Program("decoupled-diloco", quorum=1, grace=True),
}
"""Where all wait at every step a fragment leaves at every step, as with 24 fragments and an interval of 24. By default
learners carry at the toy's interval; published are learners whose adoptions overwrite."""
SPEEDS_PUBLISHED: Final = {_EACH_STEP: 0.84, _OVERWRITTEN: 1.0, "quorum 1 with grace": 1.0}
"""Goodput of lock-step (quorum = learners) and of the others, of 8 learners, half of them 18 % slower (arXiv
2604.21428): a step of theirs takes 1.18 times as long, which is a speed of .847."""


@final
@dataclass(frozen=True, slots=True)
class Mixed:
    """One case: shares between 0 and 1.

    `goodput`: share of the time in which learners step, as in the published figures; `goodput_merged`: that of
    `summary.json`, where refused work does not count; `contributors`: learners in a merge, on average; `seconds`: of
    virtual time for the same tokens.
    """

    case: str
    program: str
    goodput: float
    published: float | None
    goodput_merged: float
    contributors: float
    seconds: float


def mixed(learners: int, slower: float, steps: int, seed: int) -> list[Mixed]:
    """All cases; ConfigError for numbers out of range.

    Half of the learners, the last ones, step at `slower` times the speed of the others; every duration has a normal
    jitter of 10 %.
    """
    check(
        "Reading the options",
        [
            within("--learners", learners, 2, SPEEDS_LEARNERS_MAX, "Say how many there are."),
            within("--slower", slower, 0.05, 1, "Say how fast the slower half is."),
            _steps(steps),
        ],
    )
    speeds = tuple(1.0 if slot < (learners + 1) // 2 else slower for slot in range(learners))
    cases = []
    for case, program in CASES.items():
        pace = VirtualPace(speeds, step_ms=1000.0, jitter=JITTER, parts=_PARTS)
        run = measured(program, learners=learners, steps=steps, pace=pace, seed=seed, spread=normally)
        figures = (run.summary[name] for name in ("goodput", "contributors_mean", "wall_seconds"))
        cases.append(Mixed(case, program.name, _stepping(run, learners), SPEEDS_PUBLISHED.get(case), *figures))
    return cases


def _stepping(run: Measured, learners: int) -> float:
    """The share of the learners' time in their steps, from when all of them step to the first one's last step."""
    steps = [span for span in run.spans if span.name == "inner-step" and not span.peer]
    begun = max(min(span.begun for span in steps if span.host == f"learner/{slot}") for slot in range(learners))
    first = begun + WARM_UP
    last = min(max(span.ended for span in steps if span.host == f"learner/{slot}") for slot in range(learners))
    spent = sum(max(0, min(span.ended, last) - max(span.begun, first)) for span in steps)
    return spent / (learners * (last - first))


def _steps(steps: int) -> Demand:
    return within("--steps", steps, 50, STEPS_MAX, "Say how many a learner makes.")


_DRAWN: Final = "Dots: whole runs of the real cores in virtual time. Rings: published in arXiv 2604.21428."


def speeds_sheet(cases: Sequence[Mixed], slower: float) -> Sheet:
    """The result, with a row for each case."""
    lines = [
        ChartLine(each.case, [(at, each.goodput)], [] if each.published is None else [(at, each.published)])
        for at, each in enumerate(cases)
    ]
    drawing = draw_lines(lines, "Goodput", lambda at: str(int(at) + 1), percent, low=0.5, high=1.0)
    lead = f"Half of the learners step at {slower:.3g} times the speed of the others. Virtual time."
    columns = "case", "goodput", "published", "of merged work", "learners a merge", "virtual time"
    rows = [
        (
            each.case,
            *map(percent, (each.goodput, each.published, each.goodput_merged)),
            f"{each.contributors:.2f}",
            seconds(each.seconds),
        )
        for each in cases
    ]
    note = (
        "Goodput is the share of the learners' time in steps, as it was published for 8 learners, half of them 18 % "
        "slower, and jitter of 10 %; of merged work is that of summary.json, where work that was refused is not good. "
        "Where all wait within tau = 2 steps, jitter averages out; what then remains is the difference of speeds."
    )
    part = PageSection("Goodput", [table(columns, rows, columns[:3:-1])], [note], drawing, _DRAWN)
    return Sheet("Mixed speeds", lead, [part], {"slower": slower, "cases": cases})


def borrowed_sheet(cases: Sequence[Borrowed]) -> Sheet:
    """The result, with a row for each case."""
    ours, theirs = [(each.more, each.time) for each in cases], [(each.more, each.published) for each in cases]
    ring = [(each.more, each.published_data_parallel) for each in cases]
    lines = [ChartLine("decoupled-diloco", ours, theirs), ChartLine("data-parallel (published)", ring)]
    drawing = draw_lines(lines, "Time to finish", lambda more: f"+{percent(more)}", lambda time: f"{time:.2f}", low=0.5)
    columns = "more learners", "time to finish", "if joining cost nothing", "published", "their tokens"
    rows = [
        (
            f"+{percent(each.more)}",
            f"{each.time:.3f}",
            f"{each.limit:.3f}",
            f"{each.published:.2f}",
            percent(each.share),
        )
        for each in cases
    ]
    note = (
        "Time to finish the same tokens, against the run without them. The borrowed learners join when half of that "
        "time has passed, and stay. When they were borrowed was not published."
    )
    part = PageSection("Time to finish", [table(columns, rows, columns[:1:-1])], [note], drawing, _DRAWN)
    return Sheet("Borrowed compute", "Learners that join half-way. Virtual time.", [part], {"cases": cases})


def sheet_of(asked: argparse.Namespace) -> Sheet:
    """The result that was asked for; ConfigError for numbers out of range."""
    if asked.which == "speeds":
        return speeds_sheet(mixed(asked.learners or 8, asked.slower, asked.steps or 100, asked.seed), asked.slower)
    return borrowed_sheet(borrowed(asked.learners or 4, asked.steps or 200, asked.seed))


def main(arguments: list[str]) -> int:
    """Measure, and show; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("speeds", "borrowed"))
    parser.add_argument("--learners", type=int, default=0)
    parser.add_argument("--slower", type=float, default=0.847, help="speed of the slower half")
    parser.add_argument("--steps", type=int, default=0, help="of a learner")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        sheet = sheet_of(asked)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if asked.page is not None:
        write_sheet(asked.page, sheet)
    show(sheet, as_json=asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
