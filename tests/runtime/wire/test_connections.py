"""The ZeroMQ channel when connections end, and who is welcome: cables that are cut, peers that come and go."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.clock import milliseconds, seconds
from isthmus.runtime.errors import ConfigError, LocalProtocolError
from isthmus.runtime.ids import PEERS_MAX, Member
from isthmus.runtime.wire.peers import Limits, Peer
from tests.procfs import threads
from tests.runtime.wire.cables import HASTY, LEARNERS, MIB, PATIENT, SYNCER, World, connected, floats


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


# -- connections end ---------------------------------------------------------------------------------------------------


def test_those_that_lost_one_peer_together_do_not_dial_it_together() -> None:
    limits, delays = Limits(), []
    for learner in LEARNERS[:3]:
        peer = Peer(SYNCER)
        delays.append([peer.delay(limits, learner) for _ in range(8)])
    for each in delays:
        whole = [min(limits.retry_min << attempt, limits.retry_max) for attempt in range(8)]
        assert all(most / 2 <= delay <= most for delay, most in zip(each, whole, strict=True))
    assert len({delay for each in delays for delay in each}) == 24


def test_the_bound_of_a_channel_follows_from_the_replicas_that_its_host_meets() -> None:
    assert [Limits().for_peers(count).peers_max for count in (0, 3, PEERS_MAX)] == [2, 6, 2 * PEERS_MAX]
    assert Limits().for_peers(PEERS_MAX + 1).peers_max == 2 * PEERS_MAX


@pytest.mark.slow
def test_after_every_cut_what_is_missing_is_sent_again_and_nothing_twice(world: World) -> None:
    syncer, learner, cable = connected(world, PATIENT)
    newest = {}
    for i in range(60):
        learner.send(SYNCER, 1, [i, floats(3, i)])
        syncer.send(LEARNERS[0], 1, [i, floats(1, i)])
        newest[i % 3] = i
        learner.send(SYNCER, 2, i, key=i % 3, replaces=True)
        if i % 10 == 5:
            carried = cable.carried
            world.until(lambda before=carried: cable.carried > before + 5 * MIB)  # type: ignore[misc]
            assert len(syncer.got(1)) <= i  # The cut comes while items are under way.
            cable.cut()
    world.until(lambda: len(syncer.got(1)) == len(learner.got(1)) == 60 and cable.connections == 14)
    for end in (syncer, learner):
        assert [number for number, _ in end.got(1)] == list(range(60))
        assert all(np.all(array == number) for number, array in end.got(1))
        assert {reason for _, reason in end.losses} <= {"disconnected", "replaced by a newer connection"}
        assert len(end.losses) >= 6
    world.until(lambda: {p.key: p.item for _, p in syncer.items if p.edge == 2} == newest)
    got = syncer.got(2)
    assert len(got) == len(set(got))


def test_a_receiver_that_pauses_holds_one_window_over_all_connections(world: World) -> None:
    syncer, learner, cable = connected(world, PATIENT._replace(window_bytes=4 * MIB))
    syncer.channel.pause()
    for i in range(40):
        learner.send(SYNCER, 1, floats(1, i))
    peer = syncer.channel._connections.peers[LEARNERS[0]]
    world.until(lambda: sum(len(each.parcels) for each in peer.held) == 3)
    for count in range(2, 6):
        cable.cut()
        world.until(lambda before=count: len(learner.ups) == before)  # type: ignore[misc]
        world.pass_time(milliseconds(50))
    assert sum(len(each.parcels) for each in peer.held) == 3
    syncer.channel.resume()
    world.until(lambda: len(syncer.items) == 40)
    assert [item[0] for item in syncer.got(1)] == list(range(40))


@pytest.mark.slow
def test_a_silent_cable_is_given_up_and_what_it_held_is_sent_again(world: World) -> None:
    syncer, learner, cable = connected(world, HASTY)
    cable.stall("control", "data")
    learner.send(SYNCER, 1, "held")
    world.until(lambda: bool(syncer.losses and learner.losses))
    assert {reason for _, reason in learner.losses} == {"silent for 0.6 s"}
    cable.stall()
    world.until(lambda: syncer.got(1) == ["held"])
    assert learner.ups == [SYNCER] * 2


@pytest.mark.long
@pytest.mark.slow
def test_no_socket_gets_to_its_high_water_mark(world: World) -> None:
    """A message a turn, to a peer that reads nothing: credit ends long before libzmq's patience does."""
    syncer, learner, cable = connected(world)
    cable.stall("control", "data")
    ends = ((syncer, LEARNERS[0]), (learner, SYNCER))

    def go_on(number: int) -> None:
        for end, peer in ends:
            end.send(peer, 1, number)
            end.channel.grant(peer, 2, 1)
        if number < 3000:
            world.loop.call_soon(go_on, number + 1)

    go_on(1)
    world.until(lambda: syncer.count("items_sent") == learner.count("items_sent") == 2048)
    world.pass_time(milliseconds(50))
    assert syncer.count("items_sent") == learner.count("items_sent") == 2048
    cable.stall()
    world.until(lambda: len(syncer.got(1)) == len(learner.got(1)) == 3000)
    world.until(lambda: syncer.credit[LEARNERS[0], 2] == learner.credit[SYNCER, 2] == 3000)
    assert (syncer.losses, learner.losses) == ([], [])


@pytest.mark.long
@pytest.mark.slow
def test_a_heartbeat_never_waits_for_a_fragment(world: World) -> None:
    syncer, learner, cable = connected(world, HASTY._replace(silence_max=seconds(1.2)))
    cable.stall("data")
    learner.send(SYNCER, 1, floats(30))
    syncer.channel.grant(LEARNERS[0], 3, 1)
    world.pass_time(seconds(2))
    assert learner.credit[SYNCER, 3] == 1
    assert (syncer.losses, learner.losses) == ([], [])
    cable.stall()
    world.until(lambda: bool(syncer.items))


def test_a_process_that_was_stopped_does_not_blame_its_peers(world: World) -> None:
    syncer, learner, _ = connected(world, PATIENT)
    world.clock.lost += seconds(100)
    world.pass_time(milliseconds(400))
    learner.send(SYNCER, 1, "still here")
    world.until(lambda: bool(syncer.items))
    assert (syncer.losses, learner.losses) == ([], [])


def test_a_peer_that_is_not_there_yet_is_dialled_until_it_is(world: World) -> None:
    with socket.socket() as control, socket.socket() as data:
        for held in (control, data):
            held.bind(("127.0.0.1", 0))
        endpoints = Endpoints(*(f"tcp://127.0.0.1:{held.getsockname()[1]}" for held in (control, data)))
        learner = world.end(LEARNERS[0], PATIENT)
        learner.channel.connect(SYNCER, endpoints)
        learner.send(SYNCER, 1, "patience")
        world.until(lambda: bool(learner.losses))
        world.pass_time(milliseconds(300))
        assert learner.losses == [(SYNCER, "disconnected")]
    syncer = world.end(SYNCER, PATIENT)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learner.channel.connect(SYNCER, where)
    world.until(lambda: syncer.got(1) == ["patience"])


@pytest.mark.slow
def test_a_peer_that_accepts_and_says_nothing_is_given_up(world: World) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        endpoint = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        learner = world.end(LEARNERS[0], HASTY)
        learner.channel.connect(SYNCER, Endpoints(endpoint, endpoint))
        world.until(lambda: bool(learner.losses))
    assert learner.losses == [(SYNCER, "no connection for 0.6 s")]
    assert learner.ups == []


@pytest.mark.long
@pytest.mark.slow
def test_nothing_comes_from_or_goes_to_a_member_that_was_forgotten(world: World) -> None:
    syncer, learner, _ = connected(world, PATIENT)
    syncer.channel.pause()
    learner.send(SYNCER, 1, "too late")
    world.pass_time(milliseconds(100))
    syncer.send(LEARNERS[0], 2, floats(1))
    syncer.channel.forget(LEARNERS[0])
    syncer.channel.resume()
    syncer.send(LEARNERS[0], 2, "never")
    assert syncer.count("dropped") == 3
    world.until(lambda: any("has left" in reason for _, reason in learner.losses))
    learner.send(SYNCER, 1, "much too late")
    world.pass_time(milliseconds(100))
    assert (syncer.items, learner.items) == ([], [])
    with pytest.raises(LocalProtocolError, match="has gone"):
        syncer.channel.expect(LEARNERS[0])
    later = world.end(Member(LEARNERS[0].replica, 2), PATIENT)
    later.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    later.send(SYNCER, 1, "the next life")
    world.until(lambda: syncer.got(1) == ["the next life"])
    assert syncer.count("refused_stranger") >= 1


def test_nothing_arrives_after_close_and_nothing_is_left_open(world: World) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    syncer, learner = world.end(SYNCER), world.end(LEARNERS[0])
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    world.until(lambda: bool(syncer.ups and learner.ups))
    for i in range(5):
        learner.send(SYNCER, 1, floats(8, i))
    learner.channel.close()
    learner.channel.close()
    learner.send(SYNCER, 1, 9)
    learner.channel.grant(SYNCER, 1, 1)
    assert learner.count("dropped") == 6
    syncer.channel.close()
    world.pass_time(milliseconds(50))
    assert (syncer.items, learner.items) == ([], [])
    assert learner.losses == []
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_libzmq_has_one_thread_for_traffic(world: World) -> None:
    before = io_threads()
    connected(world)
    assert io_threads() - before == 2


def io_threads() -> int:
    return sum(name.startswith("ZMQbg/IO") for name, _ in threads().values())


# -- who is welcome ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"run": "another"}, "run"), ({"fingerprint": "another"}, "fingerprint")],
)
def test_a_host_of_another_run_is_told_why_it_is_refused(world: World, changes: dict[str, str], reason: str) -> None:
    syncer, learner = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT, **changes)
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    world.until(lambda: syncer.count(f"refused_{reason}") >= 2)
    assert len(learner.losses) == 1
    assert learner.losses[0][1].startswith(f"refused by the peer ({reason}: ")
    assert syncer.ups == syncer.losses == []


def test_a_peer_of_an_earlier_life_at_the_same_place_is_refused(world: World) -> None:
    syncer, learner = world.end(Member(SYNCER.replica, 2), PATIENT), world.end(LEARNERS[0], PATIENT)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learner.channel.connect(SYNCER, where)
    world.until(lambda: bool(learner.losses))
    assert "looks for syncer/0#1; this is syncer/0#2" in learner.losses[0][1]
    learner.channel.forget(SYNCER)
    learner.channel.connect(Member(SYNCER.replica, 2), where)
    world.until(lambda: bool(learner.ups))


def test_there_are_not_more_peers_than_allowed(world: World) -> None:
    syncer = world.end(SYNCER, PATIENT._replace(peers_max=2))
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learners = [world.end(member, PATIENT) for member in LEARNERS[:3]]
    for learner in learners:
        learner.channel.connect(SYNCER, where)
        world.until(lambda: len(syncer.ups) == 2 or syncer.count("refused_crowd") > 0 or bool(syncer.ups))
    world.until(lambda: len(syncer.ups) == 2 and syncer.count("refused_crowd") > 0)
    with pytest.raises(LocalProtocolError, match="2 peers are known"):
        syncer.channel.expect(LEARNERS[3])


@pytest.mark.slow
def test_of_two_that_dial_each_other_one_connection_stays(world: World) -> None:
    one, other = world.end(LEARNERS[0], PATIENT), world.end(LEARNERS[1], PATIENT)
    one.channel.connect(LEARNERS[1], other.channel.bind("tcp://127.0.0.1:0"))
    other.channel.connect(LEARNERS[0], one.channel.bind("tcp://127.0.0.1:0"))
    for i in range(50):
        one.send(LEARNERS[1], 1, i)
        other.send(LEARNERS[0], 1, i)
    world.until(lambda: len(one.items) == len(other.items) == 50)
    world.pass_time(milliseconds(400))
    losses = len(one.losses) + len(other.losses)
    world.pass_time(milliseconds(400))
    assert len(one.losses) + len(other.losses) == losses
    assert one.got(1) == other.got(1) == list(range(50))
    # Whether the dials cross, the order of events decides; where they do, it is always the same one that refuses.
    assert other.count("refused_crossed") == 0


def test_a_port_in_use_and_an_endpoint_that_is_none_are_faults_of_the_request(world: World) -> None:
    syncer, learner = world.end(SYNCER), world.end(LEARNERS[0])
    taken = syncer.channel.bind("tcp://127.0.0.1:0").control
    for endpoint in (taken, "tcp://127.0.0.1", "nonsense", "tcp://127.0.0.1:x"):
        with pytest.raises(ConfigError, match="Choose another port"):
            learner.channel.bind(endpoint)
    with pytest.raises(ConfigError, match="Correct them"):
        learner.channel.connect(SYNCER, Endpoints("nonsense", "tcp://127.0.0.1:1"))


def test_a_host_binds_a_port_and_the_next(world: World) -> None:
    syncer = world.end(SYNCER)
    while True:
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            break
    endpoints = syncer.channel.bind(f"tcp://127.0.0.1:{port}")
    assert endpoints == Endpoints(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}")
