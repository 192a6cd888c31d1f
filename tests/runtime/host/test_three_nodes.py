"""The vertical slice: three nodes through lowering, core, host and the in-process channel, in virtual time."""

from __future__ import annotations

from functools import partial

from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Graph, Latest, Queue
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.world import World


class Count:
    outputs = ("number",)

    def __init__(self, most: int) -> None:
        self.most = most
        self.number = 0
        self.is_finished = False

    def __call__(self) -> dict[str, int]:
        self.number += 1
        self.is_finished = self.number == self.most
        return {"number": self.number}


def double(number: int) -> int:
    return 2 * number


class Collect:
    outputs = ()

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[int] = []
        self.is_finished = False

    def __call__(self, number: int, hint: int | None = None) -> None:
        self.seen.append(number)
        self.is_finished = len(self.seen) == self.most


def build() -> Graph:
    graph = Graph("slice")
    here = graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 1))
    count = here.node("count", partial(Count, 10))
    twice = here.node("double", double)
    collect = there.node("collect", partial(Collect, 10))
    graph.edge(count["number"], twice["number"], Queue(capacity=2))
    graph.edge(twice["result"], collect["number"], Queue(capacity=3), to=there.all)
    graph.edge(count["number"], collect["hint"], Latest(), to=there.all)
    return graph


def world(seed: int = 0) -> World:
    return World(
        lower(build().freeze()),
        {"here": 1, "there": 1},
        seed=seed,
        resolve=lambda reference: reference,
        delay=lambda edge, size: milliseconds(5),
        jitter=0.2,
    )


def test_items_flow_in_order_through_three_nodes() -> None:
    run = world()
    run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
    collect = run.hosts[Replica("there", 0)].bodies[2]
    assert collect.seen == [2 * n for n in range(1, 11)]
    assert run.clock.now() > Duration(5_000_000)


def test_the_same_seed_gives_the_same_tape() -> None:
    tapes = []
    for seed in (1, 1, 2):
        run = world(seed)
        run.run(lambda run=run: ("there/0", "collect") in run.ended, seconds_max=1.0)
        tapes.append(run.tape())
    assert tapes[0] == tapes[1]
    assert tapes[0] != tapes[2]
    assert all(tapes[0].values())
