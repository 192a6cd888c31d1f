"""The ZeroMQ channel between two that cannot reach each other, through a third."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from isthmus.runtime.clock import milliseconds, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.layout import CHUNK_BYTES
from isthmus.runtime.wire.peers import Limits
from tests.runtime.wire.cables import LEARNERS, MIB, PATIENT, SYNCER, Cable, End, World, floats


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def relayed(world: World, limits: Limits) -> tuple[End, list[End], list[Cable]]:
    """Two learners that have dialled the syncer, and talk through it."""
    syncer = world.end(SYNCER, limits)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learners = [world.end(member, limits) for member in LEARNERS[:2]]
    cables = [world.cable(where) for _ in learners]
    for learner, cable, other in zip(learners, cables, LEARNERS[1::-1], strict=True):
        learner.channel.connect(SYNCER, cable.endpoints)
        learner.channel.relay(other, SYNCER)
    return syncer, learners, cables


@pytest.mark.slow
def test_two_that_only_dial_talk_through_a_third(world: World) -> None:
    syncer, (one, other), _ = relayed(world, PATIENT)
    for i in range(10):
        one.send(LEARNERS[1], 1, [i, floats(5, i)])
        other.send(LEARNERS[0], 1, [i, floats(5, i)])
        one.send(SYNCER, 2, i)
    other.channel.grant(LEARNERS[0], 1, 4)
    world.until(lambda: len(one.items) == len(other.items) == len(syncer.items) == 10)
    for end in (one, other):
        assert [number for number, _ in end.got(1)] == list(range(10))
        assert all(np.all(array == number) for number, array in end.got(1))
    world.until(lambda: one.credit[LEARNERS[1], 1] == 4)
    assert syncer.count("relayed") > 40
    assert syncer.got(2) == list(range(10))


def test_a_relayed_pair_needs_no_heartbeat(world: World) -> None:
    _, (one, other), _ = relayed(world, PATIENT._replace(heartbeat=seconds(60)))
    for number in range(5):
        one.send(LEARNERS[1], 1, [number, floats(3, number)])
        other.send(LEARNERS[0], 1, number)
        one.channel.grant(LEARNERS[1], 1, 1)
        world.until(lambda: len(one.items) == len(other.items) == number + 1)  # noqa: B023
        world.until(lambda: other.credit[LEARNERS[0], 1] == number + 1)  # noqa: B023


@pytest.mark.long
@pytest.mark.slow
def test_a_relayed_pair_survives_the_loss_of_either_way(world: World) -> None:
    _, (one, other), cables = relayed(world, PATIENT)
    for i in range(20):
        one.send(LEARNERS[1], 1, [i, floats(2, i)])
    for cable in (*cables, *cables):
        carried = cable.carried
        world.until(lambda before=carried, cable=cable: cable.carried > before + 3 * MIB)  # type: ignore[misc]
        cable.cut()
    world.until(lambda: len(other.items) == 20)
    assert [number for number, _ in other.got(1)] == list(range(20))
    assert len([peer for peer, _ in one.losses if peer == LEARNERS[1]]) >= 2


def test_a_peer_that_its_relay_does_not_know_is_unreachable_until_it_comes(world: World) -> None:
    syncer, learner = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learner.channel.connect(SYNCER, where)
    learner.channel.relay(LEARNERS[1], SYNCER)
    learner.send(LEARNERS[1], 1, "hello")
    world.until(lambda: (LEARNERS[1], "unreachable through syncer/0#1") in learner.losses)
    late = world.end(LEARNERS[1], PATIENT)
    late.channel.connect(SYNCER, where)
    world.until(lambda: bool(late.ups))
    late.channel.relay(LEARNERS[0], SYNCER)
    world.until(lambda: late.got(1) == ["hello"])


def test_a_relayed_receiver_that_pauses_stops_its_sender_and_nobody_else(world: World) -> None:
    limits = PATIENT._replace(relay_window_bytes=2 * CHUNK_BYTES)
    syncer, (one, other), cables = relayed(world, limits)
    world.until(lambda: LEARNERS[1] in one.ups and LEARNERS[0] in other.ups)
    one.losses.clear()
    other.losses.clear()  # Whoever was relayed before the other had dialled was told so, and tried again.
    other.channel.pause()
    for i in range(20):
        one.send(LEARNERS[1], 1, floats(4, i))
    one.send(SYNCER, 2, floats(4))
    world.until(lambda: bool(syncer.items))
    world.pass_time(milliseconds(200))
    assert cables[0].carried <= 3 * CHUNK_BYTES + MIB
    other.channel.resume()
    world.until(lambda: len(other.items) == 20)
    assert (one.losses, other.losses) == ([], [])


def test_nobody_relays_in_another_name(world: World) -> None:
    syncer, (one, other), _ = relayed(world, PATIENT)
    world.until(lambda: LEARNERS[1] in one.ups and LEARNERS[0] in other.ups)
    session = one.channel._connections.peers[SYNCER].session
    assert session is not None
    session.relay(5, Member(Replica("learner", 9), 1), LEARNERS[1], b"forged")
    one.send(SYNCER, 1, "wake")
    world.until(lambda: syncer.count("refused_stranger") == 1)
    assert (
        LEARNERS[0],
        "refused (stranger: learner/0#1 sent a message of learner/9#1 for learner/1#1)",
    ) in syncer.losses
