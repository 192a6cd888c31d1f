"""One process of an island of two, as the test of islands of several processes starts it: python -m ... NUMBER [THERE].

The leader prints where it is, which the other takes as THERE; it steps and exchanges as `mesh_figures` does in one
process, and prints what it found as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import jax
import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.gang.leader import Leader, follow
from isthmus.ops.gang.meeting import join, lead
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import Life
from isthmus.programs.islands.gang import GangOfProcesses
from isthmus.runtime.host.contract import Island
from isthmus.runtime.ids import Member, Replica
from tests.ops.island.mesh_figures import STEPS, LanguageTask, arrays, fragments_of

DEVICES_EACH, EXCHANGES = 2, 6


def batch(position: int) -> Any:
    return LanguageTask().batch(At(0, 0, position))


def leading(learner: Learner, leader: Leader, count: int) -> dict[str, Any]:
    leader.begin()
    payloads = [np.asarray(leader.extract(p)) for p in range(count)]
    losses = []
    for n in range(STEPS):
        POSITION[0] = n
        losses.append(float(leader.step(batch(n), n / STEPS)["loss"]))
    shardings = [leaf.sharding for leaf in arrays(learner)]
    adopted = []
    for n in range(EXCHANGES):
        p, POSITION[0] = n % count, STEPS + n
        values = np.asarray(leader.extract(p), np.float32)
        leader.adopt(p, values)
        adopted.append(bool(np.array_equal(np.asarray(leader.extract(p)), values)))
        leader.step(batch(STEPS + n), 1.0)["loss"].block_until_ready()
    return {
        "losses": losses,
        "payloads": [hashlib.sha256(payload.tobytes()).hexdigest() for payload in payloads],
        "adopted": all(adopted),
        "kept": [before == leaf.sharding for before, leaf in zip(shardings, arrays(learner), strict=True)],
        "executables": learner._functions.step._cache_size(),
        "device_bytes": sum(leaf.addressable_shards[0].data.nbytes for leaf in arrays(learner)),
        "state_bytes": sum(leaf.nbytes for leaf in arrays(learner)),
    }


POSITION = [0]


def main(number: int, there: str = "") -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES_EACH)
    role = f"learner.{number}" if number else "learner"
    gang = GangOfProcesses(Member(Replica(role, 0), 1), 2, "127.0.0.1")
    if number:
        gang.hear([["learner/0", 1, json.loads(there), ""]], [])
        orders = join(gang)
    else:
        print(json.dumps(gang.endpoints), flush=True)
        given = lead(gang)
    task = LanguageTask()
    fragments = fragments_of(task, 3)
    learner = Learner(task, fragments, life=Life(0, 0, 1), island=Island(("cpu",), DEVICES_EACH, gang=gang))
    if number == 0:
        leader = Leader(learner, given, lambda: POSITION[0])
        leader.compile(batch(0))
        print(json.dumps(leading(learner, leader, len(fragments))))
        given.close()
        return
    learner.compile(batch(0))
    orders.ready()
    while True:
        try:
            order = orders.next(60.0)
        except EOFError:
            return
        follow(learner, order or ["nothing"], batch)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
