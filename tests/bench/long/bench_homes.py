"""What the death of a run's home costs learners on another machine, and the run, until the home is back.

    python -m tests.bench.long.bench_homes [--away 5] [--repeat 3] [--notice] [--json]

Two daemons on loopback: alpha is the home, with syncer, evaluator and recorder; beta has two learners. After some
snapshots every process on alpha is killed at once (SIGKILL), as by a power failure whose disk had time to write; `away`
seconds later its daemon is started again, and goes on with the run by itself. By the spans of the learners' inner
steps, which beta kept: how many would have been made in pauses that are longer than any in as long before; the longest
pause; and, of the run's summary, the tokens that were lost, beside those that were trained in one interval, which is
what may be under way at any time. From the start of the daemon until a fragment is merged again: the home believes
stations before it gives orders, for 11 s where its hosts are gone. With `--notice` the home gets SIGTERM, and is set
aside, in place of being killed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from isthmus.runtime.errors import INTERRUPTED_STATUS
from tests.bench.observed import print_spreads
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place

NS = 1e9
LEARNERS = 2
INTERVAL = 24
TOKENS_A_STEP = 64
BARS = {"steps missed": 0, "tokens lost, beyond what was under way": 0}
Spans = Sequence[tuple[float, float]]


def inner_steps(folder: Path, slot: int) -> list[tuple[float, float]]:
    """The inner steps of a learner's only life: (begun, ended), seconds of the monotonic clock."""
    zero = json.loads((folder / "spec.json").read_text())["zero_ns"]
    (path,) = (folder / "spans").glob(f"learner-{slot}-*.json")
    spans = json.loads(path.read_text())
    return [
        ((zero + begun) / NS, (zero + ended) / NS) for _, name, begun, ended, peer, _ in spans if name == "inner-step"
    ]


def missed(steps: Spans, killed: float, back: float) -> tuple[float, float]:
    """The steps missed, from `killed` to `back`, in pauses between steps that are longer than any in as long before;
    and the longest pause, seconds."""
    begun = [each for each, _ in steps]
    pauses = [(after - before, before) for before, after in pairwise(begun)]
    usual = [pause for pause, at in pauses if 2 * killed - back <= at < killed]
    away = [pause for pause, at in pauses if killed <= at < back]
    return sum(pause / statistics.median(usual) - 1 for pause in away if pause > max(usual)), max(away)


def measured(folder: Path, seconds: float, *, has_notice: bool) -> dict[str, float]:
    """One run."""
    place = Place(folder)
    try:
        machines = Machines(place, "alpha", "beta")
        roles = {"alpha": 'roles = ["syncer", "evaluator"]', "beta": f'roles = ["learner"]\nislands = {LEARNERS}'}
        settings = ("run.snapshot_every_seconds=1", f"run.learners={LEARNERS}", f"program.interval={INTERVAL}")
        more = [part for each in settings for part in ("--set", each)]
        done = place.call(*place.training("run", "--cluster", machines.cluster(roles), "--detach", *more))
        if done.returncode:
            raise SystemExit(done.stderr)
        place.wait_for_merges("run", 60)
        place.wait_for(lambda: (folder / "run" / "snapshots" / "manifest-before.json").exists())
        time.sleep(seconds)
        lives = machines.steps()
        address, merges, killed = machines.daemons["alpha"].address, len(machines.merges()), time.monotonic()
        if has_notice:
            home = machines.daemons["alpha"].process
            home.send_signal(signal.SIGTERM)
            if home.wait(60) != INTERRUPTED_STATUS:
                raise SystemExit(f"the home ended with status {home.returncode}")
        else:
            machines.kill("alpha")
        time.sleep(seconds)
        started = time.monotonic()
        machines.start("alpha", address)
        place.wait_for(lambda: len(machines.merges()) > merges)
        back = time.monotonic()
        place.wait_for(lambda: len(machines.merges()) > merges + 20)
        if {name: life for name, (life, _) in machines.steps().items()} != {
            name: life for name, (life, _) in lives.items()
        }:
            raise SystemExit(f"learners have other lives: {lives}, {machines.steps()}")
        if place.call("stop", "run").returncode:
            raise SystemExit(place.logs())
        machines.daemons["alpha"].wait_for_line("finished")
        summary = place.summary("run")
        accounts_add_up(summary)
        told = [missed(inner_steps(folder / "run", slot), killed, back) for slot in range(LEARNERS)]
        under_way = LEARNERS * INTERVAL * TOKENS_A_STEP
        return {
            "steps missed": sum(count for count, _ in told),
            "longest time between two steps, s": max(pause for _, pause in told),
            "tokens lost": summary["tokens_lost"],
            "tokens lost, beyond what was under way": max(0.0, summary["tokens_lost"] - under_way),
            "daemon started to next merge, s": back - started,
            "without a home, s": back - killed,
        }
    finally:
        place.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away", type=float, default=5.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--notice", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(asked.repeat):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for name, value in measured(Path(folder), asked.away, has_notice=asked.notice).items():
                found.setdefault(name, []).append(value)
    if asked.json:
        print(json.dumps(found))
        return
    print_spreads(found, {name: str(bar) for name, bar in BARS.items()})


if __name__ == "__main__":
    main()
