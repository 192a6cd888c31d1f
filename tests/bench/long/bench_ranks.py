"""What `island.step` costs a loop of several ranks (DDP on gloo): steps a second with it, and without.

    .venv-torch/bin/python -m tests.bench.long.bench_ranks [--ranks 2] [--pairs 10] [--seconds 4] [--batch 8] [--json]

One run, in whose island the loop makes its steps for some seconds with `island.step` and for some without, in turn: so
both have the same processes, and the same disturbances by what else the machine does. Figures are medians and quartiles
over pairs. A step without an exchange has two messages: their time alone is that of the shortest twentieth of all calls
of `island.step`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.bench_learner import spread
from tests.bench.observed import training

ROOT = Path(__file__).parents[3]


def loop(path: Path, batch: int, pairs: int, seconds: float) -> None:
    """The script of a rank."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    import isthmus
    from tests.bench.own_loop_steps import CONTEXT, VOCABULARY, Model

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    ddp: Any = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (64, batch, CONTEXT + 1))

    def window(island: Any) -> tuple[float, list[float]]:
        """Steps a second of some seconds, and the seconds that `island.step` took; all ranks end it together."""
        begun, steps, took, is_enough = time.monotonic(), 0, list[float](), torch.zeros(1)
        while not is_enough:
            drawn = tokens[torch.randint(64, ())]
            loss = F.cross_entropy(ddp(drawn[:, :-1]).flatten(0, 1), drawn[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if island is not None:
                before = time.perf_counter()
                island.step(loss, tokens=batch * CONTEXT)
                took.append(time.perf_counter() - before)
            steps += 1
            if steps % 8 == 0:  # In both kinds of windows.
                is_enough[0] = time.monotonic() - begun > seconds
                dist.broadcast(is_enough, 0)
        return steps / (time.monotonic() - begun), took

    with isthmus.island(ddp, optimizer) as island:
        window(island)
        found = [(window(None)[0], window(island)) for _ in range(pairs)]
    if dist.get_rank() == 0:
        path.write_text(json.dumps(found))


def measure(ranks: int, pairs: int, seconds: float, batch: int) -> list[Any]:
    """(steps a second without, (with, seconds of each call)) of each pair."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "found.json")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        options = ("--loop", __file__, "--ranks", str(ranks))
        after = ("loop", str(path), str(batch), str(pairs), str(seconds))
        with training(Path(folder, "run"), *options, learners=1, after=after):
            while not path.exists():
                time.sleep(0.5)
        found: list[Any] = json.loads(path.read_text())
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.ranks, asked.pairs, asked.seconds, asked.batch)
    ratios = [inside / alone for alone, (inside, _) in found]
    calls = sorted(each for _, (_, took) in found for each in took)
    least, median = 1e3 * calls[len(calls) // 20], 1e3 * calls[len(calls) // 2]
    if asked.json:
        print(json.dumps({"batch": asked.batch, "ratios": ratios, "call_ms": [least, median]}))
        return
    print(f"{asked.ranks} ranks, {len(found)} pairs of {asked.seconds} s, batch {asked.batch}; medians and quartiles")
    print(f"without island.step, steps/s  {spread([alone for alone, _ in found])}")
    print(f"with it, steps/s              {spread([inside for _, (inside, _) in found])}")
    print(f"with / without                {spread(ratios)}")
    print(f"a call of island.step         {least:.2f} ms (shortest twentieth), {median:.2f} ms (median)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["loop"]:
        loop(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
