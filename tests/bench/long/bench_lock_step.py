"""What lock-step costs learners of two speeds.

    python -m tests.bench.long.bench_lock_step [--steps N] [--json]

Arithmetic on drawn step times, without a program: 8 learners, half of them 18 % slower, jitter of 10 %, as published
(arXiv 2604.21428). For both readings of "18 % slower" (a step takes 1.18 times as long, or the speed is .82) and of the
jitter (normal, or uniform): the share of the learners' time in steps if all wait for all at every step, at every third,
or never run more than two steps ahead of the slowest.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

import numpy as np

LEARNERS: Final = 8
JITTER: Final = 0.1
SLOW: Final = {"a step of 1.18": 1.18, "a speed of .82": 1 / 0.82}
SPREADS: Final = ("normal", "uniform")
AHEAD: Final = 2
Array = np.ndarray[Any, np.dtype[np.float64]]


def drawn(rng: np.random.Generator, spread: str, slow: float, steps: int) -> Array:
    """Seconds of the steps: (steps, learners), the second half of the learners slower."""
    shape = (steps, LEARNERS)
    factor = rng.normal(1, JITTER, shape) if spread == "normal" else rng.uniform(1 - JITTER, 1 + JITTER, shape)
    base = np.where(np.arange(LEARNERS) < LEARNERS // 2, 1.0, slow)
    return np.asarray(base * factor)


def at_barriers(took: Array, every: int) -> float:
    """The share in steps if all wait for all after every so many steps."""
    sums = took[: len(took) // every * every].reshape(-1, every, LEARNERS).sum(axis=1)
    return float(sums.mean() / sums.max(axis=1).mean())


def ahead(took: Array, steps: int) -> float:
    """The share in steps if nobody begins a step before all have ended the one so many before it."""
    ended = np.zeros((len(took) + 1, LEARNERS))
    for index, step in enumerate(took):
        gate = ended[index - steps].max() if index >= steps else 0.0
        ended[index + 1] = np.maximum(ended[index], gate) + step
    return float(took.sum() / (LEARNERS * ended[-1].max()))


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60_000, help="that are drawn")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for reading, slow in SLOW.items():
        for spread in SPREADS:
            took = drawn(np.random.default_rng(0), spread, slow, asked.steps)
            shares = {"every step": at_barriers(took, 1), "every third": at_barriers(took, 3)}
            shares[f"{AHEAD} ahead"] = ahead(took, AHEAD)
            rows.append({"slower": reading, "jitter": spread, **shares})
    if asked.json:
        print(json.dumps(rows))
        return
    for row in rows:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in row.items() if isinstance(share, float))
        print(f"{row['slower']:15} {row['jitter']:8} {shares}")


if __name__ == "__main__":
    main()
