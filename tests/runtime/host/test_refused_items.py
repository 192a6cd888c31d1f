"""Items that do not follow the schema of the body at their end: refused, counted, and in nobody's way."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypedDict

import pytest

from isthmus.runtime.errors import RunError
from isthmus.runtime.graph.template import Graph, Latest, Queue, Quorum
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.messages import ItemRefusal
from tests.runtime.host.worlds import Collect, Count, body_of, start


class Even(TypedDict):
    """What is taken by one that is choosy."""

    slot: Annotated[int, ("sender", "slot")]
    even: Annotated[int, ("range", 0)]


class Counted(TypedDict):
    """At most one a firing."""

    count: Annotated[int, ("range", 0), "firings"]


class Ballot(TypedDict):
    """One vote."""

    round: Annotated[int, ("range", 0)]
    yes: bool


class Choosy(Collect):
    """Takes even numbers only, by the slot of their sender."""

    schemas = {"item": Even}  # noqa: RUF012


class Attested(Collect):
    """Takes no more than one a firing."""

    schemas = {"item": Counted}  # noqa: RUF012


class Votes:
    """Collects the votes of a round."""

    collects = ("vote",)
    schemas = {"vote": Ballot}  # noqa: RUF012

    def __call__(self, call: Any, vote: Any) -> None:
        """Nothing."""


def odd_ones_are_wrong(number: int) -> dict[str, Any]:
    return {"slot": 0, "even": number if number % 2 == 0 else f"odd {number}"}


def piped(source: Any, most: int, body: Any, policy: Any, *, two: bool = True) -> Graph:
    graph = Graph("pipe")
    here = graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 1)) if two else here
    graph.edge(
        here.node("source", partial(Count, *source))["item"],
        there.node("collect", partial(body, most))["item"],
        policy,
        to=there.all if two else None,
    )
    return graph


@pytest.mark.parametrize("policy", [Queue(1), Queue(3)])
def test_what_is_wrong_never_reaches_the_body_and_holds_up_nothing(policy: Any) -> None:
    world = start(piped((10, odd_ones_are_wrong), 5, Choosy, policy), until="collect")
    seen = body_of(world, "collect", "there/0").seen
    assert [item["even"] for item in seen] == [2, 4, 6, 8, 10]
    (refusal,) = world.hosts[Replica("there", 0)].refusals.values()
    here = Member(Replica("here", 0), 1)
    assert refusal == ItemRefusal(here, "source.item -> collect.item", "even", "an integer of at least 0", "'odd 1'", 5)


def test_another_slot_than_the_senders_is_wrong() -> None:
    graph = piped((3, lambda number: {"slot": 3 - number, "even": number}), 1, Choosy, Queue(3))
    world = start(graph, until="collect")
    assert [item["even"] for item in body_of(world, "collect", "there/0").seen] == [3]
    (refusal,) = world.hosts[Replica("there", 0)].refusals.values()
    assert (refusal.field, refusal.found, refusal.count, refusal.is_vote) == ("slot", "2", 2, False)


def test_within_a_host_nothing_is_checked() -> None:
    world = start(piped((4, odd_ones_are_wrong), 4, Choosy, Queue(1), two=False), until="collect")
    assert len(body_of(world, "collect").seen) == 4


def test_a_body_that_says_more_than_its_firings_bear_out_has_failed() -> None:
    world = start(piped((4, lambda number: {"count": number}), 4, Attested, Queue(1)), until="collect")
    assert len(body_of(world, "collect", "there/0").seen) == 4
    with pytest.raises(RunError, match=r"count = 6 on port 'item'.*at most 3"):
        start(
            piped((4, lambda number: {"count": 2 * number if number == 3 else 0}), 4, Attested, Queue(1)),
            until="collect",
        )


def test_a_vote_is_told_as_one() -> None:
    graph = Graph("votes")
    asks, votes = graph.role("asks", replicas=(1, 1)), graph.role("votes", replicas=(1, 1))
    call = asks.node("call", partial(Count, 1, lambda number: {"round": number, "members": [[0, 1]], "count_min": 1}))
    said = votes.node("said", partial(Count, 1, lambda number: {"round": number, "yes": "perhaps"}))
    judge = asks.node("judge", Votes, fires=Quorum(port="vote", key="round", opened_by="call", count_min=1))
    graph.edge(call["item"], judge["call"], Queue(1))
    graph.edge(said["item"], judge["vote"], Latest(), to=asks.all)
    world = start(graph, until="said")
    host = world.hosts[Replica("asks", 0)]
    world.run(lambda: bool(host.refusals), seconds_max=2.0)
    assert [(each.field, each.is_vote) for each in host.refusals.values()] == [("yes", True)]


class Wary(Collect):
    """Takes what comes, and says that it is wrong."""

    def __call__(self, item: Any) -> None:
        super().__call__(item)
        self.context.refuse("item", (0, 1), ("even", "truth", str(item["even"])))


def test_a_body_may_refuse_what_only_it_can_judge() -> None:
    world = start(piped((2, odd_ones_are_wrong), 2, Wary, Queue(1)), until="collect")
    host = world.hosts[Replica("there", 0)]
    (refusal,) = host.refusals.values()
    assert refusal == ItemRefusal(
        Member(Replica("here", 0), 1), "source.item -> collect.item", "even", "truth", "odd 1", 2
    )
