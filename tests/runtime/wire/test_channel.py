"""The ZeroMQ channel on loopback: the contract, and how items look on the way."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from isthmus.runtime.channels.conformance import A, B, C, ChannelConformance, Ends, MakeEnds, RecordingReceiver
from isthmus.runtime.channels.contract import Channel, Endpoints, Parcel
from isthmus.runtime.clock import milliseconds, seconds
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items import layout as frames
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.items.layout import CHUNK_BYTES
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.peers import AcceptedLink, DialledLink, Limits
from isthmus.runtime.wire.segment_links import SegmentDesk
from isthmus.runtime.wire.zmq_sockets import ZmqSocket
from tests.effort import long, slow
from tests.procfs import has_ipv6, listening, open_files
from tests.runtime.wire.cables import LEARNERS, MIB, PATIENT, SYNCER, End, World, connected, floats, pair
from tests.runtime.wire.key_rings import keyed

HUB = Member(Replica("hub", 0), 1)
SILENT = PATIENT._replace(heartbeat=seconds(60))
"""Without heartbeats: whatever comes about does so without them."""


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


# -- the contract ------------------------------------------------------------------------------------------------------


class WireEnds(Ends):
    """Channels on loopback. Of two, the `later` or the earlier dials, or both dial a `hub` that relays. With keys, each
    member is on a machine of its own."""

    def __init__(
        self, world: World, window_bytes: int, who_dials: str, *, has_keys: bool = False, has_desks: bool = False
    ) -> None:
        self.world = world
        self.who_dials = who_dials
        self.has_desks = has_desks
        self.keyed = partial(keyed, admitted=(A, B, C, HUB)) if has_keys else lambda member: {}
        self.limits = PATIENT._replace(window_bytes=window_bytes, relay_window_bytes=window_bytes)
        self.ends: dict[Member, tuple[WireChannel, Endpoints]] = {}
        self.hub = world.end(HUB, PATIENT, **self.keyed(HUB)) if who_dials == "hub" else None
        self.at_hub = self.hub.channel.bind("tcp://127.0.0.1:0") if self.hub else None

    def join(self, member: Member, receiver: RecordingReceiver | None) -> Channel:
        desk = SegmentDesk(item_bytes_min=2) if self.has_desks else None
        made = self.world.channel(member, self.limits, desk=desk, **self.keyed(member))
        where = made.bind("tcp://127.0.0.1:0")
        if self.at_hub is not None:
            made.connect(HUB, self.at_hub)
        for other, (channel, endpoints) in self.ends.items():
            if self.who_dials == "later":
                channel.expect(member)
                made.connect(other, endpoints)
            elif self.who_dials == "earlier":
                made.expect(other)
                channel.connect(member, where)
            else:
                made.relay(other, HUB)
                channel.relay(member, HUB)
        self.ends[member] = made, where
        if receiver is not None:
            made.open(receiver)
        return made

    def leave(self, member: Member) -> None:
        if not self.world.loop.is_running():
            self.rest()
            self.world.until(self.is_acknowledged)  # What is not would count as dropped, though it was received.
        self.ends.pop(member)[0].close()
        for channel, _ in self.ends.values():
            channel.forget(member)

    def is_acknowledged(self) -> bool:
        """Whether everybody has heard of all that was given to a receiver."""
        peers = {member: channel._connections.peers for member, (channel, _) in self.ends.items()}
        pairs = [(peers[one][other], peers[other][one]) for one in peers for other in peers[one].keys() & peers.keys()]
        return all(
            there.session and there.session._acknowledged == here.pair.outbound.acknowledged for here, there in pairs
        )

    def until(self, holds: Callable[[], bool]) -> None:
        self.world.until(holds)

    def rest(self) -> None:
        """Until nothing has happened for a while."""
        before: list[dict[str, int]] = []
        while before != (now := [channel.statistics() for channel, _ in self.ends.values()]):
            before = now
            self.world.pass_time(milliseconds(60))


class TestConformance(ChannelConformance):
    @pytest.fixture(
        params=[
            long("later"),
            "earlier",
            long("hub"),
            slow("later-keys"),
            slow("hub-keys"),
            slow("later-segments"),
            "earlier-keys-segments",
        ]
    )
    def ends(self, request: pytest.FixtureRequest, world: World) -> MakeEnds:
        who_dials, *has = request.param.split("-")
        return lambda window_bytes: WireEnds(
            world, window_bytes, who_dials, has_keys="keys" in has, has_desks="segments" in has
        )


# -- items -------------------------------------------------------------------------------------------------------------


def test_items_go_both_ways_though_only_one_side_listens(world: World) -> None:
    syncer, learner, _ = pair(world)
    before = listeners()
    item = {"x": floats(9, 2.5), "y": [(1, None), "text"], "z": np.arange(3, dtype=np.int8)}
    learner.send(SYNCER, 1, item)
    syncer.send(LEARNERS[0], 2, item, key="k", replaces=True)
    world.until(lambda: bool(syncer.items and learner.items))
    for end, source, edge, key in ((syncer, LEARNERS[0], 1, None), (learner, SYNCER, 2, "k")):
        ((sender, parcel),) = end.items
        assert (sender, parcel.edge, parcel.key, parcel.size_bytes) == (source, edge, key, 8)
        assert np.array_equal(parcel.item["x"], item["x"])
        assert parcel.item["y"] == item["y"]
        assert not parcel.item["x"].flags.writeable
    assert listeners() == before


def listeners() -> int:
    """TCP sockets of this process that listen."""
    return len(listening() & open_files())


def test_every_dtype_crosses(world: World) -> None:
    syncer, learner, _ = pair(world)
    arrays = [np.arange(30_000).astype(np.uint8).astype(dtype) for dtype in frames.DTYPES]
    learner.send(SYNCER, 1, arrays)
    world.until(lambda: bool(syncer.items))
    for sent, got in zip(arrays, syncer.got(1)[0], strict=True):
        assert (got.dtype, got.tobytes()) == (sent.dtype, sent.tobytes())


def test_an_array_of_one_chunk_is_a_view_of_what_came(world: World) -> None:
    syncer, learner, _ = pair(world)
    learner.send(SYNCER, 1, [floats(4), floats(4)])
    world.until(lambda: bool(syncer.items))
    for array in syncer.got(1)[0]:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        assert isinstance(owner.base, memoryview)
        assert owner.nbytes == CHUNK_BYTES


def test_what_is_sent_in_one_turn_goes_in_one_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    syncer, learner, _ = connected(world)
    sent: list[int] = []
    send = ZmqSocket.send

    def count(self: ZmqSocket, frames: Any) -> bool:
        sent.append(len(frames))
        return send(self, frames)

    monkeypatch.setattr(ZmqSocket, "send", count)
    world.pass_time(milliseconds(20))
    sent.clear()
    for i in range(100):
        learner.send(SYNCER, 1, [i, np.arange(4)])
    world.until(lambda: len(syncer.items) == 100)
    assert [item[0] for item in syncer.got(1)] == list(range(100))
    assert len(sent) <= 4  # The batch, its acknowledgement, and a heartbeat of each side.


def test_items_wait_for_a_peer_that_is_not_there_yet_and_the_older_of_a_mailbox_do_not(world: World) -> None:
    syncer, learner = world.end(SYNCER), world.end(LEARNERS[0])
    syncer.send(LEARNERS[0], 1, "unknown as yet")
    syncer.channel.expect(LEARNERS[0])
    for i in range(3):
        syncer.send(LEARNERS[0], 1, i)
        syncer.send(LEARNERS[0], 2, i, key="a", replaces=True)
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    world.until(lambda: len(learner.items) == 4)
    assert (learner.got(1), learner.got(2)) == ([0, 1, 2], [2])
    assert (syncer.count("superseded"), syncer.count("dropped")) == (2, 1)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_hosts_meet_over_ipv6(world: World) -> None:
    syncer, learner = world.end(SYNCER), world.end(LEARNERS[0])
    endpoints = syncer.channel.bind("tcp://[::1]:0")
    assert endpoints.control.startswith("tcp://[::1]:")
    learner.channel.connect(SYNCER, endpoints)
    syncer.channel.expect(LEARNERS[0])
    learner.send(SYNCER, 1, "over IPv6")
    world.until(lambda: syncer.got(1) == ["over IPv6"])


def test_item_credit_gets_to_the_producer(world: World) -> None:
    syncer, learner, cable = connected(world)
    syncer.channel.grant(LEARNERS[0], 7, 2)
    world.until(lambda: learner.credit[SYNCER, 7] == 2)
    cable.cut()
    syncer.channel.grant(LEARNERS[0], 7, 3)
    world.until(lambda: learner.credit[SYNCER, 7] == 5)


def test_a_receiver_that_pauses_stops_the_sender_at_the_window(world: World) -> None:
    limits = Limits(window_bytes=4 * CHUNK_BYTES)
    syncer, learner, cable = connected(world, limits)
    syncer.channel.pause()
    for i in range(20):
        learner.send(SYNCER, 1, floats(3, i))
    syncer.send(LEARNERS[0], 2, "other direction")
    world.until(lambda: bool(learner.items))
    world.pass_time(milliseconds(100))
    assert cable.carried <= 4 * CHUNK_BYTES
    assert syncer.items == []
    syncer.channel.resume()
    world.until(lambda: len(syncer.items) == 20)
    assert [item[0] for item in syncer.got(1)] == list(range(20))


def test_an_item_larger_than_the_window_arrives(world: World) -> None:
    syncer, learner, _ = connected(world, Limits(window_bytes=MIB))
    learner.send(SYNCER, 1, floats(40, 1.5))
    world.until(lambda: bool(syncer.items))
    assert np.all(syncer.got(1)[0] == 1.5)


def test_a_receiver_may_pause_and_resume_while_it_is_given_items(world: World) -> None:
    syncer, learner, _ = connected(world)
    arrived = syncer.item_arrived

    def fussy(source: Member, parcel: Parcel) -> None:
        arrived(source, parcel)
        syncer.channel.pause()
        if len(syncer.items) % 2:
            syncer.channel.resume()
        else:
            world.loop.call_soon(syncer.channel.resume)

    syncer.item_arrived = fussy  # type: ignore[method-assign]
    for i in range(10):
        learner.send(SYNCER, 1, i)
    world.until(lambda: len(syncer.items) == 10)
    assert syncer.got(1) == list(range(10))


def test_transfers_are_watched_and_counted(world: World) -> None:
    syncer, learner, _ = pair(world)
    learner.channel.send(SYNCER, Parcel(1, None, floats(1), None, 5, MIB, encode(floats(1))), replaces=False)
    world.until(lambda: bool(learner.transfers))
    ((edge, source, target, size_bytes, begun, ended),) = learner.transfers
    assert (edge, source, target, size_bytes) == (1, LEARNERS[0], SYNCER, MIB)
    assert 0 < begun <= ended <= world.clock.now()
    assert (learner.count("items_sent"), learner.count("bytes_sent")) == (1, MIB)
    assert (syncer.count("items_received"), syncer.count("bytes_received")) == (1, MIB)
    assert syncer.items[0][1].digest == 5


def test_small_items_are_not_answered_one_by_one_and_their_arrival_is_known_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncer, learner, _ = connected(world, SILENT)
    world.until(lambda: both_live(syncer, learner))
    said = control_messages(monkeypatch)
    for number in range(60):
        learner.send(SYNCER, 1, number)
        syncer.send(LEARNERS[0], 1, number)
        world.until(lambda: len(syncer.items) == len(learner.items) == number + 1)  # noqa: B023
        if number == 0:
            world.pass_time(milliseconds(100))
    assert len(said) < 10  # A few on a machine so busy that no item of the other's goes out in time; not one for each.
    syncer.channel.grant(LEARNERS[0], 1, 1)
    world.until(lambda: len(learner.transfers) == 60)
    begun, ended = ([transfer[at] for transfer in learner.transfers] for at in (4, 5))
    assert ended == sorted(ended)
    assert all(first <= last for first, last in zip(begun, ended, strict=True))
    assert ended[1] - ended[0] >= milliseconds(99)
    assert len(said) == 1


def test_an_acknowledgement_waits_for_the_heartbeat_and_no_longer(world: World) -> None:
    syncer, learner, _ = connected(world, PATIENT)
    learner.send(SYNCER, 1, "small")
    world.until(lambda: bool(learner.transfers))
    assert not learner.channel._connections.peers[SYNCER].pair.outbound.kept
    assert syncer.got(1) == ["small"]


@pytest.mark.parametrize("window_bytes", [16 << 10, 128 << 10, 5 * MIB, 8 * MIB])
def test_no_window_is_so_small_that_anything_waits_for_a_heartbeat(world: World, window_bytes: int) -> None:
    syncer, learner, _ = connected(world, SILENT._replace(window_bytes=window_bytes))
    for number in range(40):
        learner.send(SYNCER, 1, [number, np.zeros((0, 100, 60_000, 3 * MIB)[number % 4], np.uint8)])
        if number % 3 == 0:
            world.until(lambda: len(syncer.items) == number + 1)  # noqa: B023
    world.until(lambda: len(syncer.items) == 40)
    assert [number for number, _ in syncer.got(1)] == list(range(40))


def both_live(*ends: End) -> bool:
    """Whether every connection is live, with nothing left to say."""
    peers = [peer for end in ends for peer in end.channel._connections.peers.values()]
    return all(peer.session and peer.session.phase == "live" and not peer.session.has_more() for peer in peers)


def control_messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Everything that is said on control sockets from now on."""
    said: list[bytes] = []
    for kind in (DialledLink, AcceptedLink):
        send = kind.send_control

        def note(self: Any, message: bytes, send: Any = send) -> bool:
            said.append(message)
            return bool(send(self, message))

        monkeypatch.setattr(kind, "send_control", note)
    return said


def test_nothing_keeps_an_item_that_was_acknowledged(world: World) -> None:
    _, learner, _ = connected(world)
    array = floats(2)
    gone = weakref.ref(array)
    learner.send(SYNCER, 1, {"x": array})
    del array
    world.until(lambda: bool(learner.transfers) and gone() is None)


def test_a_higher_snapshot_number_is_told_before_its_item(world: World) -> None:
    syncer, learner, _ = connected(world)
    for learner.channel.snapshot in (0, 1, 2):
        learner.send(SYNCER, 1, learner.channel.snapshot)
    syncer.channel.snapshot = 1
    world.until(lambda: len(syncer.items) == 3)
    assert syncer.snapshots == [(LEARNERS[0], 2)]


def test_an_item_that_no_wire_can_carry_is_refused_where_it_is_sent(world: World) -> None:
    syncer, learner, _ = connected(world)
    with pytest.raises(LocalProtocolError, match="complex256"):
        learner.send(SYNCER, 1, np.zeros(3, np.clongdouble))
    with pytest.raises(LocalProtocolError, match="is itself"):
        learner.channel.expect(LEARNERS[0])
    learner.send(SYNCER, 1, 1)
    world.until(lambda: syncer.got(1) == [1])
