"""Merge with RDA and outer step, against reading the same bytes.

    python -m tests.bench.bench_merge [--json]

Eight learners, 64 MiB each, norms sent along; 4 of 500M values by `--learners 4 --mib 1907 --cases last` (18 GB).
The figure is the seconds to read the gradients once (a numba sum, as many threads) over seconds to merge them and make
the outer step. `read all` reads Theta and momentum, too, which the outer step has to: the fewer learners, the more
these are of it. Each outer step's results replace the state, as a shard does it. The first repeat warms memory and is
not counted. `naive` is the same arithmetic in plain NumPy, done fewer times.

`last` is what remains after the last answer, through the nodes of a shard: checks, merge, outer step, and the encoding
of the update with its digest; all other answers have come before. `last's outer step` is the outer step and the
encoding in it. Each learner is the last in turn. For each of them the bits of the merge are compared with those of a
merge that begins when all are there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.token_accounts import weight
from isthmus.ops.kernels import averaging, nesterov
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.stripes import stripes
from isthmus.ops.learner.fragment_send import norms
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.runtime.ids import Replica
from isthmus.runtime.items.encoding import encode
from tests.bench.reading import read
from tests.ops.bodies import Context, pull

BAR = 0.4
LAST_BAR = 1.5
"""The most that the time after the last answer may be of that of its outer step and encoding."""
TOKENS = 8
"""Of a step."""
LR, MOMENTUM = 0.4, 0.7
# Each tensor's share of the values: like a transformer block and its norms, the rest in one more tensor.
SHARES = (0.08, 0.08, 0.08, 0.08, 0.0001, 0.2, 0.2, 0.0001, 0.2)


@dataclass
class Shard:
    """What a shard holds when a round closes: its state, and the gradients that came."""

    fragment: Fragment
    theta: Float32
    momentum: Float32
    gradients: list[Float32]
    norms: list[Float32]
    weights: list[float]


def shard(learners: int, size: int) -> Shard:
    """A shard with one fragment of `size` values of ten tensors, and random gradients of so many learners."""
    sizes = [int(part * size) for part in SHARES]
    sizes.append(size - sum(sizes))
    parts = [Unit(f"t{i}", 0, n, (n,)) for i, n in enumerate(sizes)]
    fragment = Fragment(0, tuple(parts))
    gradients = []
    for m in range(learners):
        gradient = empty(size)
        np.random.default_rng(m).standard_normal(size, dtype=np.float32, out=gradient)
        gradients.append(gradient)
    theta, momentum = empty(size), empty(size)
    theta.fill(1.0)
    momentum.fill(0.0)
    lengths = [norms(gradient, fragment) for gradient in gradients]
    return Shard(fragment, theta, momentum, gradients, lengths, [float(1 + m % 3) for m in range(learners)])


def merge(held: Shard, method: averaging.Method, threads: int) -> None:
    """Merge and outer step."""
    merged = averaging.merge(held.gradients, held.weights, held.norms, held.fragment, method, threads)
    momentum, direction = held.momentum, merged.direction
    nesterov.step_over(held.theta, momentum, direction, merged.scale, held.fragment, LR, MOMENTUM, threads)
    held.theta = direction


def naive(held: Shard) -> None:
    """The same in plain NumPy, one thread."""
    w = np.array(held.weights) / sum(held.weights)
    lr, decay = np.float32(LR), np.float32(MOMENTUM)
    gradient: Float32 = np.empty_like(held.theta)
    for start, stop in zip(held.fragment.offsets, held.fragment.offsets[1:], strict=False):
        rows = [each[start:stop] for each in held.gradients]
        lengths = [float(np.linalg.norm(row)) for row in rows]
        direction = sum(np.float32(wm / n) * row for wm, n, row in zip(w, lengths, rows, strict=True))
        gradient[start:stop] = np.float32(w @ lengths / np.linalg.norm(direction)) * direction
    held.momentum = decay * held.momentum + gradient
    held.theta = np.asarray(held.theta - lr * (gradient + decay * held.momentum), np.float32)


def measure(cases: dict[str, Callable[[], None]], repeats: dict[str, int]) -> dict[str, list[float]]:
    """Seconds of each case, taken in turns; `repeats` of each after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(max(repeats.values()) + 1):
        for name, case in cases.items():
            if turn <= repeats[name]:
                begun = time.perf_counter()
                case()
                seconds[name].append(time.perf_counter() - begun)
    return {name: each[1:] for name, each in seconds.items()}


class Rounds:
    """A shard's nodes, and rounds of them that all learners answer with their gradients."""

    def __init__(self, held: Shard) -> None:
        self._held, self._number, self._count = held, 0, len(held.gradients)
        settings: Any = {"lr": LR, "momentum": MOMENTUM}
        self._merge = Merge((held.fragment,), method="rda", step_tokens=TOKENS, **settings)
        self._outer = OuterStep((held.fragment,), **settings)
        for body in (self._merge, self._outer):
            body.open(Context("syncer"))
        first = {**self._answer(0), "kind": "initial", "base": None, "gradient": held.theta}
        self._outer(gradient=self._merged([first], "initial"))

    def last(self, slot: int) -> tuple[float, float]:
        """Seconds from the last answer, that of `slot`, to the encoded update; and those of outer step and encoding."""
        answers = self._arrived(slot)
        begun = time.perf_counter()
        gradient = self._merged(answers)
        merged = time.perf_counter()
        encode(self._outer(gradient=gradient)["update"])
        return time.perf_counter() - begun, time.perf_counter() - merged

    def has_equal_bits(self, slot: int) -> bool:
        """Whether a merge after whose last answer, that of `slot`, little remains is that which begins at its end."""
        gradient = self._merged(self._arrived(slot))
        early = [xxhash.xxh3_128_digest(gradient[name]) for name in ("direction", "scale")]
        gradient["direction"] = None
        held, weights = self._held, [weight(TOKENS * each, each) for each in map(self._steps, range(self._count))]
        merged = averaging.merge(held.gradients, weights, held.norms, held.fragment)
        return early == [xxhash.xxh3_128_digest(each) for each in (merged.direction, merged.scale)]

    def _arrived(self, last: int) -> list[Any]:
        """The answers of a round, of which all but the last one have been there for a while."""
        self._number += 1
        answers = [self._answer(slot) for slot in range(self._count)]
        if self._merge.take_early is not None:
            for answer in answers:
                if answer["slot"] != last:
                    self._merge.take_early(answer)
        return answers

    def _merged(self, answers: list[Any], kind: str = "merge") -> Any:
        votes = {(Replica("learner", each["slot"]), 1): each for each in answers}
        gradient = self._merge(round=pull(0, self._number, kind=kind), answer=votes)["gradient"]
        assert len(gradient["merging"]["voters"]) == len(answers), gradient["merging"]
        return gradient

    @staticmethod
    def _steps(slot: int) -> int:
        return 8 + slot % 3

    def _answer(self, slot: int) -> Any:
        steps = self._steps(slot)
        return {
            "fragment": 0,
            "round": self._number,
            "kind": "merge",
            "slot": slot,
            "incarnation": 1,
            "base": [1, max(0, self._number - 1)],
            "begin": TOKENS * 16 * self._number,
            "end": TOKENS * (16 * self._number + steps),
            "steps": steps,
            "clock": [],
            "positions": [],
            "state": None,
            "gradient": self._held.gradients[slot],
            "norms": self._held.norms[slot],
        }


def measure_last(held: Shard, repeats: int) -> dict[str, list[float]]:
    """Seconds after the last answer, in all and of the outer step; SystemExit for other bits."""
    rounds, count = Rounds(held), len(held.gradients)
    held.theta = held.momentum = np.empty(0, np.float32)  # The nodes have them now.
    for slot in range(count):
        if not rounds.has_equal_bits(slot):
            raise SystemExit(f"the merge has other bits where learner {slot} is the last")
    taken = [rounds.last(turn % count) for turn in range(repeats + 1)][1:]
    whole, outer = zip(*taken, strict=True)
    return {"last": list(whole), "last's outer step": list(outer)}


def main() -> None:
    """Measure, print, and say whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64, help="MiB of each learner's gradient")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11)
    cases_all = ["read", "rda", "average", "last", "naive"]
    parser.add_argument("--cases", nargs="+", default=cases_all, help="read, rda, and which else")
    options = parser.parse_args()

    held = shard(options.learners, options.mib * 2**18)
    over = stripes((0, held.fragment.size))
    cases: dict[str, Callable[[], None]] = {
        "read": partial(read, held.gradients, over, options.threads),
        "read all": lambda: read([*held.gradients, held.theta, held.momentum], over, options.threads),
        "rda": partial(merge, held, "rda", options.threads),
        "average": partial(merge, held, "average", options.threads),
        "naive": partial(naive, held),
    }
    cases = {name: case for name, case in cases.items() if name in ("read", "read all", "rda", *options.cases)}
    seconds = measure(cases, {name: 2 if name == "naive" else options.repeats for name in cases})
    if "last" in options.cases:
        seconds |= measure_last(held, options.repeats)

    size_gb = options.learners * options.mib * 2**20 / 1e9
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    figures = {
        name: {
            "ms_median": 1e3 * medians[name],
            "ms_min": 1e3 * min(each),
            "ms_max": 1e3 * max(each),
            "gb_per_second": size_gb / medians[name],
            "ratio": medians["read"] / medians[name],
            "ratio_to_all": medians["read all"] / medians[name],
        }
        for name, each in seconds.items()
    }
    after_last = None
    if "last" in options.cases:
        pairs = zip(seconds["last"], seconds["last's outer step"], strict=True)
        after_last = statistics.median(whole / outer for whole, outer in pairs)
    is_bar_case = (options.learners, options.mib) == (8, 64)
    is_met = figures["rda"]["ratio"] >= BAR
    if options.json:
        report = {"bench": "merge", "threads": options.threads, "bar": BAR, "is_met": is_met, "cases": figures}
        report["last / its outer step"] = after_last
        print(json.dumps(report))
        return
    print(f"{options.learners} learners x {options.mib} MiB, {options.threads} threads, {options.repeats} repeats")
    print(f"{'case':<18}{'median ms':>10}{'min':>8}{'max':>8}{'GB/s in':>9}{'to read':>9}{'to read all':>13}")
    for name, f in figures.items():
        times = f"{f['ms_median']:>10.1f}{f['ms_min']:>8.1f}{f['ms_max']:>8.1f}"
        print(f"{name:<18}{times}{f['gb_per_second']:>9.1f}{f['ratio']:>9.2f}{f['ratio_to_all']:>13.2f}")
    if after_last is not None:
        verdict = "met" if after_last <= LAST_BAR else "MISSED"
        print(f"last answer to published / outer step and encoding: {after_last:.2f}, bar {LAST_BAR}: {verdict}")
    if is_bar_case:
        verdict = "met" if is_met else "MISSED"
        print(f"merge with RDA and outer step / read: {figures['rda']['ratio']:.2f}, bar {BAR}: {verdict}")


if __name__ == "__main__":
    main()
