"""What the compiler of TPUs says of the shipped task, beside counts by hand; and a model that needs more chips.

    python -m tests.bench.long.bench_compile [--batch 64] [--island v5p:2x2x1 --island v6e:2x2] [--large] [--json]

gpt-124m: arguments and outputs of the step on a device, against parameters and two moments in float32 and the batch,
cut evenly; and matrix products of a step, against six operations for each parameter of a matrix and token, and what
attention adds. With `--large`, gpt-12b instead, one command for three islands: v6e:2x2, v6e:4x4, v5p:2x2x2. It needs
libtpu (the extra `tpu`) and no TPU, and minutes; figures that were found before are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BAR = 0.1
LARGE = ("v6e:2x2", "v6e:4x4", "v5p:2x2x2")
FITTING = (False, True, True)


def by_hand(batch: int, devices: int) -> dict[str, float]:
    """Bytes of arguments and outputs, and operations of matrix products, on each of so many devices."""
    from isthmus.programs.command.config import MODELS

    size = MODELS["gpt-124m"]
    layers, width, context, vocabulary = (size[key] for key in ("layers", "width", "context", "vocabulary"))
    hidden = 8 * width // 3
    matrices = vocabulary * width + layers * (4 * width**2 + 3 * width * hidden)
    state = 3 * 4 * (matrices + (2 * layers + 1) * width)
    tokens = batch * context
    attention = 2 * 2 * layers * context * width  # Scores and what they weigh, of all pairs: masked ones are computed.
    return {
        "bytes": (2 * state + batch * (context + 1)) / devices,
        "flops": 3 * (2 * matrices + attention) * tokens / devices,  # Forward, and twice that backward.
    }


def compiled(*arguments: str) -> tuple[int, list[dict[str, Any]], float]:
    """Exit status and islands of `isthmus compile --json`, and the seconds that it took."""
    begun = time.monotonic()
    command = [sys.executable, "-c", "from isthmus.programs.command.main import main; main()", "compile", "--json"]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, env=os.environ, cwd=Path(__file__).parent)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(done.returncode)
    return done.returncode, json.loads(done.stdout)["islands"], time.monotonic() - begun


def small(batch: int, islands: list[str]) -> list[dict[str, Any]]:
    """gpt-124m on these islands, beside what is counted by hand."""
    given = [part for island in islands for part in ("--island", island)]
    rows = []
    for island in compiled("--model", "gpt-124m", "--set", f"task.batch={batch}", *given)[1]:
        [step] = [each["compiled"] for each in island["functions"] if each["name"] == "step"]
        hand = by_hand(batch, island["devices"])
        found = {
            "bytes": step["memory"]["arguments"] + step["memory"]["outputs"],
            "flops": island["flops_per_device"],
        }
        rows.append({"island": island["island"], "fits": island["fits"], "hand": hand, "found": found})
        rows[-1]["ratios"] = {name: found[name] / hand[name] for name in hand}
        rows[-1]["compile_seconds"] = island["compile_seconds"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--island", action="append", default=[])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.large:
        given = [part for island in LARGE for part in ("--island", island)]
        status, islands, took = compiled("--model", "gpt-12b", "--set", "program.fragments=24", *given)
        if asked.json:
            print(json.dumps({"status": status, "seconds": took, "islands": islands}))
            return
        for island in islands:
            fits = "fits" if island["fits"] else f"does not fit; {', '.join(island['helps'])} would help"
            needs, limit = (island[key] / 1e9 for key in ("memory_bytes", "memory_limit_bytes"))
            print(f"{island['island']:<10} {needs:6.1f} GB of {limit:.1f} on each device: {fits}")
            print(f"{'':<10} compiled in {island['compile_seconds']:.0f} s")
        print(f"exit status {status}, {took:.0f} s; expected: {dict(zip(LARGE, FITTING, strict=True))}")
        return
    rows = small(asked.batch, asked.island or ["v5p:2x2x1", "v6e:2x2"])
    if asked.json:
        print(json.dumps(rows))
        return
    for row in rows:
        for name, unit in (("bytes", 1e6), ("flops", 1e12)):
            found, hand, ratio = row["found"][name], row["hand"][name], row["ratios"][name]
            what = f"{row['island']:<10} {name}"
            print(f"{what:<18} {found / unit:9.3f} of the compiler, {hand / unit:9.3f} by hand, {ratio:.4f}")
        print(f"{row['island']:<10} compiled in {row['compile_seconds']:.0f} s")
    print(f"megabytes and teraflops on each device; the bar: within {BAR:.0%}")


if __name__ == "__main__":
    main()
