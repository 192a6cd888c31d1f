"""Hosts that share memory do and record what they would by TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Graph, Queue
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.virtual_time import InlineExecutor
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.tape.writing import Tape, frames, joined
from isthmus.runtime.wire.segment_links import SegmentDesk
from tests.runtime.wire.cables import PATIENT, World

LEFT, RIGHT = Member(Replica("left", 0), 1), Member(Replica("right", 0), 1)
RECORDS = 25


class StoppedClock:
    """Time stands still; what is due later is due now."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> Instant:
        return Instant(7)

    def queued(self) -> Duration:
        return Duration(0)

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_soon(callback).cancel

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def post(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)


class Numbers:
    """Arrays of half a MiB, each with another number."""

    outputs = ("array",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> dict[str, Any]:
        self.count += 1
        return {"array": {"number": self.count, "x": np.full(1 << 17, self.count, np.float32)}}


def sums(array: Any) -> float:
    return float(array["x"].sum())


def tapes_of(*, is_shared: bool) -> tuple[list[list[bytes]], int]:
    """The first records of both hosts of a chain from one to the other, and how many items were lent."""
    graph = Graph("chain")
    left, right = graph.role("left", replicas=(1, 1)), graph.role("right", replicas=(1, 1))
    numbers, total = left.node("numbers", Numbers), right.node("total", sums)
    graph.edge(numbers["array"], total["array"], Queue(capacity=1), to=right.all)
    plans = lower(graph.freeze())
    world = World()
    clock = StoppedClock(world.loop)
    channels = {
        member: world.channel(member, PATIENT, desk=SegmentDesk() if is_shared else None) for member in (LEFT, RIGHT)
    }
    channels[LEFT].connect(RIGHT, channels[RIGHT].bind("tcp://127.0.0.1:0"))
    channels[RIGHT].expect(LEFT)
    tapes = {member: Tape() for member in channels}
    hosts = [
        Host(
            plans[member.replica.role],
            member,
            clock=clock,
            channel=channel,
            executor=InlineExecutor(clock, lambda node: Duration(0)),
            seed=0,
            resolve=lambda wanted: wanted,
            tape=tapes[member],
        )
        for member, channel in channels.items()
    ]
    records: dict[Member, list[bytes]] = {member: [] for member in channels}

    def are_long() -> bool:
        for member, tape in tapes.items():
            records[member] += frames(joined(tape.drain())).bodies
        return all(len(each) >= RECORDS for each in records.values())

    try:
        for host in hosts:
            host.start([LEFT, RIGHT])
        world.until(are_long)
        lent = channels[LEFT].statistics().get("items_lent", 0)
    finally:
        for host in hosts:
            host.close()
        world.close()
    return [each[:RECORDS] for each in records.values()], lent


def test_a_tape_is_the_same_with_shared_memory_and_without() -> None:
    plain, none = tapes_of(is_shared=False)
    shared, lent = tapes_of(is_shared=True)
    assert none == 0
    assert lent >= RECORDS // 2 - 1
    assert shared == plain
