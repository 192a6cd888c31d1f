"""The ZeroMQ channel on loopback: real sockets, cables that are cut, peers that come and go."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.runtime import frames
from isthmus.runtime.channel import Channel, Parcel
from isthmus.runtime.clock import milliseconds, seconds
from isthmus.runtime.errors import ConfigError, LocalProtocolError
from isthmus.runtime.frames import CHUNK_BYTES
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.links import Endpoints
from isthmus.runtime.peers import Limits
from isthmus.runtime.sockets import Socket
from isthmus.runtime.wire import ZmqChannel
from tests.runtime.cables import LEARNERS, SYNCER, Cable, End, World
from tests.runtime.channel_conformance import ChannelConformance, Ends, MakeEnds, Recorder

MIB = 1 << 20
HUB = Member(Replica("hub", 0), 1)
HASTY = Limits(
    heartbeat=milliseconds(50), silence_max=milliseconds(600), handshake_max=milliseconds(600),
    retry_min=milliseconds(10), retry_max=milliseconds(100),
)  # fmt: skip


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def pair(world: World, limits: Limits | None = None) -> tuple[End, End, Cable]:
    """A syncer that listens, a learner that dials it, and the cable between them."""
    syncer, learner = world.end(SYNCER, limits), world.end(LEARNERS[0], limits)
    cable = world.cable(syncer.channel.bind("tcp://127.0.0.1:0"))
    syncer.channel.expect(LEARNERS[0])
    learner.channel.connect(SYNCER, cable.endpoints)
    return syncer, learner, cable


def connected(world: World, limits: Limits | None = None) -> tuple[End, End, Cable]:
    syncer, learner, cable = pair(world, limits)
    world.until(lambda: bool(syncer.ups and learner.ups))
    return syncer, learner, cable


def floats(mib: int, fill: float = 0.0) -> Any:
    return np.full(mib * MIB // 4, fill, np.float32)


# -- the contract ------------------------------------------------------------------------------------------------------


class WireEnds(Ends):
    """Channels on loopback. Of two, the `later` or the earlier dials, or both dial a `hub` that relays."""

    def __init__(self, world: World, window_bytes: int, who_dials: str) -> None:
        self.world = world
        self.who_dials = who_dials
        self.limits = HASTY._replace(window_bytes=window_bytes, relay_window_bytes=window_bytes)
        self.ends: dict[Member, tuple[ZmqChannel, Endpoints]] = {}
        self.hub = world.end(HUB, HASTY) if who_dials == "hub" else None
        self.at_hub = self.hub.channel.bind("tcp://127.0.0.1:0") if self.hub else None

    def join(self, member: Member, receiver: Recorder | None) -> Channel:
        made = self.world.channel(member, self.limits)
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
        self.ends.pop(member)[0].close()
        for channel, _ in self.ends.values():
            channel.forget(member)

    def until(self, holds: Callable[[], bool]) -> None:
        self.world.until(holds)

    def rest(self) -> None:
        """Until nothing has happened for a while."""
        before: list[dict[str, int]] = []
        while before != (now := [channel.statistics() for channel, _ in self.ends.values()]):
            before = now
            self.world.pass_time(milliseconds(60))


class TestConformance(ChannelConformance):
    @pytest.fixture(params=["later", "earlier", "hub"])
    def ends(self, request: pytest.FixtureRequest, world: World) -> MakeEnds:
        return lambda window_bytes: WireEnds(world, window_bytes, request.param)


# -- items -------------------------------------------------------------------------------------------------------------


def test_items_go_both_ways_though_only_one_side_listens(world: World) -> None:
    syncer, learner, _ = pair(world)
    listening = listeners()
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
    assert listeners() == listening


def listeners() -> int:
    """TCP sockets of this process that listen."""
    inodes = {
        line.split()[9]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    own = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    return sum(f"socket:[{inode}]" in own for inode in inodes)


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
    send = Socket.send

    def count(self: Socket, frames: Any) -> bool:
        sent.append(len(frames))
        return send(self, frames)

    monkeypatch.setattr(Socket, "send", count)
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
    learner.channel.send(SYNCER, Parcel(1, None, floats(1), None, 5, MIB), replaces=False)
    world.until(lambda: bool(learner.transfers))
    ((edge, source, target, size_bytes, begun, ended),) = learner.transfers
    assert (edge, source, target, size_bytes) == (1, LEARNERS[0], SYNCER, MIB)
    assert 0 < begun <= ended <= world.clock.now()
    assert (learner.count("items_sent"), learner.count("bytes_sent")) == (1, MIB)
    assert (syncer.count("items_received"), syncer.count("bytes_received")) == (1, MIB)
    assert syncer.items[0][1].digest == 5


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


# -- connections end ---------------------------------------------------------------------------------------------------


def test_after_every_cut_what_is_missing_is_sent_again_and_nothing_twice(world: World) -> None:
    syncer, learner, cable = connected(world, HASTY)
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


def test_a_silent_cable_is_given_up_and_what_it_held_is_sent_again(world: World) -> None:
    syncer, learner, cable = connected(world, HASTY)
    cable.stall("control", "data")
    learner.send(SYNCER, 1, "held")
    world.until(lambda: bool(syncer.losses and learner.losses))
    assert {reason for _, reason in learner.losses} == {"silent for 0.6 s"}
    cable.stall()
    world.until(lambda: syncer.got(1) == ["held"])
    assert learner.ups == [SYNCER] * 2


def test_a_heartbeat_never_waits_for_a_fragment(world: World) -> None:
    syncer, learner, cable = connected(world, HASTY)
    cable.stall("data")
    learner.send(SYNCER, 1, floats(30))
    syncer.channel.grant(LEARNERS[0], 3, 1)
    world.pass_time(seconds(1.5))
    assert learner.credit[SYNCER, 3] == 1
    assert (syncer.losses, learner.losses) == ([], [])
    cable.stall()
    world.until(lambda: bool(syncer.items))


def test_a_process_that_was_stopped_does_not_blame_its_peers(world: World) -> None:
    syncer, learner, _ = connected(world, HASTY)
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
        learner = world.end(LEARNERS[0], HASTY)
        learner.channel.connect(SYNCER, endpoints)
        learner.send(SYNCER, 1, "patience")
        world.until(lambda: bool(learner.losses))
        world.pass_time(milliseconds(300))
        assert learner.losses == [(SYNCER, "disconnected")]
    syncer = world.end(SYNCER, HASTY)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learner.channel.connect(SYNCER, where)
    world.until(lambda: syncer.got(1) == ["patience"])


def test_a_peer_that_accepts_and_says_nothing_is_given_up(world: World) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        endpoint = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        learner = world.end(LEARNERS[0], HASTY)
        learner.channel.connect(SYNCER, Endpoints(endpoint, endpoint))
        world.until(lambda: bool(learner.losses))
    assert learner.losses == [(SYNCER, "silent for 0.6 s")]
    assert learner.ups == []


def test_nothing_comes_from_or_goes_to_a_member_that_was_forgotten(world: World) -> None:
    syncer, learner, _ = connected(world, HASTY)
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
    later = world.end(Member(LEARNERS[0].replica, 2), HASTY)
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
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum(name.startswith("ZMQbg/IO") for name in names)


# -- who is welcome ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"run": "another"}, "run"), ({"fingerprint": "another"}, "fingerprint")],
)
def test_a_host_of_another_run_is_told_why_it_is_refused(world: World, changes: dict[str, str], reason: str) -> None:
    syncer, learner = world.end(SYNCER, HASTY), world.end(LEARNERS[0], HASTY, **changes)
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    world.until(lambda: syncer.count(f"refused_{reason}") >= 2)
    assert len(learner.losses) == 1
    assert learner.losses[0][1].startswith(f"refused by the peer ({reason}: ")
    assert syncer.ups == syncer.losses == []


def test_a_peer_of_an_earlier_life_at_the_same_place_is_refused(world: World) -> None:
    syncer, learner = world.end(Member(SYNCER.replica, 2), HASTY), world.end(LEARNERS[0], HASTY)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learner.channel.connect(SYNCER, where)
    world.until(lambda: bool(learner.losses))
    assert "looks for syncer/0#1; this is syncer/0#2" in learner.losses[0][1]
    learner.channel.forget(SYNCER)
    learner.channel.connect(Member(SYNCER.replica, 2), where)
    world.until(lambda: bool(learner.ups))


def test_there_are_not_more_peers_than_allowed(world: World) -> None:
    syncer = world.end(SYNCER, HASTY._replace(peers_max=2))
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learners = [world.end(member, HASTY) for member in LEARNERS[:3]]
    for learner in learners:
        learner.channel.connect(SYNCER, where)
        world.until(lambda: len(syncer.ups) == 2 or syncer.count("refused_crowd") > 0 or bool(syncer.ups))
    world.until(lambda: len(syncer.ups) == 2 and syncer.count("refused_crowd") > 0)
    with pytest.raises(LocalProtocolError, match="2 peers are known"):
        syncer.channel.expect(LEARNERS[3])


def test_of_two_that_dial_each_other_one_connection_stays(world: World) -> None:
    one, other = world.end(LEARNERS[0], HASTY), world.end(LEARNERS[1], HASTY)
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
    with socket.socket() as first, socket.socket() as second:
        while True:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                break
            except OSError:
                first.close()
    endpoints = syncer.channel.bind(f"tcp://127.0.0.1:{port}")
    assert endpoints == (f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}")


# -- relayed peers -----------------------------------------------------------------------------------------------------


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


def test_two_that_only_dial_talk_through_a_third(world: World) -> None:
    syncer, (one, other), _ = relayed(world, HASTY)
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


def test_a_relayed_pair_survives_the_loss_of_either_way(world: World) -> None:
    _, (one, other), cables = relayed(world, HASTY)
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
    syncer, learner = world.end(SYNCER, HASTY), world.end(LEARNERS[0], HASTY)
    where = syncer.channel.bind("tcp://127.0.0.1:0")
    learner.channel.connect(SYNCER, where)
    learner.channel.relay(LEARNERS[1], SYNCER)
    learner.send(LEARNERS[1], 1, "hello")
    world.until(lambda: (LEARNERS[1], "unreachable through syncer/0#1") in learner.losses)
    late = world.end(LEARNERS[1], HASTY)
    late.channel.connect(SYNCER, where)
    world.until(lambda: bool(late.ups))
    late.channel.relay(LEARNERS[0], SYNCER)
    world.until(lambda: late.got(1) == ["hello"])


def test_a_relayed_receiver_that_pauses_stops_its_sender_and_nobody_else(world: World) -> None:
    limits = HASTY._replace(relay_window_bytes=2 * CHUNK_BYTES)
    syncer, (one, other), cables = relayed(world, limits)
    world.until(lambda: LEARNERS[1] in one.ups and LEARNERS[0] in other.ups)
    one.losses.clear()
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
    syncer, (one, other), _ = relayed(world, HASTY)
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
