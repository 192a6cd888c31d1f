"""When a host need not listen."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import uvloop

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.clock import Duration
from isthmus.runtime.graph.plans import Plan, lower
from isthmus.runtime.graph.template import AnyOf, Graph, Latest, Queue
from isthmus.runtime.host.driver import BRIEF_MAX, Host, InputPolicy
from isthmus.runtime.host.threads import ThreadExecutor
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.system.shared_loop import SharedLoop
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.zmq_sockets import ZmqSockets
from tests.patience import PATIENCE
from tests.runtime.graph.example_bodies import collecting
from tests.runtime.wire.cables import RUN, SYNCER

LEARNER = Member(Replica("learner", 0), 1)


class Step:
    """Steps for a millisecond; notes what came."""

    outputs = ("progress",)

    def __init__(self) -> None:
        self.news: list[int] = []
        self.steps = 0

    def __call__(self, batch: Any, update: Any = None) -> dict[str, Any]:
        time.sleep(0.001)
        self.steps += 1
        self.news += [] if update is None else [update]
        return {"progress": {"step": self.steps, "news": list(self.news)}}


def batch() -> int:
    return 1


@collecting("progress")
def count(progress: Any) -> Any:
    return len(progress)


def plans(*, is_free_running: bool = True) -> dict[str, Plan]:
    graph = Graph("small")
    learner, syncer = graph.role("learner", replicas=(1, 2)), graph.role("syncer", replicas=(1, 1))
    data, step = learner.node("data", batch), learner.node("step", Step, never_waits=is_free_running)
    total = syncer.node("total", count, fires=AnyOf("progress"))
    graph.edge(data["result"], step["batch"], Queue(capacity=2))
    graph.edge(step["progress"], total["progress"], Latest(), to=syncer.all)
    graph.edge(total["result"], step["update"], Latest(), to=learner.all)
    return lower(graph.freeze())


def node(plan: Plan, name: str) -> int:
    return plan.node_named(name).index


def test_between_brief_firings_of_a_node_that_runs_freely_nobody_need_listen() -> None:
    plan = plans()["learner"]
    policy, step = InputPolicy(plan), node(plan, "step")
    assert policy.is_needed
    policy.began(step)
    assert policy.is_needed  # The first may be long.
    policy.ended(step, Duration(BRIEF_MAX))
    assert policy.is_needed  # It may wait.
    policy.began(step)
    assert not policy.is_needed
    policy.ended(step, Duration(BRIEF_MAX + 1))
    policy.began(step)
    assert policy.is_needed  # The last was long.


def test_nodes_that_hear_nothing_do_not_count() -> None:
    plan = plans()["learner"]
    policy, data = InputPolicy(plan), node(plan, "data")
    for _ in range(2):
        policy.began(data)
        assert policy.is_needed
        policy.ended(data, Duration(1))


@pytest.mark.parametrize(("role", "name"), [("learner", "step"), ("syncer", "total")])
def test_a_host_whose_nodes_wait_for_others_always_listens(role: str, name: str) -> None:
    plan = plans(is_free_running=False)[role]
    policy, index = InputPolicy(plan), node(plan, name)
    for _ in range(3):
        policy.began(index)
        assert policy.is_needed
        policy.ended(index, Duration(1))


class Noting(Host):
    """Notes the thread in which items arrive."""

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        self.arrivals = [*getattr(self, "arrivals", []), threading.current_thread().name]
        super().item_arrived(source, parcel)


class Running:
    """A host on sockets and threads of its own."""

    def __init__(self, member: Member, others: list[Member]) -> None:
        self.loop = SharedLoop(uvloop.new_event_loop())
        self.clock = LoopClock(self.loop)
        self.channel = WireChannel(member, clock=self.clock, sockets=ZmqSockets(self.loop), **RUN)
        self.executor = ThreadExecutor(self.loop, str(member.replica))
        self.host = Noting(
            plans()[member.replica.role],
            member,
            clock=self.clock,
            channel=self.channel,
            executor=self.executor,
            seed=0,
            resolve=lambda wanted: wanted,
        )
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()
        self.members = [member, *others]

    def start(self) -> None:
        self.loop.call_soon_threadsafe(self.host.start, self.members)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.host.close)
        assert self.executor.join(PATIENCE)
        self.loop.stop()
        self.thread.join(PATIENCE)
        self.loop.close()


def test_what_comes_to_a_free_running_node_over_sockets_is_taken_by_its_own_thread() -> None:
    learner, syncer = Running(LEARNER, [SYNCER]), Running(SYNCER, [LEARNER])
    made: list[Any] = []
    syncer.loop.call_soon_threadsafe(lambda: made.append(syncer.channel.bind("tcp://127.0.0.1:0")))
    until = time.monotonic() + PATIENCE
    while not made:
        time.sleep(0.001)
    syncer.loop.call_soon_threadsafe(syncer.channel.expect, LEARNER)
    learner.loop.call_soon_threadsafe(learner.channel.connect, SYNCER, made[0])
    syncer.start()
    learner.start()
    step = node(plans()["learner"], "step")
    # Where it has to wait for a batch, its loop hears: on a busy machine that is often.
    while getattr(learner.host, "arrivals", []).count(f"learner/0:{step}") < 50:
        assert time.monotonic() < until
        time.sleep(0.01)
    body: Any = learner.host.bodies[step]
    learner.close()
    syncer.close()
    assert sum(body.news) > 0
    # Nobody hears for a syncer, whose nodes wait for others, but its loop.
    assert set(syncer.host.arrivals) == {"loop"}
