"""What a host did, told from the records of its tape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isthmus.programs.engine.results.tapes import firings_of
from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import FiringEnded, HostRecord, NodeOpened, RunBody
from isthmus.runtime.host.contract import Span

DATA, STEP = 3, 5
PLAN: Any = SimpleNamespace(
    nodes=[SimpleNamespace(name="data", index=DATA), SimpleNamespace(name="inner-step", index=STEP)]
)


def run(node: int) -> RunBody:
    return RunBody(node, 0, ())


def told(*records: HostRecord) -> list[Span]:
    return list(firings_of(PLAN, "learner/1", records))


def test_a_firing_lasts_from_the_command_to_its_end_and_nodes_fire_beside_each_other() -> None:
    assert told(
        HostRecord(Instant(1), NodeOpened(STEP), [run(STEP)]),
        HostRecord(Instant(2), NodeOpened(DATA), [run(DATA)]),
        HostRecord(Instant(5), FiringEnded(STEP, ()), [run(STEP)]),
        HostRecord(Instant(6), FiringEnded(DATA, ()), []),
        HostRecord(Instant(9), FiringEnded(STEP, ()), []),
    ) == [
        Span("learner/1", "inner-step", Instant(1), Instant(5)),
        Span("learner/1", "data", Instant(2), Instant(6)),
        Span("learner/1", "inner-step", Instant(5), Instant(9)),
    ]


def test_what_was_begun_before_the_tape_or_never_ended_is_left_out() -> None:
    assert told(HostRecord(Instant(5), FiringEnded(STEP, ()), [run(STEP)])) == []
