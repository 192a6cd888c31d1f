"""What a run in processes costs and stands: CPU, memory, everybody else stopped, one learner dead.

    python -m tests.bench.long.bench_processes [cpu] [memory] [stopped] [dead] [--runs 3] [--tokens 4100000] [--json]

cpu      CPU seconds of the bare loop for the same tokens / CPU seconds of all processes of a run of 4 learners, start
         and end included on both sides, in batches of 8 sequences on both. The bare loop is two processes that make
         half of the steps each, one a core, because the run keeps both cores busy, too; and, beside it, four that
         make a quarter each, two a core, as the learners do, who evict each other from the caches.
memory   proportional memory (PSS) of all processes of that run while it trains, and of the syncer.
stopped  two learners, one a core; every other process is stopped (SIGSTOP) for 30 s: their steps a second / before.
dead     learner 3 of 4 is killed (SIGKILL) while the daemon is stopped and cannot restart it: tokens a second, and
         tokens per CPU second of the learners times 3/4 (what it comes to with a core a learner), / before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.runtime.system.memory import proportional_bytes
from isthmus.runtime.system.processes import ONE_THREAD
from tests.bench.observed import ISTHMUS, Run, cpu_of, pin, signal_all, status, training

LEARNERS = 4
BATCH = 8
BATCH_TOKENS = 64 * BATCH
STOPPED_SECONDS = 30.0
DEAD_SECONDS = 10.0
SETTLE_SECONDS = 1.0
BARS = {
    "cpu: two bare loops / run": (">=", 0.82),
    "cpu: four bare loops / run": (">=", 0.90),
    "memory: all, GiB": ("<=", 2.2),
    "memory: syncer, MiB": ("<=", 200.0),
    "stopped: steps a second / before": (">=", 0.98),
    "dead: tokens per CPU second, times 3/4": (">=", 0.73),
}


def bare(core: int, steps: int) -> None:
    """So many steps of the loop without a runtime, on one core."""
    os.environ.update(ONE_THREAD, NPROC="1")
    os.sched_setaffinity(0, {core})
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.engine.request.environment import prepare_environment
    from isthmus.programs.language_model import task

    prepare_environment(1)
    nano = task(batch=BATCH)
    learner = Learner(nano, (), life=LearnerLife(0, 0, 1))
    learner.compile(nano.batch(At(0, 0, 0)))
    learner.begin()
    pending = None
    for step in range(steps):
        loss = learner.step(nano.batch(At(0, core, step)), step / steps)
        if pending is not None:
            float(pending["loss"])
        pending = loss
    float(pending["loss"])


def children_seconds() -> float:
    """CPU seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare_seconds(tokens: int, count: int) -> float:
    """CPU seconds of so many bare loops side by side for so many tokens."""
    before = children_seconds()
    steps = str(tokens // BATCH_TOKENS // count)
    loops = [
        subprocess.Popen([sys.executable, "-m", "tests.bench.long.bench_processes", "--bare", str(each % 2), steps])
        for each in range(count)
    ]
    for loop in loops:
        if loop.wait():
            raise SystemExit(f"the bare loop ended with {loop.returncode}")
    return children_seconds() - before


def whole_run(folder: Path, tokens: int) -> tuple[dict[str, Any], dict[str, int]]:
    """The summary of a run, and the proportional memory of its processes in the middle of it.

    It is watched by its metrics: `isthmus status` every second made a run cost 11 % more CPU seconds.
    """
    command = [str(ISTHMUS), "train", "--tokens", str(tokens), "--quiet", "--set", f"task.batch={BATCH}"]
    run = subprocess.Popen([*command, "--run-dir", str(folder)], stdout=subprocess.DEVNULL)
    memory: dict[str, int] = {}
    while run.poll() is None:
        time.sleep(1.0)
        if not memory and reported_tokens(folder) > tokens / 2:
            pids = {host["name"]: host["pid"] for host in status(folder)["hosts"] if host["pid"]}
            memory = {name: proportional_bytes(pid) or 0 for name, pid in (pids | {"command": run.pid}).items()}
    if run.returncode:
        raise SystemExit(f"the run ended with {run.returncode}")
    return json.loads((folder / "summary.json").read_text()), memory


def reported_tokens(folder: Path) -> int:
    """About how many tokens the run has trained, by the last line of its metrics: that learner's, times them all."""
    with suppress(OSError):
        *lines, _ = (folder / "metrics.jsonl").read_bytes().split(b"\n")
        return LEARNERS * int(json.loads(lines[-1])["tokens"]) if lines else 0
    return 0


def measure_cpu(folder: Path, tokens: int) -> dict[str, float]:
    """One run and one bare loop."""
    two = bare_seconds(tokens, 2)
    summary, memory = whole_run(folder / "run", tokens)
    four = bare_seconds(tokens, LEARNERS)
    used = summary["cpu_seconds_total"]
    return {
        "cpu: two bare loops / run": two / used,
        "cpu: four bare loops / run": four / used,
        "cpu: run, seconds": used,
        "cpu: two bare loops, seconds": two,
        "cpu: four bare loops, seconds": four,
        "cpu: eval loss": summary["eval_loss_final"],
        "cpu: contributors": summary["contributors_mean"],
        "cpu: merged share": summary["merged_share"],
        "memory: all, GiB": sum(memory.values()) / 2**30,
        "memory: syncer, MiB": memory.get("syncer/0", 0) / 2**20,
    }


def steps_within(run: Run, hosts: list[str], windows: list[tuple[float, float]]) -> list[float]:
    """Inner steps a second of all `hosts` together, in each window of time."""
    ends = [ended for host in hosts for _, ended in run.spans(host, "inner-step")]
    return [sum(begun <= end < ended for end in ends) / (ended - begun) for begun, ended in windows]


def measure_stopped(folder: Path, _: int) -> dict[str, float]:
    """Two learners, one a core, alone for 30 s."""
    with training(folder / "run", learners=2) as run:
        learners = ["learner/0", "learner/1"]
        for core, name in enumerate(learners):
            pin([run.pids[name]], core)
        time.sleep(SETTLE_SECONDS)
        begun = time.monotonic()
        time.sleep(DEAD_SECONDS)
        signal_all(run.others(*learners), signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(STOPPED_SECONDS)
        resumed = time.monotonic()
        signal_all(run.others(*learners), signal.SIGCONT)
        time.sleep(2 * SETTLE_SECONDS)
        run.stop()
        before, alone = steps_within(run, learners, [(begun, stopped), (stopped, resumed)])
    return {"stopped: steps a second / before": alone / before, "stopped: steps a second": alone}


def measure_dead(folder: Path, _: int) -> dict[str, float]:
    """Three learners go on without the fourth."""
    names = [f"learner/{slot}" for slot in range(LEARNERS)]
    with training(folder / "run", learners=LEARNERS) as run:
        survivors = names[:-1]
        time.sleep(SETTLE_SECONDS)

        def window(alive: list[str]) -> tuple[tuple[float, float], float]:
            before = {name: sum(cpu_of(run.pids[name]).values()) for name in alive}
            begun = time.monotonic()
            time.sleep(DEAD_SECONDS)
            after = {name: sum(cpu_of(run.pids[name]).values()) for name in alive}
            return (begun, time.monotonic()), sum(after[name] - before[name] for name in alive)

        whole, whole_cpu = window(names)
        dead_steps = last_step(run, LEARNERS - 1)
        os.kill(run.pids["daemon"], signal.SIGSTOP)
        os.kill(run.pids[names[-1]], signal.SIGKILL)
        time.sleep(SETTLE_SECONDS)
        dead, dead_cpu = window(survivors)
        os.kill(run.pids["daemon"], signal.SIGCONT)
        time.sleep(5 * SETTLE_SECONDS)
        run.stop()
        rates = steps_within(run, survivors, [whole, dead])
        rates[0] += (dead_steps - last_step(run, LEARNERS - 1, whole[0] - run.zero)) / (whole[1] - whole[0])
    ratio = rates[1] / rates[0]
    seconds = whole[1] - whole[0], dead[1] - dead[0]
    per_cpu = ratio * (whole_cpu / seconds[0]) / (dead_cpu / seconds[1])
    return {"dead: tokens a second / before": ratio, "dead: tokens per CPU second, times 3/4": per_cpu * 3 / 4}


def last_step(run: Run, learner: int, until: float = float("inf")) -> int:
    """The last step that a learner has reported by then; a killed one leaves no spans."""
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return max(line["step"] for line in lines if line["learner"] == learner and line["time"] <= until)


PARTS: dict[str, Callable[[Path, int], dict[str, float]]] = {
    "cpu": measure_cpu,
    "memory": measure_cpu,
    "stopped": measure_stopped,
    "dead": measure_dead,
}


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--bare"]:
        bare(int(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4_100_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    measures = dict.fromkeys(PARTS[part] for part in asked.parts or PARTS)
    found: dict[str, list[float]] = {}
    for _ in range(asked.runs):
        for measure in measures:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                for name, value in measure(Path(folder), asked.tokens).items():
                    found.setdefault(name, []).append(value)
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{asked.runs} runs each; medians, smallest and largest")
    for name, values in found.items():
        bar = f"   bar {' '.join(map(str, BARS[name]))}" if name in BARS else ""
        print(f"{name:42} {statistics.median(values):8.3f} ({min(values):.3f} to {max(values):.3f}){bar}")


if __name__ == "__main__":
    main()
