"""Goodput of real processes beside what the event model says of it.

    python -m tests.bench.long.bench_prediction [--json]

Decoupled DiLoCo on a task in NumPy whose steps sleep for half a second (`size/light.py`), 8 fragments, H = 16, so that
many learners share two cores and none is in another's way. Learners get SIGKILL at random moments, a Poisson process
for each; one that is away at that moment is passed over, as a chip is that fails in a learner which stalls. Runs of 2
and of 4 learners at three mean times between failures of a learner go on at the same time, so that whatever else the
machine does, it does to all of them.

The model (`programs.wings.simulation.goodput`) is set by one of these cells alone, the `SET_BY`: by its step, from the
end of one to the end of the next; its stall, from a kill to the next process of that learner; and its rejoin, from
there to that process's first inner step. What dies with a learner follows from H and the step: half of an interval. It
then has to say the goodput of all other cells: `same` of runs with the same moments of failure, and `rate`, which knows
nothing of a run but its rate, learners and length. Measured is `goodput` of summary.json: inner-step time whose tokens
were neither lost nor refused, by the time of all slots."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import tapes
from isthmus.programs.engine.results.tapes import BATCH, STEP
from isthmus.programs.wings.chaos.chaos_strikes import ProcessTable, comes_about
from isthmus.programs.wings.simulation.goodput import FailureTerms, failures, lived
from isthmus.runtime.cores.scheduler_events import FiringEnded, HostRecord, RunBody
from isthmus.runtime.graph.plans import Plan, lower
from tests.bench.size import ordered

LEARNERS: Final = (2, 4)
MEANS: Final = (25.0, 50.0, 100.0)
"""Seconds between two failures of a learner, on average. A life that ends within 10 s is begun again more slowly, which
the model does not have: at 25 s that is a third of them, and costs half a second."""
SET_BY: Final = (4, 50.0)
DAYS: Final = 400
"""Runs of the model for a prediction by rate."""
BEGIN_SECONDS_MAX: Final = 300.0
NS: Final = 1e9


class Kill(NamedTuple):
    """A failure of a learner: when, in seconds from the run's first step, and whether it struck a process."""

    slot: int
    at: float
    has_struck: bool


class Rebirth(NamedTuple):
    """Seconds from a kill to the learner's next process, and from there to its first inner step."""

    stall: float
    rejoin: float


@dataclass
class Trial:
    """One run: what happened to it, and what it measured, times in seconds."""

    learners: int
    mean: float
    seed: int
    kills: list[Kill] = field(default_factory=list)
    rebirths: list[Rebirth] = field(default_factory=list)
    step: float = 0.0
    goodput: float = 0.0
    seconds: float = 0.0
    outcome: str = ""

    @property
    def cell(self) -> tuple[int, float]:
        return self.learners, self.mean

    @property
    def failed(self) -> list[list[float]]:
        """The moments of failure of each learner."""
        return [[kill.at for kill in self.kills if kill.slot == slot] for slot in range(self.learners)]


def tried(seed: int, seconds: float, within: Path) -> list[Trial]:
    """One run of each cell, all at the same time, for so many seconds after the last of them has begun."""
    trials = [Trial(count, mean, seed) for count in LEARNERS for mean in MEANS]
    folders = [within / f"{trial.learners}-{trial.mean:g}-{seed}" for trial in trials]
    over = threading.Event()
    with ordered.running({folder: trial.learners for trial, folder in zip(trials, folders, strict=True)}):
        zeros = [_zero(folder) for folder in folders]
        until = max(zeros) + seconds
        strikers = [
            threading.Thread(target=_strike, args=(trial, folder, zero, until - zero, over))
            for trial, folder, zero in zip(trials, folders, zeros, strict=True)
        ]
        try:
            for striker in strikers:
                striker.start()
            for striker in strikers:
                striker.join()
        finally:
            over.set()
    for trial, folder, zero in zip(trials, folders, zeros, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        trial.goodput, trial.outcome = summary["goodput"], summary["outcome"]
        trial.seconds = summary["wall_seconds"]
        _read_tapes(trial, folder, zero)
    return trials


def _zero(folder: Path) -> float:
    """When the first inner step of a run was, in seconds of the monotonic clock."""
    until = time.monotonic() + BEGIN_SECONDS_MAX
    while (zero := ProcessTable(folder).zero()) is None:
        assert time.monotonic() < until, f"the run in {folder} does not begin"
        time.sleep(0.2)
    return zero


def _strike(trial: Trial, folder: Path, zero: float, seconds: float, over: threading.Event) -> None:
    """Kill learners of one run until its time is over."""
    cast = ProcessTable(folder)
    due = sorted(
        (at, slot)
        for slot in range(trial.learners)
        for at in failures(Random(f"{trial.seed} {trial.learners} {trial.mean} {slot}"), trial.mean, seconds)
    )
    for at, slot in due:
        if over.wait(max(0.0, zero + at - time.monotonic())):
            return
        process = cast.find(f"learner/{slot}")
        struck_at = time.monotonic() - zero
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            assert comes_about(lambda gone=process: not gone.is_there), f"{process} was killed and is still there"
        trial.kills.append(Kill(slot, struck_at, process is not None))
    over.wait(max(0.0, zero + seconds - time.monotonic()))


def _read_tapes(trial: Trial, folder: Path, zero: float) -> None:
    """Note what the tapes say of steps, and of lives that came after a kill."""
    told, steps = spec.load(folder), list[float]()
    plan = lower(told.graph())["learner"]
    for member, tape in tapes.of_lives(folder).items():
        if member.replica.role != "learner":
            continue
        begun, ended = _steps(plan, tape.records)
        steps += [(after - before) / NS for before, after in pairwise(ended)]
        if member.incarnation > 1 and begun and not tape.begins:
            born, first = ((told.zero_ns + at) / NS - zero for at in (tape.records[0].at, begun[0]))
            slot = member.replica.slot
            struck = [kill.at for kill in trial.kills if kill.has_struck and kill.slot == slot]
            trial.rebirths.append(Rebirth(born - struck[member.incarnation - 2], first - born))
    trial.step = statistics.fmean(steps)


def _steps(plan: Plan, records: Sequence[HostRecord]) -> tuple[list[int], list[int]]:
    """When the inner steps on a tape began and ended, nanoseconds of the run's clock."""
    node = next(node for node in plan.nodes if node.name == STEP)
    batch = [port.name for port in node.inputs].index(BATCH)
    begun, ended, is_step = list[int](), list[int](), False
    for record in records:
        if isinstance(record.event, FiringEnded) and record.event.node == node.index and is_step:
            ended.append(record.at)
        for command in record.commands:
            if isinstance(command, RunBody) and command.node == node.index:
                is_step = batch in dict(command.inputs)
                begun += [record.at] * is_step
    return begun, ended


def terms_of(trials: Sequence[Trial]) -> FailureTerms:
    """What the model is set by: the means of these runs."""
    step = statistics.fmean(trial.step for trial in trials)
    away = statistics.fmean(sum(each) for trial in trials for each in trial.rebirths)
    return FailureTerms(step, away, repair_seconds=math.inf, interval_seconds=ordered.INTERVAL * step)


def goodput(terms: FailureTerms, failed: Sequence[Sequence[float]], seconds: float) -> float:
    """What the model says of learners that fail at these moments."""
    return statistics.fmean(lived(each, terms, math.inf, seconds).good_seconds() / seconds for each in failed)


def goodput_by_rate(terms: FailureTerms, learners: int, mean: float, seconds: float) -> float:
    """What it says of so many learners that fail so often."""
    rng = Random(f"by rate {learners} {mean}")
    return statistics.fmean(
        goodput(terms, [failures(rng, mean, seconds) for _ in range(learners)], seconds) for _ in range(DAYS)
    )


def row(cell: tuple[int, float], trials: Sequence[Trial], terms: FailureTerms) -> dict[str, Any]:
    """A line of the table: percent, and points."""
    own = [trial for trial in trials if trial.cell == cell]
    measured = [100 * trial.goodput for trial in own]
    same = [100 * goodput(terms, trial.failed, trial.seconds) for trial in own]
    differences = [said - found for said, found in zip(same, measured, strict=True)]
    rate = 100 * goodput_by_rate(terms, *cell, statistics.fmean(trial.seconds for trial in own))
    rebirths = [each for trial in own for each in trial.rebirths]
    return {
        "learners": cell[0],
        "mean_seconds": cell[1],
        "is_set_by": cell == SET_BY,
        "runs": len(own),
        "seconds": sum(trial.seconds for trial in own),
        "kills": sum(kill.has_struck for trial in own for kill in trial.kills),
        "passed_over": sum(not kill.has_struck for trial in own for kill in trial.kills),
        "measured": statistics.fmean(measured),
        "measured_runs": measured,
        "same": statistics.fmean(same),
        "same_minus_measured": statistics.fmean(differences),
        "same_minus_measured_runs": differences,
        "rate": rate,
        "rate_minus_measured": rate - statistics.fmean(measured),
        "stall": statistics.fmean(each.stall for each in rebirths) if rebirths else None,
        "rejoin": statistics.fmean(each.rejoin for each in rebirths) if rebirths else None,
        "outcomes": sorted({trial.outcome for trial in own}),
    }


def table(rows: Sequence[dict[str, Any]], set_by: dict[str, float]) -> str:
    """The rows as text."""
    said = ", ".join(f"{name} {value:.3f} s" for name, value in set_by.items())
    columns = "learners  mean  runs  kills  measured (runs)         same  minus   rate  minus  stall  rejoin"
    lines = [f"set by {SET_BY[0]} learners at {SET_BY[1]:g} s: {said}", columns]
    for each in rows:
        spread = f"{each['measured']:5.1f} ({min(each['measured_runs']):.1f} to {max(each['measured_runs']):.1f})"
        away = [each["stall"] or math.nan, each["rejoin"] or math.nan]
        mark = "  (set by)" if each["is_set_by"] else ""
        lines.append(
            f"{each['learners']:>8}  {each['mean_seconds']:>4g}  {each['runs']:>4}  {each['kills']:>5}  {spread:<20}"
            f"{each['same']:>8.1f}  {each['same_minus_measured']:>+5.1f}  {each['rate']:>5.1f}"
            f"  {each['rate_minus_measured']:>+5.1f}  {away[0]:>5.2f}  {away[1]:>6.2f}{mark}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="runs of each cell")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seconds", type=float, default=180.0, help="of each run")
    parser.add_argument("--runs", type=Path, help="a file that runs are added to; the table is of all that it has")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    trials = _kept(asked.runs) if asked.runs and asked.runs.exists() else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as within:
        for seed in range(asked.seed, asked.seed + asked.seeds):
            trials += tried(seed, asked.seconds, Path(within))
            print(f"seed {seed}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            if asked.runs:
                asked.runs.write_text(json.dumps([asdict(trial) for trial in trials]))
    terms = terms_of([trial for trial in trials if trial.cell == SET_BY])
    rows = [row((count, mean), trials, terms) for count in LEARNERS for mean in MEANS]
    set_by = {"step": terms.step_seconds, "stall and rejoin": terms.stall_seconds, "interval": terms.interval_seconds}
    print(json.dumps({"set_by": set_by, "rows": rows}, indent=2) if asked.json else table(rows, set_by))


def _kept(file: Path) -> list[Trial]:
    told = json.loads(file.read_text())
    kept = [Trial(**each) for each in told]
    for trial in kept:
        trial.kills = [Kill(*each) for each in trial.kills]
        trial.rebirths = [Rebirth(*each) for each in trial.rebirths]
    return kept


if __name__ == "__main__":
    main()
