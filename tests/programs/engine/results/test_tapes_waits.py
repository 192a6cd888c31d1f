"""Waits of inner steps, told from the records of a tape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isthmus.programs.engine.results.tapes import waits_on_others
from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.cores.scheduler_events import (
    CreditGranted,
    Event,
    FiringEnded,
    HostRecord,
    ItemArrived,
    NodeOpened,
    ReplicaLeft,
    RunBody,
)
from isthmus.runtime.ids import Handle, Member, Replica

DATA, STEP, RING = 0, 1, 2
OTHER = Member(Replica("learner", 1), 1)
PLAN: Any = SimpleNamespace(
    nodes=[
        SimpleNamespace(name="data", index=DATA, inputs=[]),
        SimpleNamespace(
            name="inner-step", index=STEP, inputs=[SimpleNamespace(name="x"), SimpleNamespace(name="batch")]
        ),
        SimpleNamespace(name="ring", index=RING, inputs=[]),
    ]
)
BATCH = ((1, ((Replica("learner", 0), None, Handle(1)),)),)


def at(ms: float, event: Event, *runs: RunBody) -> HostRecord:
    return HostRecord(Instant(milliseconds(ms)), event, list(runs))


def run(node: int, inputs: Any = ()) -> RunBody:
    return RunBody(node, 0, inputs)


def ended(node: int) -> FiringEnded:
    return FiringEnded(node, ())


def arrived() -> ItemArrived:
    return ItemArrived(7, OTHER, Handle(2))


def waits(*records: HostRecord) -> list[tuple[float, float]]:
    first = at(0, NodeOpened(STEP), run(STEP, BATCH))
    return [(wait.begun / 1e6, wait.ended / 1e6) for wait in waits_on_others(PLAN, [first, *records])]


def test_a_step_that_begins_with_what_another_host_sent_has_waited_for_it() -> None:
    assert waits(at(5, ended(STEP)), at(7, arrived(), run(STEP, BATCH))) == [(5, 7)]
    credit = at(7, CreditGranted(7, OTHER, 1), run(STEP, BATCH))
    assert waits(at(5, ended(STEP)), credit) == [(5, 7)]


def test_a_hop_is_no_wait() -> None:
    assert waits(at(5, ended(STEP)), at(5.9, arrived(), run(STEP, BATCH))) == []
    assert waits(at(5, ended(STEP), run(STEP, BATCH))) == []


def test_own_work_is_no_wait_for_another_host() -> None:
    slow_data = at(1, arrived(), run(DATA)), at(5, ended(STEP)), at(9, ended(DATA), run(STEP, BATCH))
    assert waits(*slow_data) == []
    late_data = at(5, ended(STEP), run(DATA)), at(9, ended(DATA), run(STEP, BATCH))
    assert waits(*late_data) == []
    assert waits(at(5, ended(STEP)), at(9, ReplicaLeft(OTHER), run(STEP, BATCH))) == []


def test_what_a_node_beside_it_waited_for_counts() -> None:
    ring = at(5, ended(STEP)), at(8, arrived(), run(RING)), at(9, ended(RING), run(STEP, BATCH))
    assert waits(*ring) == [(5, 9)]
    busy = at(1, arrived(), run(RING)), at(5, ended(STEP)), at(9, ended(RING), run(STEP, BATCH))
    assert waits(*busy) == []
    chain = at(5, ended(STEP)), at(8, arrived(), run(RING)), at(9, ended(RING), run(DATA))
    assert waits(*chain, at(10, ended(DATA), run(STEP, BATCH))) == [(5, 10)]


def test_only_what_lies_between_two_steps_counts() -> None:
    idle = at(5, ended(STEP)), at(9, arrived(), run(STEP)), at(10, ended(STEP)), at(20, arrived(), run(STEP, BATCH))
    assert waits(*idle) == []
