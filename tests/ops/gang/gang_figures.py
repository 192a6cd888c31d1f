"""One process of an island of two, as the test of islands of several processes starts it: python -m ... NUMBER [THERE].

The leader prints where it is, which the other takes as THERE; it steps and exchanges as `mesh_figures` does in one
process, and prints what it found as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.data.positions import Step
from isthmus.ops.exchange.parameter_trees import Rules
from isthmus.ops.gang.meeting import join, lead
from isthmus.ops.gang.mesh_sharding import Shard
from isthmus.ops.gang.orders import Leader, follow
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.recipe import Recipe
from isthmus.programs.engine.islands.gang import GangOfProcesses
from isthmus.runtime.host.contract import IslandDevices
from isthmus.runtime.ids import Member, Replica
from tests.ops.island.mesh_figures import STEPS, LanguageTask, arrays, fragments_of, part_bytes

DEVICES_EACH, EXCHANGES = 2, 6


def batch(position: int) -> Any:
    return LanguageTask().batch(At(0, 0, position))


class Batches:
    """Those of the task, at any position."""

    batch = staticmethod(batch)


def leading(learner: Learner, leader: Leader, count: int) -> dict[str, Any]:
    leader.begin()
    payloads = [np.asarray(leader.extract(p)) for p in range(count)]
    losses = []
    for n in range(STEPS):
        POSITION[0] = n
        losses.append(float(leader.step(batch(n), n / STEPS)["loss"]))
    shardings = [leaf.sharding for leaf in arrays(learner)]
    again = going_on(leader)
    adopted, donated = [], 0
    for n in range(EXCHANGES):
        p, POSITION[0] = n % count, STEPS + n
        values = np.asarray(leader.extract(p), np.float32)
        leader.adopt(p, values)
        adopted.append(bool(np.array_equal(np.asarray(leader.extract(p)), values)))
        before = arrays(learner)
        leader.step(batch(STEPS + n), 1.0)["loss"].block_until_ready()
        donated += sum(leaf.is_deleted() for leaf in before)
    return {
        "losses": losses,
        "payloads": [hashlib.sha256(payload.tobytes()).hexdigest() for payload in payloads],
        "adopted": all(adopted),
        "again": again,
        "kept": [before == leaf.sharding for before, leaf in zip(shardings, arrays(learner), strict=True)],
        "gpus": jax.config.values["jax_cuda_visible_devices"],
        "executables": learner._functions.step._cache_size(),
        "donated": donated / (EXCHANGES * len(shardings)),
        "replicated_bytes": sum(leaf.nbytes for leaf in arrays(learner) if leaf.sharding.is_fully_replicated),
        "device_bytes": sum(leaf.addressable_shards[0].data.nbytes for leaf in arrays(learner)),
        "state_bytes": sum(leaf.nbytes for leaf in arrays(learner)),
    }


class SquareTask(LanguageTask):
    """The same on a mesh of two axes, with leaves cut over the one, the other, and both."""

    def recipe(self) -> Recipe:
        cut: Rules[Shard] = (("embedding", ("data", "model")), ("head", (None, "model")), ("hidden", ("model",)))
        return replace(super().recipe(), mesh=(("data", -1), ("model", 2)), shard=cut)


def crossing(learner: Learner, leader: Leader, count: int) -> dict[str, Any]:
    """What goes out, in sum and on a device, and comes in."""
    leader.begin()
    extracted = [leader.extract(p) for p in range(count)]
    payloads = [np.asarray(each, np.float32) for each in extracted]
    for p, values in enumerate(payloads):
        leader.adopt(p, 2 * values)
    doubled = [np.asarray(leader.extract(p), np.float32) for p in range(count)]
    return {
        "payloads": [hashlib.sha256(payload.tobytes()).hexdigest() for payload in payloads],
        "adopted": all(np.array_equal(2 * one, other) for one, other in zip(payloads, doubled, strict=True)),
        "widest": max(part_bytes(each) for each in extracted),
        "losses": [float(leader.step(batch(n), n / STEPS)["loss"]) for n in range(3)],
    }


def going_on(leader: Leader) -> dict[str, Any]:
    """What comes of going on from what a life had: its losses beside those of that life, and what is lent and taken."""
    had = leader.own(whole=True)
    lent, local = leader.lend(), [*leader.local()]
    once = [float(leader.step(batch(n), 0.5)["loss"]) for n in range(3)]
    is_taken = leader.take_own(had)
    twice = [float(leader.step(batch(n), 0.5)["loss"]) for n in range(3)]
    other = [2 * leaf for leaf in lent]
    is_borrowed = leader.borrow(other)
    refused = [leader.take_local(local[1:]), leader.take_own(had[1:]), leader.borrow([])]
    return {
        "once": once,
        "twice": twice,
        "taken": is_taken,
        "borrowed": is_borrowed and all(np.array_equal(*each) for each in zip(leader.lend(), other, strict=True)),
        "whole": leader.take_local(local),
        "refused": refused,
        "sizes": [leaf.nbytes for leaf in local],
    }


POSITION = [0]


def main(number: int, there: str = "") -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES_EACH)
    role = f"learner.{number}" if number else "learner"
    gang = GangOfProcesses(Member(Replica(role, 0), 1), 2, "127.0.0.1")
    if number:
        gang.on_roster([["learner/0", 1, json.loads(there), ""]], [])
        orders = join(gang)
    else:
        print(json.dumps(gang.endpoints), flush=True)
        given = lead(gang)
    task = LanguageTask()
    fragments = fragments_of(task, 3)
    learner = Learner(
        task, fragments, life=LearnerLife(0, 0, 1), island=IslandDevices(("cpu",), DEVICES_EACH, processes=gang)
    )
    square = Learner(
        SquareTask(), fragments, life=LearnerLife(0, 0, 1), island=IslandDevices(("cpu",), DEVICES_EACH, processes=gang)
    )
    if number == 0:
        leader = Leader(learner, given, lambda: Step(POSITION[0]))
        leader.compile(batch(0))
        found = leading(learner, leader, len(fragments))
        other = Leader(square, given, lambda: Step(POSITION[0]))
        given.give("other")
        other.compile(batch(0))
        print(json.dumps({**found, "square": crossing(square, other, len(fragments))}))
        given.close()
        return
    learner.compile(batch(0))
    orders.ready()
    batches = Batches()
    while True:
        try:
            order = orders.next(60.0) or ["nothing"]
        except EOFError:
            return
        if order == ["other"]:
            learner = square
            learner.compile(batch(0))
            orders.ready()
        else:
            follow(learner, order, batches, orders)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
