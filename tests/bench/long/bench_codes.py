"""What codes cost and save.

    python -m tests.bench.long.bench_codes [--runs] [--seeds N] [--tokens N] [--json]

Kernels: 64 MiB of float32 (two units), one thread; seconds to read it once (a numba sum) over seconds to code it, to
add its codes to a published fragment, and, per learner, over what a merge of eight coded gradients takes; cases take
turns, medians. With `--runs`, pairs of runs in one process, float32 and int4 both ways, the same seeds: the difference
of the last losses, payload bytes of an item after the first version of each fragment (arrays of answers, and of updates
for each of the four learners), and CPU seconds of the process per inner step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.ops.exchange.formats import CODE_BLOCK, CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import averaging, coding
from isthmus.ops.kernels.stripes import kernel, stripes
from isthmus.ops.kernels.sweeps import FLOAT32, decoded
from isthmus.ops.learner.fragment_send import norms
from tests.bench.bench_merge import measure
from tests.bench.reading import read

SIZE = 1 << 24
LEARNERS = 8
SLICE = 1 << 21
REPEATS = 7
BAR = 0.5
BLOCKS = 2048


def kernels() -> dict[str, float]:
    """Ratios of reading to each case."""
    fragment = Fragment(0, tuple(Unit(name, 0, SIZE // 2, (SIZE // 2,)) for name in "ab"))
    part = Fragment(0, (Unit("a", 0, SLICE, (SLICE,)),))
    values = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    published, room = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    whole = [values[m * SLICE : (m + 1) * SLICE] for m in range(LEARNERS)]
    lengths = [norms(each, part) for each in whole]
    cases: dict[str, Any] = {"read": partial(read, [values], stripes(fragment.offsets), 1)}
    for form in CODED:
        codes = coding.encode(values, fragment, form)
        coded = [coding.encode(each, part, form) for each in whole]
        cases[f"quantize {form}"] = partial(coding.encode, values, fragment, form)
        cases[f"dequantize {form}"] = partial(dequantize, codes, fragment, room)
        cases[f"dequantize and add {form}"] = partial(coding.add, published, codes, fragment)
        cases[f"dequantize and merge {form}"] = partial(averaging.merge, coded, [1.0] * LEARNERS, lengths, part)
    cases["add float32 (numpy)"] = partial(np.add, published, values, out=room)
    cases["copy float32 (numpy)"] = partial(np.copyto, room, values)
    cases["merge float32"] = partial(averaging.merge, whole, [1.0] * LEARNERS, lengths, part)
    seconds = measure(cases, dict.fromkeys(cases, REPEATS))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {name: medians["read"] / each for name, each in medians.items()}


def dequantize(codes: coding.Coded, fragment: Fragment, room: np.ndarray[Any, Any]) -> None:
    """What is coded, in memory that is there."""
    _dequantize(*coding.kernel_inputs(codes), *coding.places(fragment.offsets), room)


@kernel
def _dequantize(
    raw: Any, scales: Any, form: int, offsets: Any, code_offsets: Any, scale_offsets: Any, room: Any
) -> None:
    for unit in range(len(offsets) - 1):
        for begin in range(offsets[unit], offsets[unit + 1], BLOCKS):
            within = begin - offsets[unit]
            scale_at = scale_offsets[unit] + within // CODE_BLOCK
            into = room[begin : min(begin + BLOCKS, offsets[unit + 1])]
            values = decoded(raw, scales, form, code_offsets, unit, within, scale_at, into)
            if form == FLOAT32:
                into[:] = values


def one_run(form: str, seed: int, tokens: int) -> dict[str, float]:
    """One run in this process: its loss, payload bytes by kind, steps and CPU seconds."""
    from isthmus import Program, train
    from isthmus.ops.learner.fragment_send import FragmentSend
    from isthmus.ops.syncer.outer_step import OuterStep

    sent: list[int] = []

    def count(item: Any, names: tuple[str, ...]) -> None:
        if item["kind"] not in ("initial", "recover"):
            sent.append(sum(item[name].nbytes for name in names if name in item))

    send, step = FragmentSend.__call__, OuterStep.__call__

    @wraps(send)
    def sending(self: Any, *given: Any, **named: Any) -> Any:
        for emitted in send(self, *given, **named):
            for _, answer in emitted:
                count(answer, ("gradient", "scales", "norms"))
            yield emitted

    @wraps(step)
    def stepping(self: Any, *given: Any, **named: Any) -> Any:
        emitted = step(self, *given, **named)
        if "update" in emitted:
            for _ in range(4):
                count(emitted["update"], ("values", "scales"))
        return emitted

    FragmentSend.__call__, OuterStep.__call__ = sending, stepping  # type: ignore[method-assign, assignment]
    program = Program("decoupled-diloco", push=form, update=form)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        result = train(program, tokens=tokens, seed=seed, transport="inproc", run_dir=Path(folder) / "run", quiet=True)
        cpu = time.process_time() - begun
    steps = sum(each["steps"] for each in result.summary["per_learner"])
    return {"loss": result.eval_loss, "cpu": cpu, "steps": steps, "bytes": sum(sent) / len(sent)}


def runs(seeds: int, tokens: int) -> dict[str, float]:
    """Each run in a process of its own, in turns."""
    found: dict[str, list[dict[str, float]]] = {"float32": [], "int4": []}
    for seed in range(seeds):
        for form, each in found.items():
            command = [sys.executable, "-m", "tests.bench.long.bench_codes", "--one", form, str(seed), str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            each.append(json.loads(done.stdout.splitlines()[-1]))
            print(form, seed, each[-1], file=sys.stderr, flush=True)
    pairs = list(zip(found["int4"], found["float32"], strict=True))
    differences = [one["loss"] - other["loss"] for one, other in pairs]
    payload = {form: statistics.fmean(each["bytes"] for each in kind) for form, kind in found.items()}
    return {
        "int4 minus float32, nats/byte": statistics.fmean(differences),
        "its deviation": statistics.stdev(differences) if len(differences) > 1 else 0.0,
        "payload bytes of an item, float32 / int4": payload["float32"] / payload["int4"],
        "CPU seconds a step, int4 / float32": statistics.median(
            (one["cpu"] / one["steps"]) / (other["cpu"] / other["steps"]) for one, other in pairs
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one_run(asked.one[0], int(asked.one[1]), int(asked.one[2]))))
        return
    figures = runs(asked.seeds, asked.tokens) if asked.runs else kernels()
    if asked.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        bar = (
            f"   (the aim is {BAR})" if name in ("quantize int4", "dequantize int4", "dequantize and add int4") else ""
        )
        print(f"{name:42} {figure:8.3f}{bar}")


if __name__ == "__main__":
    main()
