"""Rounds of votes in the scheduler: how openings and votes become firings, and where their credit goes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from isthmus.runtime.clock import Duration, Instant, milliseconds
from isthmus.runtime.cores.scheduler_events import (
    CancelTimer,
    CreditGranted,
    DropItem,
    EndNode,
    FailHost,
    GrantCredit,
    ItemsEmitted,
    NodeOpened,
    Output,
    ReplicaJoined,
    ReplicaLeft,
    SendItem,
    SetTimer,
    ShareItem,
    TimerFired,
)
from isthmus.runtime.errors import InvariantError, RemoteProtocolError
from isthmus.runtime.graph.template import Graph, Latest, Policy, Queue, Quorum
from isthmus.runtime.ids import Handle
from tests.runtime.cores.scheduler_stories import MS, Story, arrived, body, ended, life, run

H = Handle
OPENER, MERGE = 0, 1
OPENING_EDGE, VOTE_EDGE = 0, 1
TIMER = (MERGE + 1) << 32


def syncer(votes: Policy, *, count_min: int = 1, grace: Duration | None = None) -> Graph:
    """An opener and a merge here (nodes 0 and 1), voters in role there."""
    graph = Graph("syncer")
    here = graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 3))
    opener = here.node("opener", body(outputs="round"))
    fires = Quorum("answer", "round", "opened", count_min, grace)
    merge = here.node("merge", body("answer opened", "hint decision"), fires=fires)
    voter = there.node("voter", body(outputs="answer hint"))
    graph.edge(opener["round"], merge["opened"], Queue(2))
    graph.edge(voter["answer"], merge["answer"], votes, to=here.all)
    graph.edge(voter["hint"], merge["hint"], Latest(), to=here.all)
    return graph


def opening(handle: int, key: int = 1, **more: Any) -> Any:
    return ended(OPENER, (0, handle, {"round": key} | more))


def vote(slot: int, handle: int, key: int = 1) -> Any:
    return arrived(VOTE_EDGE, f"there/{slot}", handle, {"round": key})


def decided(why: str, times: tuple[float, float, float], left_out: tuple[int, ...] = ()) -> dict[str, Any]:
    opened, quorum, closed = (round(time * MS) for time in times)
    return {
        "reason": why,
        "opened_at": opened,
        "quorum_at": quorum,
        "closed_at": closed,
        "left_out": list(left_out),
    }


def inputs(opened: int, *votes: tuple[int, int], key: int = 1) -> tuple[Any, Any]:
    """The ports of a firing: votes are (slot, handle)."""
    return (1, [("here/0", opened)]), (0, [(f"there/{slot}", key, handle) for slot, handle in votes])


def test_a_round_fires_with_its_opening_and_the_votes_in_order_of_slots() -> None:
    story = Story(syncer(Latest()), "there/0", "there/1")
    assert story.at(1, opening(1)) == [run(OPENER, 2)]
    assert story.at(2, vote(1, 11)) == []
    decision = decided("all 2 members voted", (1, 2, 3))
    assert story.at(3, vote(0, 10)) == [run(MERGE, 1, *inputs(1, (0, 10), (1, 11)), decision=decision)]


def test_the_opener_gets_its_credit_back_when_the_round_fires() -> None:
    story = Story(syncer(Latest()), "there/0")
    assert story.at(1, opening(1)) == [run(OPENER, 2)]
    assert story.at(2, opening(2, 2)) == []
    decision = decided("the only member voted", (1, 3, 3))
    assert story.at(3, vote(0, 10)) == [run(MERGE, 1, *inputs(1, (0, 10)), decision=decision), run(OPENER, 3)]


def test_a_second_round_waits_for_the_end_of_the_first_firing() -> None:
    story = Story(syncer(Latest()), "there/0")
    story.at(1, opening(1), opening(2, 2), vote(0, 10))
    assert story.at(2, vote(0, 11, 2)) == []
    decision = decided("the only member voted", (1, 2, 2))
    again = run(MERGE, 2, *inputs(2, (0, 11), key=2), decision=decision)
    assert story.at(3, ended(MERGE)) == [again]


def test_grace_is_a_timer_of_the_node() -> None:
    story = Story(syncer(Latest(), grace=milliseconds(5)), "there/0", "there/1")
    story.at(1, opening(1))
    assert story.at(2, vote(1, 11)) == [SetTimer(TIMER + 1, Instant(7 * MS))]
    decision = decided("grace of 5.0 ms ended with 1 of 2; there/0 left out", (1, 2, 7), (0,))
    assert story.at(7, TimerFired(TIMER + 1)) == [run(MERGE, 1, *inputs(1, (1, 11)), decision=decision)]
    assert story.at(8, TimerFired(TIMER + 1)) == []
    assert story.at(9, vote(0, 10)) == [DropItem(H(10), "vote refused: late")]
    rounds = story.core._nodes[MERGE].rounds
    assert rounds is not None
    assert rounds.statistics()["timers stale"] == 0


def test_the_last_vote_cancels_the_timer() -> None:
    story = Story(syncer(Latest(), grace=milliseconds(5)), "there/0", "there/1")
    story.at(1, opening(1), vote(0, 10))
    commands = story.at(2, vote(1, 11))
    assert commands[0] == CancelTimer(TIMER + 1)
    assert len(commands) == 2
    assert story.at(7, TimerFired(TIMER + 1)) == []
    assert story.at(8, ended(MERGE, finished=True))[-1:] == [EndNode(MERGE)]
    assert not any(isinstance(command, CancelTimer) for command in story.at(9, ReplicaLeft(life("there/0"))))


def test_a_timer_that_was_cancelled_is_forgotten() -> None:
    story = Story(syncer(Latest(), grace=milliseconds(5)), "there/0", "there/1")
    assert CancelTimer(TIMER + 1) in story.at(1, opening(1), vote(0, 10), vote(1, 11))
    assert CancelTimer(TIMER + 1) not in story.at(2, ended(MERGE, finished=True))


def test_an_opening_may_say_who_votes_how_many_and_for_how_long() -> None:
    story = Story(syncer(Latest()), "there/0", "there/1", "there/2")
    story.at(1, opening(1, members=[[0, 1], [2, 1]], count_min=2, grace=3 * MS, required=[2], deadline=9 * MS))
    assert story.at(2, vote(1, 11)) == []  # May be a member of the next attempt.
    assert story.at(3, vote(0, 10)) == []
    decision = decided("all 2 members voted", (1, 4, 4))
    fired = run(MERGE, 1, *inputs(1, (0, 10), (2, 12)), decision=decision)
    closed = [DropItem(H(11), "vote refused: not a member"), fired]
    assert story.at(4, vote(2, 12)) == closed


def test_a_required_voter_is_waited_for_beyond_the_grace() -> None:
    story = Story(syncer(Latest()), "there/0", "there/1", "there/2")
    story.at(1, opening(1, grace=0, required=[2], deadline=9 * MS))
    assert story.at(2, vote(0, 10)) == [SetTimer(TIMER + 1, Instant(10 * MS))]
    why = "grace of 0.0 ms ended with 2 of 3; there/1 left out; no required voter is awaited"
    fired = run(MERGE, 1, *inputs(1, (0, 10), (2, 12)), decision=decided(why, (1, 2, 3), (1,)))
    assert story.at(3, vote(2, 12)) == [CancelTimer(TIMER + 1), fired]


def test_an_opening_of_a_higher_attempt_renews_the_round() -> None:
    story = Story(syncer(Latest()), "there/0", "there/1")
    story.at(1, opening(1, members=[[0, 1]]))
    renewed = [DropItem(H(1), "opening renewed"), run(OPENER, 3)]
    assert story.at(2, opening(2, attempt=2, members=[[0, 1], [1, 1]])) == renewed
    story.at(3, vote(1, 11))
    decision = decided("all 2 members voted", (1, 3, 4))
    assert story.at(4, vote(0, 10)) == [run(MERGE, 1, *inputs(2, (0, 10), (1, 11)), decision=decision)]
    refused = [DropItem(H(3), "opening refused"), run(OPENER, 4)]
    assert story.at(5, opening(3, attempt=3)) == refused


def test_a_late_vote_counts_in_the_next_round_of_its_chain() -> None:
    story = Story(syncer(Latest(), grace=Duration(0)), "there/0", "there/1")
    story.at(1, opening(1, chain=3), vote(0, 10), ended(MERGE))
    assert story.at(2, vote(1, 11)) == []
    story.at(3, opening(2, 2, chain=3))
    why = "grace of 0.0 ms ended with 1 of 2; there/1 left out; late for the round before, and counted here: 1"
    fired = run(MERGE, 2, *inputs(2, (0, 12), (1, 11), key=2), decision=decided(why, (3, 4, 4)))
    assert story.at(4, vote(0, 12, 2)) == [fired]


def test_a_round_that_nobody_can_vote_in_fires_without_votes() -> None:
    story = Story(syncer(Latest()), "there/0")
    story.at(1, opening(1))
    decision = {"reason": "no member is live and nobody has voted (1 listed in attempt 1)", "left_out": []}
    assert story.at(2, ReplicaLeft(life("there/0"))) == [run(MERGE, 1, *inputs(1), decision=decision)]


def test_a_round_whose_members_are_all_gone_fires_at_once() -> None:
    story = Story(syncer(Latest()), "there/0")
    decision = {"reason": "no member is live and nobody has voted (1 listed in attempt 1)", "left_out": []}
    fired = run(MERGE, 1, *inputs(1), decision=decision)
    assert story.at(1, opening(1, members=[[0, 9]])) == [fired, run(OPENER, 2)]


def test_the_timer_of_a_round_whose_members_have_all_gone_is_cancelled() -> None:
    story = Story(syncer(Latest(), grace=milliseconds(5)), "there/0", "there/1")
    story.at(1, opening(1), vote(0, 10), ReplicaLeft(life("there/0")))
    decision = decided("no member is live any more; votes cast before: 1", (1, 1, 2))
    fired = run(MERGE, 1, *inputs(1, (0, 10)), decision=decision)
    assert story.at(2, ReplicaLeft(life("there/1"))) == [CancelTimer(TIMER + 1), fired]


def test_a_vote_stays_when_its_voter_leaves() -> None:
    story = Story(syncer(Latest()), "there/0", "there/1")
    story.at(1, opening(1), vote(0, 10))
    assert story.at(2, ReplicaLeft(life("there/0"))) == []
    decision = decided("all live members voted, 1 of 2; votes in all: 2", (1, 1, 3))
    assert story.at(3, vote(1, 11)) == [run(MERGE, 1, *inputs(1, (0, 10), (1, 11)), decision=decision)]


def test_votes_by_queue_give_their_credit_back_when_they_are_used_or_refused() -> None:
    story = Story(syncer(Queue(1)), "there/0")
    story.at(1, opening(1))
    decision = decided("the only member voted", (1, 2, 2))
    granted = GrantCredit(VOTE_EDGE, life("there/0"), 1)
    assert story.at(2, vote(0, 10)) == [granted, run(MERGE, 1, *inputs(1, (0, 10)), decision=decision)]
    assert story.at(3, vote(0, 11)) == [granted, DropItem(H(11), "vote refused: late")]
    assert story.at(4, vote(0, 12, 2)) == []  # Early: round 2 may open yet.
    with pytest.raises(RemoteProtocolError, match="without credit"):
        story.at(5, vote(0, 13, 3))


def test_only_those_vote_who_have_an_edge_to_the_port() -> None:
    graph = Graph("ring")
    here = graph.role("here", replicas=(1, 3))
    node = here.node("node", body("answer opened", outputs="out"), fires=Quorum("answer", "round", "opened"))
    opener = here.node("opener", body(outputs="round"))
    graph.edge(node["out"], node["answer"], Latest(), to=here.next)
    graph.edge(opener["round"], node["opened"], Queue(2))
    story = Story(graph, "here/1", "here/2")
    story.at(1, ended(1, (0, 1, {"round": 1})))
    assert story.at(2, arrived(0, "here/1", 10, {"round": 1})) == [DropItem(H(10), "not connected")]
    decision = decided("the only member voted", (1, 3, 3))
    fired = run(0, 1, (1, [("here/0", 1)]), (0, [("here/2", 1, 11)]), decision=decision)
    assert story.at(3, arrived(0, "here/2", 11, {"round": 1})) == [fired]


def test_an_idle_quorum_node_lets_its_rounds_wait() -> None:
    story = Story(syncer(Latest()), "there/0", is_open=False)
    story.at(0, NodeOpened(OPENER), NodeOpened(MERGE, is_idle=True), ended(MERGE, idle=True))
    assert story.at(1, opening(1), vote(0, 10)) == [run(OPENER, 2)]
    assert story.at(2, arrived(2, "there/0", 20)) == [run(MERGE, 2, (2, [("there/0", 20)]))]
    decision = decided("the only member voted", (1, 1, 1))
    assert story.at(3, ended(MERGE)) == [run(MERGE, 3, *inputs(1, (0, 10)), decision=decision)]


def test_a_node_that_finishes_lets_go_of_openings_votes_closed_rounds_and_timers() -> None:
    story = Story(syncer(Latest(), grace=milliseconds(5)), "there/0", "there/1")
    story.at(0, opening(1, count_min=2), opening(2, 2, count_min=2), vote(0, 10), vote(1, 11))
    story.at(1, vote(0, 20, 2), vote(1, 21, 2))  # Closed, but not fired.
    story.at(2, opening(3, 3), vote(0, 30, 3))
    commands = story.at(3, ended(MERGE, finished=True))
    dropped = [command.handle for command in commands if isinstance(command, DropItem)]
    assert sorted(dropped) == [2, 3, 20, 21, 30]
    assert commands[-2:] == [CancelTimer(TIMER + 1), EndNode(MERGE)]
    assert story.at(4, ReplicaLeft(life("there/0")), ReplicaJoined(life("there/0", 2))) == []
    assert story.at(5, vote(1, 31, 3), TimerFired(TIMER + 1)) == [DropItem(H(31), "node finished")]


def test_one_item_may_be_both_an_opening_and_a_vote() -> None:
    graph = Graph("both")
    here = graph.role("here", replicas=(1, 1))
    source = here.node("source", body(outputs="out"))
    node = here.node("node", body("answer opened"), fires=Quorum("answer", "round", "opened"))
    graph.edge(source["out"], node["answer"], Queue(1))
    graph.edge(source["out"], node["opened"], Queue(1))
    story = Story(graph)
    decision = decided("the only member voted", (1, 1, 1))
    fired = run(1, 1, (1, [("here/0", 7)]), (0, [("here/0", 1, 7)]), decision=decision)
    assert story.at(1, ended(0, (0, 7, {"round": 1}))) == [ShareItem(H(7), 2), fired, run(0, 2)]


WRONG = [
    ({"round": 0}, "expected a key above 1"),
    ({"round": 1}, "expected an attempt above 1"),
    ({"round": 2, "count_min": 0}, "opening round 2, attempt 1: expected count_min of at least 1"),
    ({"round": 2, "count_min": "one"}, "expected an integer in field 'count_min'"),
    ({"round": 2, "members": 3}, r"expected \[slot, incarnation\] pairs"),
    ({"round": 2, "members": [[0, 1, 2]]}, r"expected \[slot, incarnation\] pairs"),
    ({"round": 2, "members": [0]}, "expected a list of slots"),
    ({"round": 2, "members": [[0, 1], [0, 2]]}, "expected each replica once"),
    ({"round": 2, "required": "all"}, "expected a list of slots"),
    ({"round": 2, "grace": -1}, "expected grace of at least 0"),
    ({"round": 2, "deadline": -1}, "expected deadline of at least 0"),
    ({"round": 2, "deadline": 0.5}, "expected an integer in field 'deadline'"),
    ({"round": 2, "chain": "x"}, "expected an integer in field 'chain'"),
    ({"round": 2, "chain": -1}, "expected a chain from 0 to"),
]


@pytest.mark.parametrize(("fields", "what"), WRONG)
def test_an_opening_that_is_not_allowed_is_the_failure_of_its_body(fields: dict[str, Any], what: str) -> None:
    story = Story(syncer(Latest()), "there/0")
    story.at(1, opening(1))
    commands = story.at(2, ended(OPENER, (0, 2, fields)))
    assert commands[0] == DropItem(H(2), "not allowed")
    assert isinstance(commands[1], FailHost)
    assert commands[1].node == OPENER
    assert re.search(what, commands[1].error)


@pytest.mark.parametrize("fields", [fields for fields, _ in WRONG])
def test_an_opening_of_a_peer_that_is_not_allowed_is_the_peers_fault(fields: dict[str, Any]) -> None:
    graph = Graph("far")
    here = graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 1))
    far = there.node("far", body(outputs="round answer"))
    node = here.node("node", body("answer opened"), fires=Quorum("answer", "round", "opened"))
    graph.edge(far["round"], node["opened"], Queue(2), to=here.all)
    graph.edge(far["answer"], node["answer"], Latest(), to=here.all)
    story = Story(graph, "there/0")
    story.at(1, arrived(0, "there/0", 1, {"round": 1}))
    with pytest.raises(RemoteProtocolError, match=r"there/0#1 sent an item on far.round -> node.opened: "):
        story.at(2, arrived(0, "there/0", 2, fields))
    assert story.at(3, arrived(0, "there/0", 3, {"round": 5})) == []
    with pytest.raises(RemoteProtocolError, match="expected an integer in field 'round', found None"):
        story.at(4, arrived(1, "there/0", 4, None))


def test_a_body_names_its_rounds_by_integers() -> None:
    story = Story(syncer(Latest()), "there/0")
    with pytest.raises(Exception, match="expected an integer in field 'round', found 'x'"):
        story.at(1, opening(1, key="x"))  # type: ignore[arg-type]
    sent = ItemsEmitted(OPENER, (Output(0, H(1), {"round": 1}),))
    assert story.at(2, sent) == []


def test_the_check_covers_the_rounds() -> None:
    story = Story(syncer(Latest()), "there/0")
    story.at(1, opening(1))
    story.core._nodes[MERGE].rounds._core._rounds.clear()  # type: ignore[union-attr]
    with pytest.raises(InvariantError, match="quorum"):
        story.core.check()


def test_credit_for_an_opening_elsewhere_is_credit_like_any_other() -> None:
    graph = Graph("opener")
    here = graph.role("here", replicas=(1, 1))
    there = graph.role("there", replicas=(1, 1))
    opener = here.node("opener", body(outputs="round"))
    node = there.node("node", body("answer opened", outputs="answer"), fires=Quorum("answer", "round", "opened"))
    graph.edge(opener["round"], node["opened"], Queue(1), to=there.all)
    graph.edge(node["answer"], node["answer"], Latest())
    story = Story(graph, "there/0")
    fields = {"round": 1, "members": [[0, 1]]}
    assert story.at(1, ended(0, (0, 1, fields))) == [SendItem(0, life("there/0"), H(1), None, fields)]
    assert story.at(2, CreditGranted(0, life("there/0"), 1)) == [run(0, 2)]
