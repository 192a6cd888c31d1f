"""Data that are slower than the step that they are for are found, with what takes how long."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.clock import Instant, milliseconds, seconds
from isthmus.runtime.graph.plans import Plan, lower
from isthmus.runtime.graph.template import Graph, Latest, Queue
from isthmus.runtime.host.contract import Traffic
from isthmus.runtime.host.own_process import ITEMS_MIN, WINDOW, Supply
from isthmus.runtime.supervision.incidents import Starved


class Makes:
    outputs = ("batch",)

    def __call__(self) -> dict[str, Any]:
        return {"batch": 1}


class Steps:
    outputs = ()

    def __call__(self, batch: Any, news: Any = None) -> None:
        return None


class Tells:
    outputs = ("news",)

    def __call__(self) -> dict[str, Any]:
        return {"news": 1}


def plan() -> Plan:
    """A learner with a source of batches, and one of news that nobody waits for."""
    graph = Graph("small")
    learner = graph.role("learner", replicas=(1, 1))
    data, step, news = (learner.node(*each) for each in (("data", Makes), ("step", Steps), ("news", Tells)))
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(news["news"], step["news"], Latest())
    return lower(graph.freeze())["learner"]


class Learner:
    """A host whose steps are counted."""

    def __init__(self) -> None:
        self.supply, self.traffic, self.now = Supply(plan()), Traffic(), Instant(0)

    def steps(self, count: int, *, made_ms: float, step_ms: float) -> Starved | None:
        """Make steps, each of which takes so long once its batch is there; what is found at the end."""
        found = None
        for _ in range(count):
            took = max(made_ms, step_ms)
            self.now = Instant(self.now + milliseconds(took))
            nodes = self.traffic.nodes
            nodes["data"].spent += milliseconds(made_ms)
            nodes["news"].spent += milliseconds(took)
            nodes["step"].waited += milliseconds(took - step_ms)
            nodes["data"].emitted += 1
            found = self.supply.look(self.traffic, self.now)
        return found


def test_a_batch_that_takes_longer_than_a_step_is_the_bottleneck() -> None:
    found = Learner().steps(30, made_ms=300, step_ms=2)
    assert found == Starved("step", "data", milliseconds(300), milliseconds(2))


@pytest.mark.parametrize(("made_ms", "step_ms"), [(2, 300), (300, 300), (300, 200)])
def test_a_step_that_has_its_batch_in_time_is_not_starved(made_ms: float, step_ms: float) -> None:
    """Nor is one that waits for less than half of its time, to which most of it is due."""
    assert Learner().steps(60, made_ms=made_ms, step_ms=step_ms) is None


def test_a_source_that_waits_for_room_is_not_to_blame() -> None:
    """The step waits for somebody else, and the source for the step."""
    learner = Learner()
    learner.steps(1, made_ms=2, step_ms=1)
    for _ in range(30):
        learner.now = Instant(learner.now + milliseconds(300))
        learner.traffic.nodes["step"].waited += milliseconds(298)
        learner.traffic.nodes["data"].emitted += 1
        assert learner.supply.look(learner.traffic, learner.now) is None


def test_the_time_before_the_first_step_counts_for_nothing() -> None:
    learner = Learner()
    learner.traffic.nodes["data"].spent = seconds(60)
    learner.supply.look(learner.traffic, learner.now)
    learner.now = Instant(learner.now + seconds(60))
    found = learner.steps(30, made_ms=300, step_ms=2)
    assert found == Starved("step", "data", milliseconds(300), milliseconds(2))


def test_few_items_are_waited_for() -> None:
    learner, slow = Learner(), WINDOW / 1e6
    assert learner.steps(ITEMS_MIN, made_ms=slow, step_ms=1) is None
    assert learner.steps(1, made_ms=slow, step_ms=1) == Starved("step", "data", WINDOW, milliseconds(1))


def test_data_that_keep_up_again_are_not_told_any_more() -> None:
    learner = Learner()
    assert learner.steps(30, made_ms=300, step_ms=2) is not None
    assert learner.steps(60, made_ms=2, step_ms=300) is None
