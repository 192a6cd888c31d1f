"""Whether stages of an island train as one device does, what they compute a second, and whether a large model fits.

    python -m tests.bench.long.bench_stages [--rates] [--compile] [--json]

nano with 4 layers on 1 device, 2 and 4 stages, 2 x 2, and 2 stages x 2 parts of matrices, of CPU devices: losses of 20
steps by SGD, AdamW and Muon, with as many micro-batches on each; what `tests/ops/island/test_stages.py` tests of some
of them. With `--rates` instead steps a second on 4 stages and of FSDP on 4 devices, in turns, in one process. With
`--compile` gpt-1.2b with 24 layers in 4 stages for v5p:2x2x1 and v6e:2x2, which needs libtpu (the extra `tpu`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
BARS = {"sgd": 2e-6, "adamw": 2e-6, "muon": 2e-5}
DEEP = {"layers": 24, "stacked": "true", "checkpoint": "true", "stages": 4, "batch": 32}
ISLANDS = ("v5p:2x2x1", "v6e:2x2")
FSDP, STAGES = "fsdp", "stages"


def losses() -> dict[str, dict[str, float]]:
    """The largest relative difference of a loss from that of one device, by optimizer and mesh."""
    command = [sys.executable, "-m", "tests.ops.island.stage_figures", "all"]
    told = subprocess.run(command, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdout=-1, check=True)
    found = json.loads(told.stdout)
    return {
        optimizer: {mesh: furthest(each, found[optimizer]["1"]) for mesh, each in found[optimizer].items()}
        for optimizer in (*BARS, "experts", "averaged")
    }


def furthest(values: list[float], of: list[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(values, of, strict=True))


def rates(width: int, layers: int, context: int, batch: int, microbatches: int, pairs: int, seconds: float) -> Any:
    """Steps a second of each mesh, pairs of them."""
    import jax

    config: Any = jax.config
    config.update("jax_num_cpu_devices", 4)
    from dataclasses import replace

    import numpy as np

    from isthmus.ops.data.batches import At
    from isthmus.ops.gang.mesh_sharding import AXES_DEFAULT, Axes
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.ops.model_config import ModelConfig
    from isthmus.runtime.host.contract import IslandDevices
    from tests.ops.island.stage_figures import StagedTask

    shape = ModelConfig(layers=layers, width=width, context=context, stacked=True)
    tokens = At(0, 0, 0).rng().integers(0, 256, (batch, context + 1)).astype(np.uint8)
    learners = {}
    staged: Axes = (("data", 1), ("stage", 4))
    for name, mesh, count in ((FSDP, AXES_DEFAULT, None), (STAGES, staged, microbatches)):
        task = StagedTask("adamw", mesh, replace(shape, microbatches=count))
        learners[name] = Learner(task, (), life=LearnerLife(0, 0, 1), island=IslandDevices(("cpu",), 4, 0))
        learners[name].compile_step({"tokens": tokens})
        learners[name].begin()
    found = []
    for _ in range(pairs):
        pair = {}
        for name, learner in learners.items():
            count, begun = 0, time.monotonic()
            while (spent := time.monotonic() - begun) < seconds:
                learner.step({"tokens": tokens}, 0.5)["loss"].block_until_ready()
                count += 1
            pair[name] = count / spent
        found.append(pair)
    return found


def compiled() -> Any:
    """The islands of `isthmus compile --json`."""
    settings = [part for name, value in DEEP.items() for part in ("--set", f"task.{name}={value}")]
    islands = [part for island in ISLANDS for part in ("--island", island)]
    command = [sys.executable, "-c", "from isthmus.programs.command.main import main; main()", "compile", "--json"]
    done = subprocess.run([*command, "--model", "gpt-1.2b", *settings, *islands], stdout=-1, cwd=ROOT)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)["islands"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    for name, default in (("width", 128), ("layers", 4), ("context", 64), ("batch", 64), ("microbatches", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    if asked.rates:
        sizes = (asked.width, asked.layers, asked.context, asked.batch, asked.microbatches)
        found = rates(*sizes, asked.pairs, asked.seconds)
        medians = {name: statistics.median(pair[name] for pair in found) for name in (FSDP, STAGES)}
        ratio = statistics.median(pair[STAGES] / pair[FSDP] for pair in found)
        if asked.json:
            print(json.dumps({"rates": found, "medians": medians, "ratio": ratio}))
            return
        print(f"steps a second: FSDP {medians[FSDP]:.2f}, 4 stages {medians[STAGES]:.2f}; ratio {ratio:.3f}")
        print(f"of the turns {asked.microbatches} of {asked.microbatches + 3} are no bubble")
        return
    if asked.compile:
        islands = compiled()
        if asked.json:
            print(json.dumps(islands))
            return
        for island in islands:
            needs, limit, state = (
                each / 1e9 for each in (island["memory_bytes"], island["memory_limit_bytes"], island["memory"]["state"])
            )
            fits = "fits" if island["fits"] else "does not fit"
            print(f"{island['island']:<10} {needs:5.1f} GB of {limit:.1f} on each device, state {state:.2f}: {fits}")
            print(f"{'':<10} collectives in a step {island['collectives']['by_kind']}")
        return
    differences = losses()
    if asked.json:
        print(json.dumps(differences))
        return
    for optimizer, row in differences.items():
        print(f"{optimizer:<9}", "  ".join(f"{mesh}: {value:.1e}" for mesh, value in row.items()))
    print(f"the bars: {BARS}")


if __name__ == "__main__":
    main()
