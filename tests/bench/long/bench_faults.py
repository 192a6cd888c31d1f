"""What programs keep of their own undisturbed goodput, by the mean time between failures, beside the event model.

    python -m tests.bench.long.bench_faults --cells FILE [--mean 20] [--program data-parallel] [--together] [--json]

`isthmus chaos` trains each of three programs twice, calm, and under kills of learners at the moments of a Poisson
process, at mean times between failures of 10, 20, 40 and 80 s, each until at least ten kills have happened. Real
processes on this machine; an inner step sleeps for `--step-seconds`, so that islands do not share its cores. When a
learner of data-parallel is killed, all are, as its launchers do; it takes snapshots every sqrt(2 * cost * MTBF), with
the cost that `isthmus chaos` measures in the calm run. The same call goes on with the cells that FILE lacks. Without
`--together` programs are tried one after another; with it all of a mean at once, in a third of the time.

`kept` is of tokens a second that were neither lost nor refused, from the first step to the last, each run's in its own
median steps: what others do on the machine meanwhile lengthens the steps of a run, and is no failure. The model
(`wings.simulation.goodput.lived`) is given the very moments of failure of a run, the calm run's step, and what its
constants are in this runtime: the interval of snapshots and what one costs, or the interval of merges, and how lives
that end soon are delayed. How long a failure takes (a stall, and for elastic-data-parallel a rejoin) it has from the
tapes of one cell of each program, the one at `SET_BY` seconds; all other cells are predicted. The bar: within 3 points.

Seeds: the first with at least ten kills in the calm run's time, and no more than `IN_A_ROW_MAX` that follow within
the `HEALTHY_IF_KILLED` seconds after which the runtime forgives a kill, because a sixth ends a run: in data-parallel's
favour.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import tapes
from isthmus.programs.wings.chaos.chaos_plan import ChaosPlan, DrawnFaults, Planned, faults_of
from isthmus.programs.wings.chaos.chaos_snapshots import StepTime, step_times
from isthmus.programs.wings.simulation.goodput import FailureTerms, RestartTerms, lived
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Member
from isthmus.runtime.supervision.liveness import BACKOFF_SECONDS, HEALTHY_IF_KILLED
from tests.bench.kept_cells import KeptCells
from tests.bench.observed import COMMAND
from tests.bench.poisson_kills import poisson_kills

TASK: Final = Path(__file__).parents[1] / "links" / "paced.py"
BATCH_TOKENS: Final = 4
"""Of the task: ROWS."""
PROGRAMS: Final = ("decoupled-diloco", "elastic-data-parallel", "data-parallel")
DECOUPLED, ELASTIC, PARALLEL = PROGRAMS
MEANS: Final = (10.0, 20.0, 40.0, 80.0)
SET_BY: Final = 20.0
KILLS_MIN: Final = 10
KILLS_MAX: Final = 13
"""A seed with many more would have another mean."""
IN_A_ROW_MAX: Final = 4
RESTART_SECONDS: Final = 3.0
"""What a restart may take of the time between two kills, for the choice of a seed."""
INTERVAL: Final = 24
"""Steps between two merges of a fragment, of decoupled-diloco."""
BAR_POINTS: Final = 3.0
NS: Final = 1e9


def hosts(learners: int) -> tuple[str, ...]:
    return tuple(f"learner/{slot}" for slot in range(learners))


def drawn(asked: argparse.Namespace, mean: float, seed: int) -> tuple[Planned, ...]:
    """The kills of a seed within the time of the calm run."""
    faults = DrawnFaults(seed=seed, mean_seconds=mean, kinds=("kill",), hosts=hosts(asked.learners))
    seconds = calm_seconds(asked, mean)
    every = faults_of(ChaosPlan(drawn=faults), hosts(asked.learners), seconds)
    return tuple(fault for fault in every if fault.at < seconds)


def calm_seconds(asked: argparse.Namespace, mean: float) -> float:
    return float(asked.failures) * mean


def seed_of(asked: argparse.Namespace, mean: float) -> int:
    """The first seed with enough kills, and none that data-parallel does not survive."""
    soon = HEALTHY_IF_KILLED / NS + RESTART_SECONDS

    def suits(seed: int) -> bool:
        kills = [0.0, *(fault.at for fault in drawn(asked, mean, seed))]
        row = longest = 0
        for before, after in pairwise(kills):
            row = row + 1 if after - before < soon else 0
            longest = max(longest, row)
        return asked.kills <= len(kills) - 1 <= asked.kills + KILLS_MAX - KILLS_MIN and longest <= IN_A_ROW_MAX

    return next(seed for seed in count(asked.seed) if suits(seed))


def plan(asked: argparse.Namespace, mean: float) -> str:
    """The plan of `isthmus chaos` for a mean, TOML."""
    tokens = round(asked.learners * BATCH_TOKENS * calm_seconds(asked, mean) / asked.step_seconds)
    return poisson_kills(
        f"{TASK}:small_asleep",
        hosts(asked.learners),
        learners=asked.learners,
        tokens=tokens,
        mean_seconds=mean,
        seed=seed_of(asked, mean),
        more=f"\n[program.{DECOUPLED}]\ninterval = {INTERVAL}\nfragments = 8\n",
    )


def cell(asked: argparse.Namespace, mean: float, program: str, folder: Path) -> dict[str, Any]:
    """Both runs of a program, and what they were."""
    folder.mkdir(parents=True)
    path = folder / "plan.toml"
    path.write_text(plan(asked, mean))
    done = subprocess.run(
        [*COMMAND, "chaos", str(path), program, "--json", "--run-dir", str(folder / "runs")],
        env={**os.environ, "PACED_STEP_SECONDS": str(asked.step_seconds)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    [run] = json.loads(done.stdout)["runs"]
    calm, struck = (Lives(Path(run["folder"]).parent / name) for name in ("undisturbed", "plan"))
    kills = [(int(each["host"].partition("/")[2]), each["begun"]) for each in run["faults"] if each["proof"]]
    return {
        "outcome": run["outcome"],
        "kills": kills,
        "kept": struck.goodput / calm.goodput,
        "goodput_kept": run["kept"],
        "step_seconds": calm.step_seconds,
        "seconds": struck.seconds,
        "snapshots": run["snapshots"],
        "absences": list(absences(struck, kills, program)),
        "stalls": list(stalls(struck, kills, calm.step_seconds)) if program == ELASTIC else [],
        "load": os.getloadavg()[0],
    }


class Lives:
    """The lives of the learners of a run, by their tapes: their steps, in seconds from the run's first one."""

    def __init__(self, folder: Path) -> None:
        self.summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        learner = lower(spec.load(folder).graph())["learner"]
        steps: dict[Member, list[StepTime]] = {
            member: [step for segment in tape.segments for step in step_times(learner, segment.records)]
            for member, tape in sorted(tapes.of_lives(folder).items())
            if member.replica.role == "learner"
        }
        self._zero = min(each[0].begun for each in steps.values() if each)
        self.of_slot: dict[int, list[list[tuple[float, float | None]]]] = {}
        for member, each in steps.items():
            if each:
                times = [(self._at(step.begun), None if step.ended is None else self._at(step.ended)) for step in each]
                self.of_slot.setdefault(member.replica.slot, []).append(times)

    def _at(self, instant: int) -> float:
        return (instant - self._zero) / NS

    @property
    def seconds(self) -> float:
        """From the first step to the last."""
        return max(ended for lives in self.of_slot.values() for life in lives for _, ended in life if ended is not None)

    @property
    def goodput(self) -> float:
        """Tokens that were neither lost nor refused, in the time of a step."""
        kept: float = sum(self.summary[f"tokens_{name}"] * sign for name, sign in _KEPT.items())
        return kept / self.seconds * self.step_seconds

    @property
    def step_seconds(self) -> float:
        """The median time from the begin of a step to that of the next, of one life."""
        periods = [b[0] - a[0] for lives in self.of_slot.values() for life in lives for a, b in pairwise(life)]
        return statistics.median(periods)


_KEPT: Final = {"total": 1, "lost": -1, "refused": -1}


def absences(lives: Lives, kills: Sequence[tuple[int, float]], program: str) -> Iterator[tuple[float, int]]:
    """Of each learner that began again: seconds from the end of its last step to its next one, and which failure in a
    row that was. Those of data-parallel, which all end together, are of one learner; failures that met nobody who
    stepped are in the absence that they prolonged."""
    slots = [0] if program == PARALLEL else sorted(lives.of_slot)
    for slot in slots:
        row = 0
        own = sorted(at for victim, at in kills if program == PARALLEL or victim == slot)
        for before, after in pairwise(lives.of_slot.get(slot, [])):
            begun, last = before[0][0], max(at if ended is None else ended for at, ended in before)
            row = 1 if last - begun >= HEALTHY_IF_KILLED / NS else row + 1
            met = sum(last - lives.step_seconds <= at < after[0][0] for at in own)
            if met == 1:
                yield after[0][0] - last, row
            row += max(0, met - 1)


def stalls(lives: Lives, kills: Sequence[tuple[int, float]], step: float) -> Iterator[tuple[float, float]]:
    """Of each kill: seconds for which the others did not step because of it, and because of its return."""
    for victim, at in kills:
        others = [life for slot, each in lives.of_slot.items() if slot != victim for life in each]
        back = min((life[0][0] for life in lives.of_slot[victim] if life[0][0] > at), default=None)
        if back is None:
            continue
        yield _excess(others, at, step), _excess(others, back, step)


def _excess(others: Sequence[list[tuple[float, float | None]]], at: float, step: float) -> float:
    """What the longest of the steps that were under way at a moment, or began in the step after it, took beyond one."""
    spans = [b[0] - a[0] for life in others for a, b in pairwise(life) if a[0] - step <= at <= b[0] + step]
    return max(0.0, max(spans, default=step) - step)


# -- the model ---------------------------------------------------------------------------------------------------------


def predicted(own: dict[str, Any], program: str, set_by: dict[str, Any]) -> float:
    """The share of its undisturbed goodput that the model says of a cell, with the absences of another."""
    step, seconds = own["step_seconds"], own["seconds"]
    backoff = RestartTerms(healthy_seconds=HEALTHY_IF_KILLED / NS, backoff_seconds=BACKOFF_SECONDS)
    away = statistics.fmean(took - backoff.backoff(row) for took, row in set_by["absences"])
    moments = [at for _, at in own["kills"]]
    if program == PARALLEL:
        pace = own["snapshots"]
        restarts = RestartTerms(
            pace["snapshot_seconds"], pace["cost_seconds"], backoff.healthy_seconds, backoff.backoff_seconds
        )
        terms = FailureTerms(step, away, repair_seconds=math.inf)
        return lived(moments, terms, math.inf, seconds, restarts).good_seconds() / seconds
    slots = sorted({slot for slot, _ in own["kills"]} | set(range(own["learners"])))
    if program == ELASTIC:
        stall, rejoin = (statistics.fmean(each) for each in zip(*set_by["stalls"], strict=True))
        terms = FailureTerms(step, stall, rejoin, 0.0, away)
        return lived(moments, terms, len(slots), seconds).good_seconds() / seconds
    terms = FailureTerms(step, away, repair_seconds=math.inf, interval_seconds=INTERVAL * step)
    return statistics.fmean(
        lived([at for slot, at in own["kills"] if slot == each], terms, math.inf, seconds, backoff).good_seconds()
        for each in slots
    ) / seconds  # fmt: skip


def rows(cells: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each cell, with the model's figure where the cell that sets it is there."""
    found = []
    for program in PROGRAMS:
        set_by = cells.get(name(program, SET_BY))
        for mean in MEANS:
            own = cells.get(name(program, mean))
            if own is None:
                continue
            model = predicted(own, program, set_by) if set_by is not None and set_by["absences"] else None
            found.append(
                {
                    "program": program,
                    "mean": mean,
                    "kills": len(own["kills"]),
                    "outcome": own["outcome"],
                    "kept": own["kept"],
                    "model": model,
                    "points": None if model is None else 100 * (model - own["kept"]),
                    "is_set_by": mean == SET_BY,
                    "snapshots": own["snapshots"],
                    "load": own["load"],
                }
            )
    return found


def name(program: str, mean: float) -> str:
    return f"{program} {mean:g}"


def table(found: Sequence[dict[str, Any]]) -> str:
    """The cells, in Markdown."""
    lines = [
        "| program | a failure every | kills | kept | model | points | a snapshot every; one costs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        pace = row["snapshots"]
        told = "" if pace is None else f"{pace['snapshot_seconds']:.2f} s; {1000 * pace['cost_seconds']:.0f} ms"
        model = "" if row["model"] is None else f"{100 * row['model']:.1f}"
        points = "" if row["points"] is None else f"{row['points']:+.1f}"
        outcome = "" if row["outcome"] == "done" else f" ({row['outcome']})"
        lines.append(
            f"| {row['program']} | {row['mean']:g} s{', the calibration' * row['is_set_by']} | {row['kills']} | "
            f"{100 * row['kept']:.1f}{outcome} | {model} | {points} | {told} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, help="a file that cells are added to; what it has is not measured again")
    parser.add_argument("--mean", type=float, action="append", choices=MEANS, help="of the cells; may be repeated")
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="of the cells; may be repeated")
    parser.add_argument("--together", action="store_true", help="all programs of a mean at once")
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0.25)
    parser.add_argument("--failures", type=float, default=11.0, help="mean times between failures in a calm run")
    parser.add_argument("--kills", type=int, default=KILLS_MIN, help="the least in a calm run's time")
    parser.add_argument("--seed", type=int, default=0, help="the first that is tried")
    parser.add_argument("--dir", type=Path, help="where the runs go")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    cells = KeptCells(asked.cells, starts_hosts=True)
    folder = asked.dir or Path(tempfile.mkdtemp(prefix="faults-"))
    with ThreadPoolExecutor(len(PROGRAMS) if asked.together else 1) as threads:
        for mean in asked.mean or MEANS:
            missing = [each for each in asked.program or PROGRAMS if name(each, mean) not in cells]
            made = threads.map(lambda each, mean=mean: cell(asked, mean, each, folder / f"{each}-{mean:g}"), missing)
            for program, measured in zip(missing, made, strict=True):
                cells.keep(name(program, mean), {**measured, "learners": asked.learners})
                print(f"{program} {mean:g}: kept {measured['kept']:.3f}", file=sys.stderr, flush=True)
    found = rows(cells)
    print(json.dumps(found) if asked.json else f"{table(found)}\n\n{cells.told('kept')}")


if __name__ == "__main__":
    main()
