"""What a learner of a large model loses: its CPU of a step beside a bare loop's, by thread, and beside an evaluation.

    python -m tests.bench.long.bench_large [--folder FOLDER] [--framework torch|jax] [--context 128] [--batch 1]
                                           [--interval 24] [--steps 24] [--evaluation 400] [--update float32] [--json]

Two islands of a real run on cores that they share with its other hosts, of a model folder, or of a small one of the
same architecture that is made (`--layers 6 --width 384`). The bare loop is that of a script in the framework: the same
batches, loss, and optimizer; two of them run at once, before and after the run. CPU is from /proc, so that other work
on the machine disturbs it little. The run begins with an evaluation of `--evaluation` batches; steps are counted while
it lasts, and when it is over: their rates are by the wall clock, and want a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.runtime.system.processes import environment
from isthmus.runtime.wire.control_client import ask
from tests.bench.large_task import linked, made
from tests.bench.observed import cpu_of, cpu_seconds, training

WARM_STEPS = 3
START_SECONDS_MAX = 400.0
LOOK_SECONDS = 0.2
BAR, BAR_BESIDE = 0.97, 0.9


class Sample(NamedTuple):
    """A learner at a boundary: its steps, the instant, CPU seconds of its process and of each living thread, and the
    names of these."""

    steps: int
    at: float
    cpu: float
    threads: dict[int, float]
    names: dict[int, str]


def bare(framework: str, folder: str, context: int, batch: int, steps: int) -> None:
    """The loop of a script: prints the CPU seconds of its steps."""
    from isthmus.ops.data.batches import At
    from isthmus.programs.engine.request.environment import prepare_environment
    from tests.bench.large_task import large

    prepare_environment(1)
    task = large(folder=folder, framework=framework, context=context, batch=batch, evaluation=1)
    step = _torch(task) if framework == "torch" else _jax(task)
    used = []
    for position in range(WARM_STEPS + steps):
        each, begun = task.batch(At(0, 0, position)), time.process_time()
        step(each)
        used.append(time.process_time() - begun)
    print(json.dumps(used[WARM_STEPS:]))


def _torch(task: Any) -> Any:
    import torch

    module = task.build()
    optimizer = task.optimizer(module)
    module.train()

    def step(each: Any) -> float:
        optimizer.zero_grad()
        loss = task.loss(module, {name: torch.from_numpy(array) for name, array in each.items()})
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _jax(task: Any) -> Any:
    """A script's jitted step, with the parameters and moments donated."""
    import jax
    import numpy as np
    import optax

    from isthmus.ops.exchange.parameter_trees import named_leaves
    from isthmus.ops.island.functions import compute_in_the_calling_thread

    compute_in_the_calling_thread()
    optimizer = optax.with_extra_args_support(task.optimizer)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    names = [name for name, _ in named_leaves(shapes)]
    leaves = [np.asarray(task.load(name, None)) for name in names]
    params = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    state = (params, jax.jit(optimizer.init)(params))

    def update(state: Any, batch: Any) -> Any:
        params, moments = state
        loss, gradient = jax.value_and_grad(task.loss)(params, batch)
        updates, moments = optimizer.update(gradient, moments, params, progress=np.float32(0.5))
        return (optax.apply_updates(params, updates), moments), loss

    jitted = jax.jit(update, donate_argnums=0)

    def step(each: Any) -> float:
        nonlocal state
        state, loss = jitted(state, each)
        return float(loss)

    return step


def bare_cpu(options: argparse.Namespace, folder: Path) -> list[float]:
    """The CPU seconds of steps of two bare loops at once."""
    command = [sys.executable, "-m", "tests.bench.long.bench_large", "--bare", "--folder", str(folder)]
    command += ["--framework", options.framework, "--context", str(options.context), "--batch", str(options.batch)]
    command += ["--steps", str(options.bare_steps)]
    variables = environment(computes=True)
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) for _ in range(2)]
    told = [loop.communicate()[0] for loop in loops]
    return [each for text in told for each in json.loads(text.splitlines()[-1])]


class Watch:
    """The learners of a run, looked at as they step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hosts(self) -> dict[str, dict[str, Any]]:
        endpoint = json.loads((self._folder / "daemon.json").read_text())["endpoint"]
        answer = ask(endpoint, {"type": "status"}, 5.0) or {"hosts": []}
        return {host["name"]: host for host in answer["hosts"]}

    def samples(self) -> dict[str, Sample]:
        """Each learner at its next boundary."""
        found: dict[str, Sample] = {}
        before = self._steps()
        while len(found) < len(before):
            time.sleep(LOOK_SECONDS)
            hosts = self.hosts()
            for name, steps in self._steps(hosts).items():
                if name not in found and steps > before[name]:
                    pid = hosts[name]["pid"]
                    threads = cpu_of(pid)
                    names = {thread: _name(pid, thread) for thread in threads}
                    found[name] = Sample(steps, time.monotonic(), cpu_seconds(pid), threads, names)
        return found

    def _steps(self, hosts: dict[str, dict[str, Any]] | None = None) -> dict[str, int]:
        learners = {name: host for name, host in (hosts or self.hosts()).items() if host["role"] == "learner"}
        return {name: host["published"].get("inner-step", {}).get("step", 0) for name, host in learners.items()}

    def until_evaluated(self) -> None:
        """Until the first evaluation is over; the next one is as far as the end of the run."""
        while not (self._folder / "evaluations.jsonl").read_text():
            time.sleep(LOOK_SECONDS)


def between(before: dict[str, Sample], after: dict[str, Sample]) -> dict[str, Any]:
    """What learners did between two looks: rate, CPU of a step, and that of each thread, by its name."""
    threads: dict[str, list[float]] = defaultdict(list)
    steps = {name: after[name].steps - before[name].steps for name in before}
    for name, count in steps.items():
        living = 0.0
        for thread, used in after[name].threads.items():
            cpu = used - before[name].threads.get(thread, 0.0)
            living += cpu
            threads[after[name].names[thread]].append(cpu / count)
        threads["ended threads"].append((after[name].cpu - before[name].cpu - living) / count)
    by_name = {name: sum(each) / len(steps) for name, each in threads.items()}
    return {
        "steps": steps,
        "rate": sum(count / (after[name].at - before[name].at) for name, count in steps.items()),
        "cpu_step": statistics.mean((after[name].cpu - before[name].cpu) / count for name, count in steps.items()),
        "threads": {name: cpu for name, cpu in sorted(by_name.items(), key=lambda item: -item[1]) if cpu > 1e-4},
    }


def _name(pid: int, thread: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip()
    except OSError:
        return "ended threads"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        here = Path(temporary)
        folder = here / "model"
        if options.folder:
            linked(Path(options.folder), folder)
        else:
            made(folder, options.layers, options.width)
        alone = bare_cpu(options, folder)
        words = f"folder='{folder}', framework='{options.framework}', context={options.context}, batch={options.batch}"
        task = f"{Path(__file__).parents[1] / 'large_task.py'}:large({words}, evaluation={options.evaluation})"
        settings = [f"program.interval={options.interval}", f"program.update={options.update}"]
        more = [word for setting in settings for word in ("--set", setting)]
        with training(here / "run", "--task", task, *more, learners=2, ready_seconds=START_SECONDS_MAX) as run:
            watch = Watch(run.folder)
            begun = {name: cpu_seconds(pid) for name, pid in run.pids.items()}
            first = watch.samples()
            evaluator = cpu_seconds(run.pids["evaluator/0"])
            while (beside := watch.samples())["learner/0"].steps < first["learner/0"].steps + options.beside_steps:
                pass
            still = cpu_seconds(run.pids["evaluator/0"]) - evaluator
            is_beside = not (run.folder / "evaluations.jsonl").read_text()
            watch.until_evaluated()
            quiet = watch.samples()
            while (last := watch.samples())["learner/0"].steps < quiet["learner/0"].steps + options.steps:
                pass
            used = {name: cpu_seconds(pid) - begun[name] for name, pid in run.pids.items()}
            run.stop()
        alone += bare_cpu(options, folder)
    idle, busy = between(quiet, last), between(first, beside)
    bare_step = statistics.mean(alone)
    learners = sum(beside[name].cpu - first[name].cpu for name in first)
    return {
        "framework": options.framework,
        "bare_cpu_step": bare_step,
        "learner_cpu_step": idle["cpu_step"],
        "ratio": bare_step / idle["cpu_step"],
        "threads": idle["threads"],
        "steps": idle["steps"],
        "beside_evaluation": busy["rate"] / idle["rate"] if is_beside else None,
        "kept_by_shares": learners / (learners + still) if is_beside else None,
        "rates": {"beside": busy["rate"], "without": idle["rate"]},
        "cpu_of_hosts": used,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="")
    parser.add_argument("--framework", choices=("torch", "jax"), default="torch")
    for name, default in (("layers", 6), ("width", 384), ("context", 128), ("batch", 1), ("interval", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("steps", 24), ("bare-steps", 10), ("beside-steps", 8), ("evaluation", 400)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--update", default="float32")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.bare:
        bare(options.framework, options.folder, options.context, options.batch, options.steps)
        return
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[3]))
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"bare loop, CPU s a step      {figures['bare_cpu_step']:.3f}")
    print(f"learner, CPU s a step        {figures['learner_cpu_step']:.3f}")
    print(f"bare loop / learner          {figures['ratio']:.3f}, bar {BAR}")
    for name, cpu in figures["threads"].items():
        print(f"    {name:16} {cpu:.4f}")
    print(f"steps/s beside / without     {figures['beside_evaluation'] or '-'}, bar {BAR_BESIDE}")
    print(f"share of the cores, beside    {figures['kept_by_shares'] or '-'}, bar {BAR_BESIDE}")
    print(f"CPU s of hosts               {json.dumps({k: round(v, 1) for k, v in figures['cpu_of_hosts'].items()})}")


if __name__ == "__main__":
    main()
