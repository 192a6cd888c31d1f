"""Real runs, of which random sets of hosts are killed at random moments: does any of them lie, or hang?

    python -m tests.bench.long.soak_kills [--runs 200] [--seed 0] [--at-once 2] [--plant] [--keep FOLDER] [--json]

Each run trains a linear model with two learners, one or two shards, evaluator and recorder, a process each, for some
five seconds. One to three times, at a random moment, a random set of them gets SIGKILL at once: any set, all of them
too. Run and kills follow from the seed, so that `--seed S --runs 1` repeats the kills of one (not its timing). Of each
run it checks:

reset  A run that says 'done' holds the training that it says. Its loss falls by the same with every step
       (`kills/distance.py`), so a model that was begun anew shows at any later moment: no evaluation is above the best
       one before by more than `RISE_MAX` of all that there is to lose, and what the books say that shards have undone
       which went on from a snapshot, as they do where all that held the model were killed; the last loss is what a run
       without kills comes to, for the share of tokens that was merged, where no answer was shortened; no fragment has a
       first version behind a merged one. books  Steps and merges are those on the tapes
       (`programs.wings.simulation.taped_tokens`), and the books have no differences but lines that died with the
       recorder. end    It ends within 30 s of its last progress: of the last token that a learner reported, or the last
       merge.

A run that fails, because no host is left that has the model, and no snapshot was written, is no lie. Exit status 1 if
any check failed. With `--plant` the code is broken on purpose (`kills/sitecustomize.py`) and all who train or merge are
killed at once: then the exit status is 1 unless some run was reset, as merges.jsonl and the tapes tell, and half of
these at least are found by their losses, too (a reset between two evaluations may be made good by the second).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import tapes
from isthmus.programs.wings.simulation.taped_tokens import Taped, contradictions, taped_of
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.wire.control_client import ask
from tests.bench.observed import ISTHMUS

HERE = Path(__file__).parents[1] / "kills"
TOKENS = 16_000
"""1,000 steps a learner, of 4 ms and what a busy core makes of them."""
OPTIONS = ["--quiet", "--learners", "2", "--task", str(HERE / "distance.py") + ":task", "--tokens", str(TOKENS)]
SNAPSHOTS = ["--set", "run.snapshot_every_seconds=0.5"]
OUTER = ["--set", "program.outer_lr=0.7", "--set", "program.outer_momentum=0.0", "--set", "program.fragments=2"]
END_SECONDS_MAX = 30.0
START_SECONDS_MAX = 180.0
"""Until there is a first merge: five processes import and compile, on cores that may be busy."""
KILL_SECONDS_MAX = 2.0
"""Between the first merge, or a kill, and the next kill."""
RISE_MAX = 0.1
"""Of what a run without kills takes from the loss: what a shard's last merges come to, which may die with it."""
UNTOLD_MAX = 0.1
"""The same, more, for each kill of a recorder: merges of its last second are in no books."""
SHORT_MAX = 0.5
"""The same, by which the last loss may be above what the merged tokens come to: an average of learners of which one
went on alone for long is shorter than its own way (0.41 in seed 151, where nothing was reset)."""
LOOK_SECONDS = 0.1
PLANTED_EVALUATIONS_MIN = 7
"""Of 20: with a planted bug there has to be something to lose."""
CONTROL_SEED = 999_999


@dataclass(slots=True)
class Found:
    """What came of one run. `killed` has the sets of hosts, `losses` the evaluations, `merged` the share of the budget
    that is in the model, `undone` the share that was, `waited` the seconds from the last progress to the end."""

    seed: int
    killed: list[list[str]] = field(default_factory=list)
    outcome: str = "never ended"
    losses: list[float] = field(default_factory=list)
    merged: float = 0.0
    undone: float = 0.0
    waited: float = 0.0
    shortened: int = 0
    taped_steps: int = 0
    taped_merges: int = 0
    wrong: list[str] = field(default_factory=list)


class Watch:
    """Looks at the files of a run, and knows when it got on last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self.progressed_at = time.monotonic()

    def look(self) -> None:
        """See whether a step was reported or a fragment merged since the last look."""
        for name in ("merges.jsonl", "metrics.jsonl"):
            path = self._folder / name
            size = path.stat().st_size if path.exists() else 0
            if size != self._sizes.get(name, 0):
                self._sizes[name] = size
                self.progressed_at = time.monotonic()

    @property
    def has_merged(self) -> bool:
        """Whether a fragment was merged."""
        return self._sizes.get("merges.jsonl", 0) > 0


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; one that died with its writer is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


# -- runs and kills ----------------------------------------------------------------------------------------------------


def pids_of(folder: Path) -> dict[str, int]:
    """The hosts that are there now; none if no daemon answers."""
    with suppress(OSError, ValueError, KeyError):
        endpoint = json.loads((folder / "daemon.json").read_text())["endpoint"]
        answer = ask(endpoint, {"type": "status"}, 2.0) or {"hosts": []}
        return {host["name"]: host["pid"] for host in answer["hosts"] if host["pid"]}
    return {}


def kill(pids: dict[str, int], names: list[str]) -> list[str]:
    """Kill these hosts."""
    for name in names:
        with suppress(ProcessLookupError):
            os.kill(pids[name], signal.SIGKILL)
    return names


def kill_some(rng: random.Random, pids: dict[str, int]) -> list[str]:
    """Kill a random set of the hosts that are there."""
    share = rng.choice((0.3, 0.6, 1.0))
    chosen = [name for name in sorted(pids) if rng.random() < share]
    return kill(pids, chosen or ([rng.choice(sorted(pids))] if pids else []))


def kill_workers(rng: random.Random, pids: dict[str, int]) -> list[str]:
    """Kill all who train or merge."""
    return kill(pids, [name for name in sorted(pids) if name.startswith(("learner/", "syncer/"))])


def one_run(seed: int, kills: int, is_planted: bool = False, keep: Path | None = None) -> Found:
    """Run, kill so many times, and look at what it left behind, which is kept where it is wrong."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        rng, found, folder = random.Random(f"kills {seed}"), Found(seed), Path(place) / "run"
        shards = rng.choice((1, 1, 2))
        options = [
            *OPTIONS,
            *OUTER,
            *SNAPSHOTS,
            "--seed",
            str(seed),
            "--set",
            f"program.shards={shards}",
            "--run-dir",
            str(folder),
        ]
        planted = {"PYTHONPATH": str(HERE), "KILLS_PLANT": "reset"} if is_planted else {}
        command, nowhere = [str(ISTHMUS), "train", *options], subprocess.DEVNULL
        run = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=os.environ | planted)
        try:
            kill, least = (kill_workers, PLANTED_EVALUATIONS_MIN) if is_planted else (kill_some, 0)
            watch_and_kill(run, folder, found, partial(kill, rng), rng, kills, least)
        finally:
            end(run, folder)
        read(found, folder)
        if keep is not None and found.wrong:
            shutil.copytree(folder, keep / f"seed-{seed}-{time.time_ns()}")
        return found


def watch_and_kill(
    run: subprocess.Popen[bytes],
    folder: Path,
    found: Found,
    kill: Any,
    rng: random.Random,
    kills: int,
    evaluations_min: int,
) -> None:
    """Look on until the run ends, or has not got on for too long; kill now and then, once there are so many
    evaluations."""
    watch, begun, kill_at = Watch(folder), time.monotonic(), 0.0
    while run.poll() is None:
        watch.look()
        now = time.monotonic()
        limit = END_SECONDS_MAX if watch.has_merged else START_SECONDS_MAX
        if now - max(watch.progressed_at, begun) > limit:
            found.wrong.append(f"no progress for {limit:.0f} s, and no end")
            return
        if kills and watch.has_merged and len(lines_of(folder / "evaluations.jsonl")) >= evaluations_min:
            kill_at = kill_at or now + rng.uniform(0.0, KILL_SECONDS_MAX)
            if now >= kill_at:
                kills, kill_at = kills - 1, 0.0
                if killed := kill(pids_of(folder)):
                    found.killed.append(killed)
        time.sleep(LOOK_SECONDS)
    watch.look()
    found.waited = time.monotonic() - watch.progressed_at


def end(run: subprocess.Popen[bytes], folder: Path) -> None:
    """Leave nothing of a run behind."""
    if run.poll() is None:
        daemon = {}
        with suppress(OSError, ValueError):
            daemon = json.loads((folder / "daemon.json").read_text())
        for pid in [run.pid, *pids_of(folder).values(), *([daemon["pid"]] if daemon else [])]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    run.wait()


def read(found: Found, folder: Path) -> None:
    """Take in what a run left behind, and check what needs no other run: books against tapes, and first versions."""
    if not (folder / "summary.json").exists():
        found.wrong.append("it ended without a summary")
        return
    summary = json.loads((folder / "summary.json").read_text())
    found.outcome, found.merged = summary["outcome"], summary["tokens_merged"] / TOKENS
    found.losses = [line["eval_loss"] for line in lines_of(folder / "evaluations.jsonl")]
    if found.outcome != "done":
        return
    undone = sum(entry["undone"] for entry in summary["books"]["fragments"])
    found.undone = undone / summary["fragments"] / TOKENS
    merges = lines_of(folder / "merges.jsonl")
    found.shortened = sum(len(line["shortened"]) for line in merges)
    taped = taped_of(lower(spec.load(folder).graph()), tapes.of_lives(folder))
    found.taped_steps, found.taped_merges = sum(taped.steps.values()), len(taped.kinds)
    found.wrong += begun_anew(merges, taped)
    found.wrong += contradictions(taped, summary, merges)
    found.wrong += [f"the books: {each}" for each in summary["books"]["differences"] if each["kind"] != "merges"]


def begun_anew(merges: list[dict[str, Any]], taped: Taped) -> list[str]:
    """The fragments that have a first version behind a merged one, by merges.jsonl and the tapes: the recorder misses
    some rounds, and the tape of a shard that was killed lacks the last ones."""
    written = {(line["fragment"], line["epoch"], line["round"]): line["kind"] for line in merges if line["version"]}
    merged, found = set(), []
    for (fragment, _, _), kind in sorted((written | taped.kinds).items()):
        if kind == "initial" and fragment in merged:
            found.append(f"fragment {fragment} was begun anew after it was merged")
        if kind in ("merge", "final"):
            merged.add(fragment)
    return found


# -- losses ------------------------------------------------------------------------------------------------------------


def judge(found: Found, control: Found) -> None:
    """Compare the losses of a run that says 'done' with those of a run without kills."""
    if found.outcome != "done" or not found.losses or not control.losses:
        return
    first, fall = control.losses[0], control.losses[0] - control.losses[-1]
    untold = UNTOLD_MAX * sum("recorder/0" in names for names in found.killed)
    rise = fall * (RISE_MAX + untold + found.undone / control.merged)
    for best, after in pairwise(zip(accumulate(found.losses, min), found.losses, strict=True)):
        if after[1] > best[0] + rise:
            found.wrong.append(f"loss: the evaluation rose from {best[0]:.2f} to {after[1]:.2f}")
    expected = first - fall * min(1.0, found.merged / control.merged)
    if not found.shortened and found.losses[-1] > expected + SHORT_MAX * fall:
        found.wrong.append(f"loss: the last one is {found.losses[-1]:.2f}; by what was merged it is {expected:.2f}")


def row(found: Found) -> str:
    """One line of the table."""
    killed = " | ".join(",".join(names) for names in found.killed) or "none"
    losses = f"{found.losses[0]:.1f} -> {found.losses[-1]:.2f}" if found.losses else "-"
    shares = f"{losses:<13} {found.merged:>5.0%} {found.undone:>5.0%}"
    figures = f"{shares} {found.taped_steps:>6} {found.taped_merges:>6} {found.waited:>6.1f} s"
    return f"{found.seed:>5}  {found.outcome:<12} {figures}  {'; '.join(found.wrong) or 'ok'}  killed: {killed}"


def totals(every: list[Found]) -> str:
    """The last line."""
    kills, hosts = sum(len(found.killed) for found in every), sum(len(s) for found in every for s in found.killed)
    outcomes = {name: sum(found.outcome == name for found in every) for name in sorted({f.outcome for f in every})}
    told = ", ".join(f"{count} {name}" for name, count in outcomes.items())
    wrong, slowest = sum(bool(found.wrong) for found in every), max((found.waited for found in every), default=0.0)
    return f"{len(every)} runs ({told}), {kills} kills of {hosts} hosts; {wrong} wrong; {slowest:.1f} s to the end"


def main() -> int:
    """Run all and print; 1 if any was wrong, or, with a bug in them, one was not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--keep", type=Path, help="where run folders are kept that are wrong by themselves")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    control, every = one_run(CONTROL_SEED, 0), []
    if not asked.json:
        print(f"{'seed':>5}  {'outcome':<12} {'loss':<13} merged undone steps merges   to end")
        print(row(control), flush=True)

    def run(seed: int) -> Found:
        return one_run(
            seed, 1 if asked.plant else random.Random(f"times {seed}").choice((1, 1, 2, 3)), asked.plant, asked.keep
        )

    with ThreadPoolExecutor(asked.at_once) as pool:
        for found in pool.map(run, range(asked.seed, asked.seed + asked.runs)):
            judge(found, control)
            every.append(found)
            if not asked.json:
                print(row(found), flush=True)
    print(json.dumps([asdict(found) for found in every]) if asked.json else totals(every))
    if control.wrong or control.outcome != "done":
        return 1
    if asked.plant:
        reset = [found for found in every if any("begun anew" in each for each in found.wrong)]
        by_losses = [found for found in reset if any(each.startswith("loss") for each in found.wrong)]
        return 0 if reset and 2 * len(by_losses) >= len(reset) else 1
    return 1 if any(found.wrong for found in every) else 0


if __name__ == "__main__":
    sys.exit(main())
