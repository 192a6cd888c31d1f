"""What a channel says has crossed, against the bytes that a cable has carried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.channels.crossings import CONTROL, FRAMING, ITEMS, Crossed, lines
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.wire.zmtp_sizes import greeting_bytes
from tests.runtime.wire.cables import LEARNERS, MIB, PATIENT, SYNCER, Cable, End, Half, World
from tests.runtime.wire.key_rings import keyed, machine_of, ring_of


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """The bytes that cables have carried: True from the side that dials."""
    counts = Counter[bool]()
    data_received = Half.data_received

    def counted(half: Half, data: bytes) -> None:
        counts[half.is_dialling] += len(data)
        data_received(half, data)

    monkeypatch.setattr(Half, "data_received", counted)
    return counts


def send(end: End, target: Any, edge: int, item: Any) -> None:
    """Send an item with its own size, as hosts do."""
    encoded = encode(item)
    parcel = Parcel(edge, None, item, None, encoded.digest, encoded.size_bytes, encoded)
    end.channel.send(target, parcel, replaces=False)


def crossed_by(end: End, other: Any) -> Crossed:
    return next(crossed for member, through, crossed in end.channel.crossed() if member == other and through is None)


def bytes_of(end: End, other: Any, direction: str, kind: str = "") -> int:
    peer = {"peer": str(other.replica), "incarnation": 1, "machine": "", "through": ""}
    account = lines(peer, crossed_by(end, other), {})
    return sum(line.size_bytes for line in account if line.direction == direction and kind in ("", line.kind))


@pytest.mark.parametrize("has_keys", [False, True])
def test_all_that_tcp_carried_is_in_the_account_of_both_ends(
    world: World, carried: Counter[bool], has_keys: bool
) -> None:
    everybody = (SYNCER, LEARNERS[0])
    ring: dict[str, Any] = {"keys": ring_of(SYNCER, *everybody), "machine_of": machine_of} if has_keys else {}
    syncer = world.end(SYNCER, PATIENT, **ring)
    learner = world.end(LEARNERS[0], PATIENT, **(keyed(LEARNERS[0], everybody) if has_keys else {}))
    cable: Cable = world.cable(syncer.channel.bind("tcp://127.0.0.1:0"))
    syncer.channel.expect(LEARNERS[0])
    learner.channel.connect(SYNCER, cable.endpoints)
    sizes = [10, 300, 70_000, 5 * MIB, 3]
    for size in sizes:
        send(learner, SYNCER, 1, {"x": np.zeros(size, np.uint8)})
        send(syncer, LEARNERS[0], 2, {"y": np.zeros(size // 2, np.uint8)})
    world.until(lambda: len(syncer.got(1)) == len(learner.got(2)) == len(sizes))
    world.until(lambda: len(learner.transfers) == len(syncer.transfers) == len(sizes))

    def agree() -> bool:
        """Messages may be under way: both ends and the cable agree once none is."""
        up = bytes_of(learner, SYNCER, "sent"), bytes_of(syncer, LEARNERS[0], "received"), carried[True]
        down = bytes_of(syncer, LEARNERS[0], "sent"), bytes_of(learner, SYNCER, "received"), carried[False]
        return len(set(up)) == len(set(down)) == 1

    world.until(agree)
    assert bytes_of(learner, SYNCER, "sent", CONTROL) > 0
    overhead = bytes_of(learner, SYNCER, "sent", FRAMING)
    assert 2 * greeting_bytes(dials=True, is_encrypted=has_keys)[0] < overhead < 10_000


def test_items_are_counted_by_edge_with_the_largest_and_the_times(world: World) -> None:
    syncer, learner = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT)
    syncer.channel.expect(LEARNERS[0])
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    before = world.clock.now()
    for edge in (4, 4, 7):
        learner.send(SYNCER, edge, {"x": edge})
    world.until(lambda: len(syncer.items) == 3)
    for way in (crossed_by(learner, SYNCER).sent, crossed_by(syncer, LEARNERS[0]).received):
        assert {edge: tally.count for edge, tally in way.edges.items()} == {4: 2, 7: 1}
        tally = way.edges[4]
        assert tally.size_bytes == 2 * tally.largest == 16  # As the test's parcels say.
        assert before <= tally.first <= tally.last <= world.clock.now()


def test_what_is_relayed_is_in_the_lines_of_each_leg_and_apart_by_edge(world: World) -> None:
    syncer, *learners = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT), world.end(LEARNERS[1], PATIENT)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    for learner, other in zip(learners, (LEARNERS[1], LEARNERS[0]), strict=True):
        syncer.channel.expect(learner.member)
        learner.channel.connect(SYNCER, where)
        learner.channel.relay(other, SYNCER)
    learners[0].send(LEARNERS[1], 3, {"x": np.zeros(50_000, np.uint8)})
    world.until(lambda: bool(learners[1].got(3)))
    [apart] = [each for member, through, each in learners[0].channel.crossed() if through == SYNCER]
    assert apart.sent.edges[3].count == 1
    assert apart.sent.control.count == apart.sent.whole_bytes == 0
    peer = {"peer": "learner/1", "incarnation": 1, "machine": "", "through": "syncer/0"}
    assert {line.kind for line in lines(peer, apart, {})} == {ITEMS}
    assert crossed_by(learners[0], SYNCER).sent.relayed.size_bytes > 50_000
    assert crossed_by(learners[1], SYNCER).received.relayed.size_bytes > 50_000


def test_what_crossed_is_known_of_a_peer_that_has_gone(world: World) -> None:
    syncer, learner = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT)
    syncer.channel.expect(LEARNERS[0])
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    learner.send(SYNCER, 4, {"x": 1})
    world.until(lambda: bool(syncer.items))
    syncer.channel.forget(LEARNERS[0])
    assert crossed_by(syncer, LEARNERS[0]).received.edges[4].count == 1
