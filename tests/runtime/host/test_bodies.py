"""Bodies: what they give, what they do wrong, and what they are given."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.cores.scheduler_events import HostRecord
from isthmus.runtime.errors import RunError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Latest, Node, Queue, Reference
from isthmus.runtime.host.bodies import Bodies
from isthmus.runtime.host.contract import STORY_SIZE_MAX, Context, Traffic
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.ids import HostMachine, Member, Replica
from isthmus.runtime.sim.world import World
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.tape.reading import read
from tests.runtime.cores.scheduler_stories import life
from tests.runtime.host.worlds import Collect, Count, Gather, Merge, Remember, body_of, pipe, rounds, start

# -- what bodies give --------------------------------------------------------------------------------------------------


def test_a_function_gives_its_result_and_none_gives_nothing() -> None:
    graph = pipe(Count, 3, arguments=(9,))
    middle = graph.roles[0].node("odd", lambda number: number if number % 2 else None)
    graph.edges[0] = replace(graph.edges[0], target=middle["number"])
    graph.edge(middle["result"], graph.nodes[1]["item"], Queue(1))
    assert body_of(start(graph, until="collect"), "collect").seen == [1, 3, 5]


class Pairs:
    outputs = ("item", "other")

    def __init__(self, result: Any) -> None:
        self.result = result

    def __call__(self) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        ({"item": 1, "other": None}, [1, 1]),
        ([("item", 1), ("item", 2)], [1, 2]),
        ([("item", None), ("other", 3), ("item", 2)], [None, 2]),
        ({"item": False}, [False, False]),
    ],
)
def test_an_instance_gives_a_dict_or_pairs(result: Any, seen: list[Any]) -> None:
    assert body_of(start(pipe(Pairs, 2, arguments=(result,)), until="collect"), "collect").seen == seen


class Burst:
    """Six items in one firing, four of them on its way, and no more."""

    outputs = ("item",)
    is_finished = True

    def __call__(self) -> Iterator[Any]:
        yield [("item", 1), ("item", 2), ("item", 3)]
        yield {"item": 4}
        return [("item", 5), ("item", 6)]


@pytest.mark.parametrize("two", [False, True])
def test_a_firing_may_emit_more_than_its_consumer_has_room_for(two: bool) -> None:
    graph = pipe(Burst, 6, policy=Queue(2), two=two)
    instant = {"source": milliseconds(1), "collect": milliseconds(10)}
    world = start(graph, until="collect", duration=lambda replica, node: instant[node])
    collect = body_of(world, "collect", "there/0" if two else "here/0")
    assert collect.seen == [1, 2, 3, 4, 5, 6]
    assert {after - before for before, after in pairwise(collect.times)} == {milliseconds(10)}
    assert {node for _, node in world.ended} == {"source", "collect"}


class Steps:
    """Emits on its way."""

    outputs = ("item",)
    is_finished = True

    def __init__(self, error: bool = False) -> None:
        self.error = error

    def __call__(self) -> Iterator[Any]:
        yield {"item": "first"}
        yield None
        yield [("item", "second")]
        if self.error:
            raise ValueError("on the way")
        return {"item": "last"}


def test_what_a_generator_yields_leaves_while_its_firing_goes_on() -> None:
    graph = pipe(Steps, 3, policy=Queue(3))
    instant = {"source": milliseconds(10), "collect": Duration(0)}
    world = start(graph, until="collect", duration=lambda replica, node: instant[node])
    collect = body_of(world, "collect")
    assert collect.seen == ["first", "second", "last"]
    opened = milliseconds(10)  # Opening takes as long as a firing.
    assert collect.times == [opened, opened, opened + milliseconds(10)]


class Witness:
    """Sees which of the arrays that it has given are still there when its firing goes on."""

    outputs = ("item",)
    is_finished = True
    left: ClassVar[list[bool]] = []

    def __call__(self) -> Iterator[Any]:
        for number in range(2):
            array = np.full(4, number)
            given = weakref.ref(array)
            items = [("item", array)]
            del array
            yield items
            del items
            self.left.append(given() is not None)


def test_a_host_does_not_keep_what_has_left_while_a_firing_goes_on() -> None:
    """That may be a whole step, beside whose memory nothing else is as large as a fragment."""
    plan = lower(pipe(Witness, 1, arguments=()))["here"]
    bodies = Bodies(
        plan,
        Member(Replica("here", 0), 1),
        clock=VirtualClock(),
        seed=0,
        resolve=lambda reference: reference,
        disk=DISK,
        traffic=Traffic(),
        members=frozenset,
        machine_of=lambda role, slot: HostMachine(),
        emitted=lambda node, emissions: None,
        away=lambda: Duration(0),
    )
    Witness.left.clear()
    node = plan.node_named("source")
    bodies.open(node)
    bodies.fire(node, {})
    assert Witness.left == [False, False]


def test_a_function_may_be_a_generator() -> None:
    def source() -> Iterator[int]:
        yield from (1, 2)
        return 3

    assert body_of(start(pipe(source, 3, policy=Queue(9)), until="collect"), "collect").seen == [1, 2, 3]


# -- what bodies do wrong ----------------------------------------------------------------------------------------------


class FailsToOpen:
    outputs = ("item",)

    def __init__(self, where: str) -> None:
        if where == "init":
            raise ValueError("in the beginning")
        self.where = where

    def open(self, context: Context) -> None:
        if self.where == "open":
            raise ValueError("on opening")

    def __call__(self) -> Any:
        if self.where == "call":
            raise ValueError("on being called")
        return {"item": 1}


WRONG = [
    (FailsToOpen, ("init",), "ValueError: in the beginning"),
    (FailsToOpen, ("open",), "ValueError: on opening"),
    (FailsToOpen, ("call",), "ValueError: on being called"),
    (Steps, (True,), "ValueError: on the way"),
    (Pairs, ({"itme": 1},), "node 'source' emitted on port 'itme'; its outputs are: item, other"),
    (Pairs, ([("item", 1), ("nothing", 1)],), "emitted on port 'nothing'"),
    (Pairs, ({3: 1},), "emitted on port 3"),
    (Pairs, (7,), "Pairs returned a int: expected a dict port -> item, a list of (port, item) pairs, or None"),
    (Pairs, ([1, 2],), "Pairs returned a list"),
    (Pairs, (("item", 1),), "Pairs returned a tuple"),
    (Pairs, ([("item", 1)] * 2000,), "'source' emitted 2000 items at once: expected at most 1024 that have to wait"),
    (Count, (3, lambda number: 1 // (number - 2)), "ZeroDivisionError"),
]


@pytest.mark.parametrize(("body", "arguments", "what"), WRONG)
def test_a_body_that_does_wrong_ends_the_run_and_is_told(body: Any, arguments: Any, what: str) -> None:
    with pytest.raises(RunError) as caught:
        start(pipe(body, arguments=arguments), until="collect")
    assert str(caught.value).startswith("here/0")
    assert what in str(caught.value)


def test_a_nested_item_is_the_fault_of_its_body() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(RunError, match=r"(?s)node 'source': .*nested deeper than 32"):
        start(pipe(Pairs, arguments=({"item": cycle},)), until="collect")


def test_fields_that_no_tape_can_hold_are_the_fault_of_the_body() -> None:
    graph = pipe(Count, arguments=(3, lambda number: {"key": np.int64(number)}), policy=Latest("key"))
    with pytest.raises(RunError, match=r"(?s)node 'source': .*field 'key', .* Convert NumPy's integers"):
        start(graph, until="collect")


def test_an_item_without_its_key_is_the_fault_of_the_body() -> None:
    with pytest.raises(RunError, match="expected an integer or a text in field 'key', found None"):
        start(pipe(Count, arguments=(3,), policy=Latest("key")), until="collect")


@pytest.mark.parametrize("text", ["\ud800 is no character", "x" * 10**6])
def test_the_story_of_a_failure_is_bounded_and_on_no_tape(text: str) -> None:
    def source() -> None:
        raise ValueError(text)

    world = World(lower(pipe(source).freeze()), {"here": 1}, seed=0, resolve=lambda reference: reference)
    with pytest.raises(RunError, match="ValueError"):
        world.run(lambda: False, seconds_max=1.0)
    assert len(world.error or "") < STORY_SIZE_MAX + 200
    tape = world.tape()["here/0"]
    assert len(read(tape, HostRecord).records) >= 3
    assert b"ValueError" in tape
    assert text[3:12].encode() not in tape


# -- what bodies are given ---------------------------------------------------------------------------------------------


def given(node: Callable[[Graph], Node], *edges: tuple[str, Any], most: int = 1, counts: Any = None) -> list[Any]:
    """What a node sees whose ports are fed by counters of one to three replicas of role there."""
    graph = Graph("given")
    graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 3))
    sink = node(graph)
    for port, policy in edges:
        source = there.node(f"count-{port}", partial(Count, most, lambda number: {"number": number, "key": number % 2}))
        graph.edge(source["item"], sink[port], policy, to=graph.role_of("here").all)
    return list(body_of(start(graph, until="sink", counts=counts or {"here": 1, "there": 1}), "sink").seen)


def sink(fires: Any = None, body: Any = Remember, most: int = 1) -> Callable[[Graph], Node]:
    return lambda graph: graph.roles[0].node("sink", partial(body, most), fires=fires)


NONE = {"item": "none", "other": "none", "decision": "none"}


def test_a_port_without_edges_or_without_news_gets_its_default() -> None:
    everything = given(sink(Every(milliseconds(5)), most=3), ("item", Latest()))
    assert everything[1:] == [NONE, NONE]
    assert everything[0] == NONE | {"item": {(Replica("there", 0), None): {"number": 1, "key": 1}}}


def test_any_of_gives_what_there_is() -> None:
    [seen] = given(sink(AnyOf("item", "other")), ("other", Queue(1)))
    assert seen == NONE | {"other": {(Replica("there", 0), None): {"number": 1, "key": 1}}}


def test_a_port_that_collects_gets_a_dict_of_one_as_of_many() -> None:
    counts = {"here": 1, "there": 3}
    [seen] = given(sink(AnyOf("item")), ("item", Queue(2)), counts={"here": 1, "there": 1})
    assert seen["item"] == {(Replica("there", 0), None): {"number": 1, "key": 1}}
    [seen] = given(sink(body=Gather), ("item", Queue(2)), counts=counts)
    assert seen == {(Replica("there", slot), None): {"number": 1, "key": 1} for slot in range(3)}
    [seen] = given(sink(Every(milliseconds(9))), ("item", Latest("key")), most=2, counts=counts)
    assert seen["item"] == {
        (Replica("there", slot), number % 2): {"number": number, "key": number % 2}
        for slot in range(3)
        for number in (1, 2)
    }


def test_a_quorum_gives_votes_by_replica_the_bare_opening_and_its_decision() -> None:
    world = start(rounds(), until="merge", counts={"here": 1, "there": 3})
    for number, (votes, opened, decision) in enumerate(body_of(world, "merge").seen, 1):
        assert votes == {(Replica("there", n), number): {"round": number, "slot": n} for n in range(3)}
        assert opened == {"round": number}
        assert decision["reason"] == "all 3 members voted"
        assert decision["left_out"] == []


class Idle(Remember):
    """Idle until something is sampled, twice."""

    def __call__(self, item: Any, other: Any = "none", decision: Any = "none") -> None:
        self.seen.append({"item": item, "other": other, "decision": decision})

    @property
    def is_idle(self) -> bool:
        return len(self.seen) < 2


def test_an_idle_firing_gives_none_for_what_a_body_need_not_default() -> None:
    first, second, third = given(sink(body=Idle, most=3), ("item", Queue(1)), ("other", Latest()))[:3]
    assert first == {"item": None, "other": "none", "decision": "none"}
    assert second["item"] is None
    assert second["other"] != "none"
    assert third["item"] is not None


class IdleMerge(Merge):
    is_idle = True
    is_finished: ClassVar[bool] = True


def test_an_idle_firing_of_a_quorum_gives_none_too() -> None:
    world = start(rounds(IdleMerge), until="merge")
    assert body_of(world, "merge").seen == [(None, None, None)]


class Writes:
    outputs = ("item",)

    def __init__(self, most: int) -> None:
        self.buffer = np.zeros(4)

    def __call__(self, item: Any) -> Any:
        item["nested"][0][0] = 1.0


@pytest.mark.parametrize("two", [False, True])
def test_a_body_that_writes_to_what_it_got_fails(two: bool) -> None:
    graph = pipe(Count, arguments=(9, lambda number: {"nested": [np.zeros(3)]}), two=two)
    writes = graph.roles[-1].node("writes", partial(Writes, 1))
    graph.edge(graph.nodes[0]["item"], writes["item"], Queue(1), to=graph.roles[1].all if two else None)
    with pytest.raises(RunError, match=r"(?s)node 'writes': .*read-only"):
        start(graph, until="collect")


def test_a_body_that_writes_to_an_initial_item_fails() -> None:
    graph = pipe(Writes, arguments=(1,))
    graph.edge(graph.nodes[0]["item"], graph.nodes[0]["item"], Queue(2, ({"nested": [np.zeros(3)]},)))
    with pytest.raises(RunError, match=r"(?s)node 'source': .*read-only"):
        start(graph, until="collect")


def test_a_body_that_writes_to_what_it_gave_fails() -> None:
    class Reuses(Writes):
        def __call__(self) -> Any:
            self.buffer[0] += 1
            return {"item": self.buffer}

    with pytest.raises(RunError, match=r"(?s)node 'source': .*read-only"):
        start(pipe(Reuses, arguments=(1,)), until="collect")


def test_a_body_knows_where_it_is_and_gets_what_its_references_name() -> None:
    class Curious(Collect):
        outputs = ("unused",)

        def __init__(self, most: int, task: Any, *, other: Any) -> None:
            super().__init__(most)
            self.found = (task, other)

    graph = Graph("curious")
    role = graph.role("here", replicas=(2, 2))
    source = role.node("source", partial(Count, 3))
    node = role.node("curious", partial(Curious, 1, Reference("a:b"), other=Reference("c:d")))
    graph.edge(source["item"], node["item"], Queue(1))
    world = start(graph, until="curious", resolve=lambda reference: f"<{reference}>")
    for slot in range(2):
        body = body_of(world, "curious", f"here/{slot}")
        assert body.found == ("<a:b>", "<c:d>")
        context = body.context
        assert (context.member, context.node, context.seed) == (life(f"here/{slot}"), "curious", 7)
        assert context.connected == {"item"}
