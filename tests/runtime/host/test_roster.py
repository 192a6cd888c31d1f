"""Whom a host knows: who joins, who leaves, and how each is met."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.cores.scheduler_events import Event, ReplicaJoined, ReplicaLeft
from isthmus.runtime.graph.plans import Plan, lower, peers_most
from isthmus.runtime.graph.template import Graph, Latest
from isthmus.runtime.host.own_process import HostRoster, Meetings, PeerReach, RosterNews, meets, met_by, phase
from isthmus.runtime.ids import ONE_MACHINE, HostMachine, MachineOwner, Member, Replica
from isthmus.runtime.supervision.messages import NOBODY, Directory
from isthmus.runtime.supervision.rosters import ASK_AGAIN, Met, RosterCopy, RosterDifference
from tests.runtime.graph.example_bodies import collecting

HOME = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
AWAY = ["tcp://127.0.0.2:1", "tcp://127.0.0.2:2"]


def give() -> int:
    return 1


@collecting("result")
def take(result: int | None = None) -> None:
    return None


def plan(*, to_others: bool) -> Plan:
    """That of a learner that sends to a recorder, and to the next learner or to nobody else."""
    graph = Graph("meeting")
    learner, recorder = graph.role("learner", replicas=(1, 4)), graph.role("recorder", replicas=(1, 1))
    graph.role("stranger", replicas=(1, 1)).node("idle", give)
    node = learner.node("give", give)
    near = learner.node("near", take)
    graph.edge(node["result"], near["result"], Latest(), **({"to": learner.next} if to_others else {}))
    graph.edge(node["result"], recorder.node("take", take)["result"], Latest(), to=recorder.all)
    return lower(graph.freeze())["learner"]


def test_how_many_a_host_meets_at_most() -> None:
    assert peers_most(plan(to_others=False), {"learner": 3}) == 1
    assert peers_most(plan(to_others=True), {"learner": 3}) == 4  # Its own role counts whole.
    assert peers_most(plan(to_others=True), {}) == 5


class Story:
    """What a host's channel and core are told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def connect(self, peer: Member, endpoints: Endpoints) -> None:
        self.told.append(("dial", str(peer), endpoints.key))
        self.dialled = endpoints

    def relay(self, peer: Member, through: Member) -> None:
        self.told.append(("relay", str(peer), str(through)))

    def expect(self, peer: Member) -> None:
        self.told.append(("expect", str(peer)))

    def forget(self, peer: Member) -> None:
        self.told.append(("forget", str(peer)))

    def tell(self, event: Event) -> None:
        assert isinstance(event, ReplicaJoined | ReplicaLeft)
        self.told.append((type(event).__name__, str(event.member)))

    def take(self) -> list[tuple[Any, ...]]:
        told, self.told = self.told, []
        return told


class ToldMeetings(Meetings):
    """The meetings of a host that is told rosters as wholes."""

    def whole(self, rows: list[list[Any]], directory: Directory) -> None:
        self.copy = getattr(self, "copy", RosterCopy())
        taken = self.copy.take(RosterDifference(1, None, tuple(map(tuple, rows))))  # type: ignore[arg-type]
        assert taken is not None
        self.follow(RosterNews(*taken, directory))


def begin(*, to_others: bool = True) -> tuple[ToldMeetings, Story]:
    story: Any = Story()
    mine = Member(Replica("learner", 0), 1)
    reach = PeerReach(lambda other: meets(mine.replica, other))
    made = ToldMeetings(plan(to_others=to_others), mine, reach, channel=story, tell=story.tell)
    return made, story


ME, OTHER, THIRD = ["learner/0", 1, [], "a"], ["learner/1", 1, [], "b"], ["recorder/0", 1, HOME, "home"]


def test_everybody_whom_an_edge_concerns_is_met_in_the_order_of_their_names() -> None:
    made, story = begin()
    made.whole([["stranger/0", 1, AWAY, "c"], THIRD, OTHER, ME], Directory({"home": "KEY"}))
    assert story.take() == [
        ("relay", "learner/1#1", "recorder/0#1"),
        ("ReplicaJoined", "learner/1#1"),
        ("dial", "recorder/0#1", "KEY"),
        ("ReplicaJoined", "recorder/0#1"),
    ]
    made.whole([THIRD, OTHER, ME], NOBODY)
    assert story.take() == []


@pytest.mark.parametrize(
    ("control", "is_here", "only_porters", "is_inside"),
    [
        ("tcp://127.0.0.1:1", False, False, True),  # At the end of a tunnel.
        ("tcp://127.0.0.1:1", True, False, False),  # On this computer.
        ("tcp://[::1]:1", False, False, True),
        ("tcp://10.0.0.1:1", False, False, False),
        ("tcp://10.0.0.1:1", False, True, True),  # Through a bucket.
        ("tcp://127.0.0.1:1", True, True, True),
    ],
)
def test_a_host_on_the_loopback_of_another_machine_is_dialled_through_its_porter_alone(
    control: str, *, is_here: bool, only_porters: bool, is_inside: bool
) -> None:
    story: Any = Story()
    mine = Member(Replica("learner", 0), 1)
    reaches = {"home": "tcp://127.0.0.1:7500"}
    reach = PeerReach(lambda other: meets(mine.replica, other), reaches=reaches, only_porters=only_porters)
    asked: list[str] = []
    made = ToldMeetings(
        plan(to_others=False),
        mine,
        reach,
        channel=story,
        tell=story.tell,
        is_here=lambda control: asked.append(control) is None and is_here,
    )
    made.whole([["recorder/0", 1, [control, "tcp://127.0.0.1:2", "tcp://127.0.0.1:7400"], "home"], ME], NOBODY)
    assert (story.dialled.porter, story.dialled.is_inside) == ("tcp://127.0.0.1:7500", is_inside)
    assert asked == ([control] if "10.0" not in control else [])


def test_whose_the_machine_of_a_host_is_outlives_its_life() -> None:
    made, _ = begin()
    made.whole([THIRD, OTHER, ME], Directory(owners={"a": MachineOwner("ann", 0.25)}))
    assert [made.machine_of("learner", slot) for slot in range(3)] == [
        HostMachine("a", MachineOwner("ann", 0.25)),
        HostMachine("b", MachineOwner("b")),
        HostMachine(),
    ]
    made.whole([THIRD, ME, ["learner/2", 1, [], ONE_MACHINE]], Directory(owners={"b": MachineOwner("bob")}))
    assert [made.machine_of("learner", slot) for slot in range(3)] == [
        HostMachine("a", MachineOwner("a")),
        HostMachine("b", MachineOwner("bob")),
        HostMachine(),
    ]
    lives = [Member(Replica("learner", slot), life) for slot, life in ((0, 1), (1, 1), (2, 1), (2, 2))]
    assert [made.was_on(life) for life in lives] == ["a", "b", ONE_MACHINE, ""]


def test_where_learners_send_each_other_nothing_they_do_not_meet() -> None:
    made, story = begin(to_others=False)
    made.whole([THIRD, OTHER, ME], NOBODY)
    assert [told[1] for told in story.take()] == ["recorder/0#1", "recorder/0#1"]


def test_nothing_is_taken_from_a_roster_without_this_life() -> None:
    made, story = begin()
    made.whole([THIRD, OTHER], NOBODY)
    made.whole([THIRD, OTHER, ["learner/0", 2, [], "a"]], NOBODY)
    assert story.take() == []


def test_who_is_missing_is_forgotten_and_who_cannot_be_met_yet_is_met_later() -> None:
    made, story = begin()
    made.whole([ME, OTHER, ["recorder/0", 1, [], "home"]], NOBODY)
    assert story.take() == [("relay", "learner/1#1", "recorder/0#1"), ("ReplicaJoined", "learner/1#1")]
    made.whole([ME, THIRD], NOBODY)
    assert story.take() == [
        ("forget", "learner/1#1"),
        ("ReplicaLeft", "learner/1#1"),
        ("dial", "recorder/0#1", ""),
        ("ReplicaJoined", "recorder/0#1"),
    ]


def test_peers_behind_a_relay_are_reached_through_its_next_life() -> None:
    made, story = begin()
    made.whole([ME, OTHER, THIRD], NOBODY)
    story.take()
    made.whole([ME, OTHER], NOBODY)
    assert story.take() == [("forget", "recorder/0#1"), ("ReplicaLeft", "recorder/0#1")]
    made.whole([ME, OTHER, ["recorder/0", 2, AWAY, "home"]], NOBODY)
    assert story.take() == [
        ("relay", "learner/1#1", "recorder/0#2"),
        ("dial", "recorder/0#2", ""),
        ("ReplicaJoined", "recorder/0#2"),
    ]


def test_the_phase_of_a_learner_is_that_of_its_inner_step() -> None:
    learner, syncer = Replica("learner", 0), Replica("syncer", 0)
    assert (phase(learner, {}, is_open=False), phase(syncer, {}, is_open=False)) == ("compiling", "starting")
    assert phase(learner, {"inner-step": {"phase": "ready"}}, is_open=True) == "recovering"
    assert phase(learner, {"inner-step": {"phase": "final"}}, is_open=True) == "final"
    assert phase(syncer, {"pacer": {"phase": "final"}}, is_open=True) == "serving"


def test_nobody_who_has_gone_comes_back() -> None:
    """A daemon whose disk failed before it died leaves a ledger behind in which they live."""
    made, story = begin()
    made.whole([ME, OTHER, THIRD], NOBODY)
    made.whole([ME, THIRD], NOBODY)
    story.take()
    made.whole([ME, OTHER, THIRD], NOBODY)
    assert story.take() == []
    made.whole([ME, ["learner/1", 2, [], "b"], THIRD], NOBODY)
    assert story.take() == [("relay", "learner/1#2", "recorder/0#1"), ("ReplicaJoined", "learner/1#2")]


def test_a_life_that_was_replaced_is_not_met_again() -> None:
    """A daemon whose ledger was lost adopts an older life that still speaks; whoever had met its next one may not."""
    made, story = begin()
    made.whole([ME, ["learner/1", 3, [], "b"], THIRD], NOBODY)
    story.take()
    made.whole([ME, ["learner/1", 2, [], "b"], THIRD], NOBODY)
    assert story.take() == [("forget", "learner/1#3"), ("ReplicaLeft", "learner/1#3")]
    made.whole([ME, ["learner/1", 4, [], "b"], THIRD], NOBODY)
    assert story.take() == [("relay", "learner/1#4", "recorder/0#1"), ("ReplicaJoined", "learner/1#4")]


def regional_plan(role: str) -> Plan:
    """That of a learner or region; learners meet the region of their group and the recorder."""
    graph = Graph("groups")
    learner, region = graph.role("learner", replicas=(1, 8)), graph.role("region", replicas=(3, 3))
    recorder = graph.role("recorder", replicas=(1, 1))
    node, led = learner.node("give", give), region.node("lead", take)
    graph.edge(node["result"], led["result"], Latest(), to=region.group)
    graph.edge(node["result"], recorder.node("take", take)["result"], Latest(), to=recorder.all)
    return lower(graph.freeze())[role]


def test_a_host_asks_for_those_that_it_meets_of_its_own_group_alone() -> None:
    own = Met("learner", 4, 0)
    assert met_by(regional_plan("learner"), Replica("learner", 4)) == (own, Met("recorder"), Met("region", 1, 3))
    region = met_by(regional_plan("region"), Replica("region", 2))
    assert region == (Met("learner", 2, 3), Met("recorder"), Met("region", 2, 0))
    assert [Met("learner", 2, 3).holds(Replica("learner", slot)) for slot in (2, 4, 5, 1)] == [True, False, True, False]
    follower = met_by(plan(to_others=False), Replica("learner.1", 4))
    assert {Met("learner", 4, 0), Met("learner.1", 4, 0)} <= {*follower}


def said(mark: int, since: int | None, *rows: Any, gone: tuple[str, ...] = (), **about: Any) -> dict[str, Any]:
    """A roster as a daemon's message has it."""
    return {"type": "roster", "roster": [mark, since, rows, gone], "directory": about, "forms": []}


def test_a_host_applies_the_changes_that_its_daemon_sends_and_asks_for_the_whole_where_it_missed_one() -> None:
    roster = HostRoster((Met("recorder"),))
    assert {**roster.said(), "meets": list(roster.said()["meets"])} == {"meets": [["recorder", 0, 1]], "asks": 0}
    assert roster.take({"type": "beat"}) is None
    news = roster.take(said(3, None, ME, THIRD, home=["KEY", None], a=["", ["ann", None]]))
    assert news is not None
    assert (news.gone, [row[0] for row in news.rows]) == ([], ["learner/0", "recorder/0"])
    assert news.directory == Directory({"home": "KEY"}, {"a": MachineOwner("ann")})
    news = roster.take(said(4, 3, OTHER, gone=("recorder/0",), home=None))
    assert news is not None
    assert (news.gone, [row[0] for row in roster.rows]) == (["recorder/0"], ["learner/0", "learner/1"])
    assert news.directory == Directory({}, {"a": MachineOwner("ann")})
    assert roster.take({"type": "beat", "roster": [4, 4, [], []]}) is None
    assert roster.said()["asks"] == 0
    for _ in range(ASK_AGAIN):  # Asked once, until it is answered or that takes too long.
        assert roster.take(said(6, 5, THIRD)) is None
        assert roster.said()["asks"] == 1
    assert roster.take({"type": "beat", "roster": [6, 6, [], []]}) is None
    assert roster.take({"type": "beat", "roster": [6, 6, [], []]}) is None
    assert roster.said()["asks"] == 2
    news = roster.take(said(6, None, ME, THIRD))
    assert news is not None
    assert (news.gone, [row[0] for row in news.rows]) == (["learner/1"], ["recorder/0"])
    assert news.directory == NOBODY
