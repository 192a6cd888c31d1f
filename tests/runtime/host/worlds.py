"""Small worlds: bodies that count and collect, and graphs of them that are run in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from isthmus.runtime.clock import Instant
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Graph, Latest, Queue, Quorum
from isthmus.runtime.host.contract import Context
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.world import World

Do = Callable[..., Any]


class Count:
    """1, 2, 3 up to `most`, as items made by `make`."""

    outputs = ("item",)

    def __init__(self, most: int, make: Do = lambda number: number) -> None:
        self.number = 0
        self.most = most
        self.make = make

    @property
    def is_finished(self) -> bool:
        return self.number == self.most

    def __call__(self) -> dict[str, Any]:
        self.number += 1
        return {"item": self.make(self.number)}


class Collect:
    """Remembers everything with the time; finished after `most`."""

    outputs = ()

    def __init__(self, most: int) -> None:
        self.seen: list[Any] = []
        self.times: list[Instant] = []
        self.most = most

    def open(self, context: Context) -> None:
        self.context = context

    @property
    def is_finished(self) -> bool:
        return len(self.seen) == self.most

    def __call__(self, item: Any) -> None:
        self.seen.append(item)
        self.times.append(self.context.now())


class Gather(Collect):
    """Remembers what it has collected."""

    collects = ("item",)


class Remember(Collect):
    """Remembers the keywords it is called with."""

    collects = ("item", "other")

    def __call__(self, item: Any = "none", other: Any = "none", decision: Any = "none") -> None:
        self.seen.append({"item": item, "other": other, "decision": decision})


def start(graph: Graph, *, until: str = "", seconds_max: float = 1.0, **more: Any) -> World:
    """Run the smallest number of replicas of every role until a node of this name has finished."""
    counts = more.pop("counts", {role.name: role.replicas_min for role in graph.roles})
    resolve = more.pop("resolve", lambda reference: reference)
    world = World(lower(graph.freeze()), counts, seed=7, resolve=resolve, **more)
    world.run(lambda: any(node == until for _, node in world.ended), seconds_max=seconds_max)
    return world


def body_of(world: World, name: str, replica: str = "here/0") -> Any:
    host = world.hosts[Replica.parse(replica)]
    return host.bodies[host.plan.node_named(name).index]


def pipe(
    source: Any, most: int = 5, *, arguments: tuple[Any, ...] = (), policy: Any = None, two: bool = False
) -> Graph:
    """source -> collect, in one host or in two."""
    graph = Graph("pipe")
    here = graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 1)) if two else here
    node = here.node("source", partial(source, *arguments))
    has_key = isinstance(policy, Latest) and policy.key is not None
    collect = there.node("collect", partial(Gather if has_key else Collect, most))
    graph.edge(node[node.outputs[0]], collect["item"], policy or Queue(2), to=there.all if two else None)
    return graph


class Vote:
    outputs = ("vote",)

    def open(self, context: Context) -> None:
        self.slot = context.member.replica.slot

    def __call__(self, pull: Any) -> Any:
        return {"vote": {"round": pull["round"], "slot": self.slot}}


class Merge(Collect):
    collects = ("vote",)

    def __call__(self, vote: Any, opened: Any, decision: Any) -> None:
        self.seen.append((vote, opened, decision))


def rounds(merge: Any = Merge, most: int = 2) -> Graph:
    """Rounds of all live voters."""
    graph = Graph("rounds")
    here, there = graph.role("here", replicas=(1, 1)), graph.role("there", replicas=(1, 3))
    opener = here.node("opener", partial(Count, most, lambda number: {"round": number}))
    merging = here.node("merge", partial(merge, most), fires=Quorum("vote", "round", "opened"))
    voter = there.node("voter", Vote)
    graph.edge(opener["item"], merging["opened"], Queue(1))
    graph.edge(opener["item"], voter["pull"], Queue(1), to=there.all)
    graph.edge(voter["vote"], merging["vote"], Latest(), to=here.all)
    return graph
