"""What is measured of one learner, and of two, on one GPU: each by one call, in lines of JSON as they come.

    python -m tests.bench.gpu_measures learner|torch|kill|memory|exchange [--tiny] [--data FOLDER] --out FILE

learner   steps a second inside a run, with its syncer, against the bare loop, in one process (`in_one_process.py`)
torch     the same of a model of 124 million parameters in PyTorch; status 3 where PyTorch is not installed
memory    the peak as jax's allocator counts it, after ten steps and an exchange of every fragment, against what the
          compiler says of the functions that are called, and what `isthmus graph` says of parameters and their state
exchange  a fragment in each wire format, coded on the device and fetched, against the codes of the CPU's kernels
kill      two learners with int4, of which one is killed (SIGKILL): until the next merge, and until its return; what
          was merged of the tokens, and whether the loss has fallen

gpt-124m with contexts of 1,024, in bfloat16; `--tiny` is a model that a CPU steps in milliseconds. `on_a_gpu.sh` calls
it, and sets the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

BATCH: Final = 8
RATE: Final = 6e-4
"""Given, so that the step is one program in all parts: a run of other tokens or learners would choose another."""
TINY: Final[Mapping[str, Any]] = {"layers": 1, "width": 32, "heads": 2, "context": 32, "batch": 4, "lr": 3e-3}
SHARE: Final = "0.45"
"""Of the GPU's memory: two processes have it at a time."""
MEASURED_SECONDS: Final = 10.0
"""Of the bare loop before and after the run; of the run twice that."""
TORCH_BATCH, TORCH_CONTEXT = 8, 512
LACKS_STATUS: Final = 3
"""Exit status where this machine lacks what a part needs."""
CALM_SECONDS: Final = 3.0
RETURN_SECONDS_MAX: Final = 45.0
"""Of a life that was killed: it starts CUDA, and loads the programs that the one before had compiled. On an H200 it was
merged again after 9.5 to 12.6 s."""
REPEATS: Final = 7
FRAGMENTS: Final = 8
STEPS: Final = 3
READY_SECONDS_MAX: Final = 600.0
"""Longer than a step of `on_a_gpu.sh` may take, which ends it."""


def settings(asked: argparse.Namespace) -> dict[str, Any]:
    """The task's settings."""
    from isthmus.programs.command.config import MODELS

    own = dict(TINY) if asked.tiny else {**MODELS["gpt-124m"], "batch": BATCH, "lr": RATE}
    return own if asked.data is None else {**own, "data": [str(asked.data)]}


def learner(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line."""
    from isthmus.programs.engine.request.environment import prepare_environment
    from tests.bench.in_one_process import measured

    prepare_environment(1)
    from isthmus.programs.language_model import task

    yield measured(task(**settings(asked)), FRAGMENTS, 1.0 if asked.tiny else MEASURED_SECONDS)


def torch(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line."""
    if find_spec("torch") is None:
        print("PyTorch is not installed here", file=sys.stderr)
        raise SystemExit(LACKS_STATUS)
    from isthmus.runtime.system.processes import ONE_THREAD

    os.environ.update(ONE_THREAD)  # As a host's; PyTorch counts the cores of each thread that calls it for itself.
    from tests.bench import torch_tasks
    from tests.bench.in_one_process import measured

    task = torch_tasks.nano(batch=4) if asked.tiny else torch_tasks.gpt_124m(TORCH_BATCH, TORCH_CONTEXT)
    yield measured(task, FRAGMENTS, 1.0 if asked.tiny else MEASURED_SECONDS)


def memory(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line."""
    from isthmus.programs.engine.request.model_sizes import learner_bytes
    from isthmus.programs.engine.request.request import prepare
    from tests.bench.long.bench_gpu import memory as measured

    own = settings(asked)
    request = prepare(run={"learners": 1}, task_settings=own)
    found = measured(own)
    yield {
        "graph_bytes": learner_bytes(request),
        "predicted_bytes": found["predicted"],
        "measured_bytes": found["measured"],
        "ratio": None if found["measured"] is None else found["predicted"] / found["measured"],  # type: ignore[operator]
    }


def exchange(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line a format: of the largest fragment, after a few steps."""
    import numpy as np

    from isthmus.ops.data.batches import At
    from isthmus.ops.exchange.formats import FORMATS
    from isthmus.ops.exchange.fragments import partition
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.ops.kernels import coding
    from isthmus.ops.learner.fragment_send import outer_gradient
    from isthmus.programs.engine.request.environment import prepare_environment
    from isthmus.programs.engine.request.layout import layout
    from isthmus.programs.language_model import task

    prepare_environment(1)
    trained = task(**settings(asked))
    fragments = partition(layout(trained), FRAGMENTS)
    part = max(range(FRAGMENTS), key=lambda number: fragments[number].size)
    fragment = fragments[part]
    trainee = Learner(trained, fragments, life=LearnerLife(0, 0, 1))
    trainee.begin()
    anchor = np.array(trainee.extract(part), np.float32)
    for step in range(STEPS):
        trainee.step(trained.batch(At(0, 0, step)), 0.5)["loss"].block_until_ready()
    values = np.array(trainee.extract(part), np.float32)

    def line(form: str, found: list[Any], expected: list[Any], on_device: list[float], on_cpu: float | None) -> Any:
        return {
            "format": form,
            "values": fragment.size,
            "bytes": sum(each.nbytes for each in found),
            "equal": all(one.tobytes() == other.tobytes() for one, other in zip(found, expected, strict=True)),
            "other_bytes_share": _other(found[0].view(np.uint8), expected[0].view(np.uint8)),
            "other_scales_share": _other(found[1], expected[1]) if found[1:] and found[1].size else None,
            "scales_off": _off(found[1], expected[1]) if found[1:] and found[1].size else None,
            "device_ms": statistics.median(on_device) * 1e3,
            "cpu_ms": None if on_cpu is None else on_cpu * 1e3,
        }

    seconds = _seconds_of(lambda: np.asarray(trainee.extract(part)))
    trainee.replace(part, values)
    yield line("float32", [np.array(trainee.extract(part), np.float32)], [values], seconds, None)
    for form in [name for name in FORMATS if name != "float32"]:
        gradient = outer_gradient(anchor, values, fragment)
        expected = coding.encode(gradient, fragment, form)  # type: ignore[arg-type]
        coded = _seconds_of(lambda form=form: coding.encode(outer_gradient(anchor, values, fragment), fragment, form))
        on_device = _seconds_of(lambda form=form: trainee.code(part, anchor.copy(), form).fetch())
        found = trainee.code(part, anchor.copy(), form).fetch()
        both = [found.codes, found.scales], [expected.codes, expected.scales]
        yield line(form, *both, on_device, statistics.median(coded))


def _other(found: Any, expected: Any) -> float:
    return float((found != expected).mean())


def _off(found: Any, expected: Any) -> float:
    """How far scales are from others, at most, as a share of these."""
    import numpy as np

    at = expected > 0
    return float((np.abs(found[at].astype(np.float64) / expected[at] - 1)).max(initial=0.0))


def _seconds_of(call: Callable[[], object]) -> list[float]:
    """Seconds of some calls; the first, which compiles, does not count."""
    times = []
    for _ in range(REPEATS + 1):
        times.append(time.perf_counter())
        call()
    times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)][1:]


def kill(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line of the kill, and one of the whole run."""
    from tests.bench.bench_deaths import kill_one
    from tests.bench.in_turns import options_of
    from tests.bench.observed import lines_of, training

    given = [item for key, value in settings(asked).items() for item in options_of(key, value)]
    given += ["--set", "program.push=int4"]
    if not asked.tiny:  # The run would wait for minutes at its end: gpt-124m is evaluated slowly on a CPU.
        given += ["--set", "run.evaluate_on=island"]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as there,
        training(Path(there, "run"), *given, learners=2, ready_seconds=READY_SECONDS_MAX) as run,
    ):
        time.sleep(CALM_SECONDS)
        found = kill_one(run, 1, RETURN_SECONDS_MAX)
        yield {
            "killed": "learner/1",
            "first_merge_seconds": found["next merged fragment, s"],
            "next_round_seconds": found["next round that was opened since, s"],
            "started_again_seconds": found["its next life is started, s"],
            "merged_again_seconds": found["its next life is merged, s"],
        }
        losses = [line["loss"] for line in lines_of(run.folder / "metrics.jsonl") if line["loss"] is not None]
        summary = run.stop()
    yield {
        **{name: summary[name] for name in ("merged_share", "contributors_mean", "outer_steps", "goodput")},
        "loss_first": statistics.median(losses[:LOSSES]),
        "loss_last": statistics.median(losses[-LOSSES:]),
    }


LOSSES: Final = 5
"""Reports at either end of a run whose median is taken."""
PARTS: Final[Mapping[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]]] = {
    "learner": learner,
    "torch": torch,
    "kill": kill,
    "memory": memory,
    "exchange": exchange,
}


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit("it was ended from outside")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)  # So that what it has stopped goes on, and what it has started is ended.
    with asked.out.open("a") as stream:
        for line in PARTS[asked.part](asked):
            stream.write(json.dumps(line) + "\n")
            stream.flush()


if __name__ == "__main__":
    sys.exit(main())
