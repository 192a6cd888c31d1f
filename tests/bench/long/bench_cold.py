"""What operations of the runtime take right after an inner step, whose data has emptied the caches, and warm.

    python -m tests.bench.long.bench_cold [--rounds 60] [--json]

Between two steps nearly everything is a first call. On one core a step of the shipped task is made, then one operation
is timed, and so on in turn; warm is the same operation fifty times in a row. Medians in microseconds. The ratio to a
loop of twenty additions, which nobody can write shorter, says how much of it is the interpreter itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from isthmus.runtime.system.processes import ONE_THREAD

WARM_ROUNDS = 50
SKIPPED = 5
CORE = 0


def operations() -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    import msgpack  # type: ignore[import-untyped]
    import msgspec
    import numpy as np
    import xxhash

    from isthmus.ops.exchange.fragments import Fragment, Unit
    from isthmus.ops.learner.fragment_send import norms, outer_gradient
    from isthmus.runtime.channels.contract import Parcel
    from isthmus.runtime.clock import Instant
    from isthmus.runtime.items.encoding import encode
    from isthmus.runtime.wire import protocol_messages
    from isthmus.runtime.wire.protocol_transfers import Load, frames_of, shipment

    shape = (64, 256)
    fragment = Fragment(0, (Unit("a", 0, shape[0], shape),))
    anchor, values = np.ones(fragment.size, np.float32), np.zeros(fragment.size, np.float32)
    progress = {"slot": 0, "incarnation": 1, "phase": "stepping", "step": 1200, "tokens": 614_400, "epochs": [1] * 8}
    progress |= {"step_time": 7_400_000, "delay_steps": 2, "totals": [[0, 1, 614_400]]}
    encoded = encode(progress)
    parcel = Parcel(3, 0, progress, {"slot": 0, "step": 1200}, encoded.digest, encoded.size_bytes, encoded)
    made = shipment(parcel, 0, True)
    frame = memoryview(frames_of(Load(0, 0, [made], []), 1, Instant(1))[0][0])

    def add_twenty() -> int:
        total = 0
        for number in range(20):
            total += number
        return total

    return {
        "nothing": lambda: None,
        "twenty additions": add_twenty,
        "msgpack packs a small dict": lambda: msgpack.packb({"a": 1, "b": [1, 2, 3]}),
        "msgspec packs a small dict": lambda: msgspec.msgpack.encode({"a": 1, "b": [1, 2, 3]}),
        "xxh3 of 64 KiB": lambda: xxhash.xxh3_64_intdigest(anchor.data),
        "NumPy subtracts 64 KiB": lambda: outer_gradient(anchor, values, fragment),
        "the norm of 64 KiB": lambda: norms(anchor, fragment),
        "a progress report is encoded": lambda: encode(progress),
        "a message with it is read": lambda: protocol_messages.batch_of(protocol_messages.unseal(frame, len(frame))[2]),
    }


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """Name -> microseconds after a step, and warm."""
    os.environ.update(ONE_THREAD, NPROC="1")
    os.sched_setaffinity(0, {CORE})
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.engine.request.environment import prepare_environment
    from isthmus.programs.language_model import task

    prepare_environment(1)
    nano = task(batch=8)
    batch = nano.batch(At(0, 0, 0))
    learner = Learner(nano, (), life=LearnerLife(0, 0, 1))
    learner.compile(batch)
    learner.begin()
    timed = operations()
    cold: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(SKIPPED + rounds):
        for name, operation in timed.items():
            learner.step(batch, 0.5)
            cold[name].append(_timed(operation))
    warm = {name: [_timed(operation) for _ in range(WARM_ROUNDS)] for name, operation in timed.items()}
    return {name: (statistics.median(cold[name][SKIPPED:]), statistics.median(warm[name])) for name in timed}


def _timed(operation: Callable[[], Any]) -> float:
    begun = time.perf_counter_ns()
    operation()
    return (time.perf_counter_ns() - begun) / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.rounds)
    if asked.json:
        print(json.dumps(found))
        return
    least = found["twenty additions"][0]
    print(f"{'operation':32} after a step      warm   / twenty additions after a step")
    for name, (cold, warm) in found.items():
        print(f"{name:32} {cold:9.1f} us {warm:9.1f} us {cold / least:8.1f}")


if __name__ == "__main__":
    main()
