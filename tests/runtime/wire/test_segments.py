"""Items between hosts of one machine in shared memory: what goes there, what comes back, and what a peer cannot do."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import resource
import socket
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from isthmus.runtime.channels.conformance import same
from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.items.encoding import Encoded, encode
from isthmus.runtime.items.layout import CHUNK_BYTES, RefusalError
from isthmus.runtime.system import mappings
from isthmus.runtime.wire import protocol_messages, segment_links, segments
from isthmus.runtime.wire.protocol_credit import Intake
from isthmus.runtime.wire.protocol_messages import PiecePlace
from isthmus.runtime.wire.protocol_transfers import Inbound, Incoming, ParcelsArrived
from isthmus.runtime.wire.segment_links import (
    GIVE_BACK,
    IDLE_PAGES_MAX,
    LEND,
    NAME_PREFIX,
    PACKET,
    RETIRE,
    SPOIL,
    SegmentDesk,
    SegmentLink,
)
from isthmus.runtime.wire.segments import (
    FREE_BYTES_MAX,
    SEALS_MIN,
    SEGMENTS_MAX,
    LodgedItem,
    SegmentPool,
    SharedSegment,
    large_arrays,
    layout,
)
from tests.patience import PATIENCE
from tests.runtime.wire.cables import LEARNERS, MIB, SYNCER, End, World, floats
from tests.runtime.wire.siege import Siege, Stranger, record, stranger

TOKEN = b"t" * 16


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def neighbours(world: World, bytes_max: int | None = None, learners: int = 1) -> tuple[End, list[End]]:
    """A syncer and learners that dial it, all on this machine, once they are up."""
    syncer = world.end(SYNCER, desk=SegmentDesk(bytes_max))
    endpoints = syncer.channel.bind("tcp://127.0.0.1:0")
    ends = [world.end(member, desk=SegmentDesk(bytes_max)) for member in LEARNERS[:learners]]
    for end in ends:
        end.channel.connect(SYNCER, endpoints)
    world.until(lambda: len(syncer.ups) == learners and all(end.ups for end in ends))
    return syncer, ends


def link_of(end: End, peer: End) -> SegmentLink:
    session = end.channel._connections.peers[peer.member].session
    assert session is not None
    assert isinstance(session.lending, SegmentLink)
    return session.lending


def pool_of(end: End) -> SegmentPool:
    assert end.channel._desk is not None
    return end.channel._desk._pool


def segments_of(end: End) -> list[SharedSegment]:
    return list(pool_of(end)._segments.values())


def settled(world: World, end: End, peer: End) -> Callable[[], bool]:
    """Whether a peer has given back all that an end has lent."""

    def holds() -> bool:
        link_of(end, peer).settle()
        return all(not each.holders for each in segments_of(end))

    return holds


# -- what goes there ---------------------------------------------------------------------------------------------------


def test_a_large_item_goes_there_in_both_directions_and_a_small_one_does_not(world: World) -> None:
    syncer, [learner] = neighbours(world)
    item = {
        "codes": np.arange(3 * MIB, dtype=np.uint32),
        "scales": np.arange(2000.0),
        "round": 7,
        "more": floats(1, 2.0),
    }
    learner.send(SYNCER, 1, item)
    syncer.send(LEARNERS[0], 1, item)
    learner.send(SYNCER, 1, {"x": np.arange(9)})
    learner.send(SYNCER, 1, {"x": np.zeros(100_000, np.uint8)})
    world.until(lambda: len(syncer.items) == 3 and len(learner.items) == 1)
    assert same(syncer.got(1)[0], item)
    assert same(learner.got(1)[0], item)
    for end in (syncer, learner):
        assert (end.count("items_lent"), end.count("items_unlent")) == (1, 0)
    lent = syncer.got(1)[0]
    assert not lent["codes"].flags.writeable
    assert lent["codes"].ctypes.data % 64 == lent["more"].ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        lent["codes"].setflags(write=True)


def crossed(with_desks: bool) -> list[tuple[int, int, int]]:
    world = World()
    try:
        syncer, [learner] = neighbours(world) if with_desks else apart(world)
        for number in range(5):
            learner.send(SYNCER, 1, {"number": number, "x": floats(5, number)})
        world.until(lambda: len(syncer.items) == len(learner.transfers) == 5)
        ends = [(learner, SYNCER, "sent"), (syncer, LEARNERS[0], "received")]
        ways = [getattr(end.channel._connections.peers[peer].pair.crossed, way) for end, peer, way in ends]
        assert bool(learner.count("items_lent")) == with_desks
        return [(way.edges[1].count, way.edges[1].size_bytes, way.framing_bytes) for way in ways]
    finally:
        world.close()


def apart(world: World) -> tuple[End, list[End]]:
    syncer, learner = world.end(SYNCER), world.end(LEARNERS[0])
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    world.until(lambda: bool(syncer.ups and learner.ups))
    return syncer, [learner]


def test_what_has_crossed_is_counted_as_if_it_had_gone_by_tcp() -> None:
    plain, lent = crossed(with_desks=False), crossed(with_desks=True)
    assert [each[:2] for each in lent] == [each[:2] for each in plain]
    assert all(abs(one[2] - other[2]) < 1000 for one, other in zip(lent, plain, strict=True))


def test_an_item_for_several_peers_is_there_once(world: World) -> None:
    syncer, learners = neighbours(world, learners=3)
    item = {"x": floats(9, 3.0)}
    encoded = encode(item)
    for learner in learners:
        syncer.channel.send(learner.member, Parcel(1, None, item, None, 0, 8, encoded), replaces=False)
    world.until(lambda: all(learner.items for learner in learners))
    [segment] = segments_of(syncer)
    assert sum(segment.holders.values()) == 3
    assert all(same(learner.got(1)[0], item) for learner in learners)
    for learner in learners:
        learner.items.clear()
    world.until(lambda: all(settled(world, syncer, each)() for each in learners))
    assert segment.is_free


def test_a_segment_that_was_given_back_is_written_again(world: World) -> None:
    syncer, [learner] = neighbours(world)
    seen = []
    for number in range(6):
        learner.send(SYNCER, 1, {"x": floats(5, number)})
        world.until(lambda: bool(syncer.items))
        seen.append(float(syncer.got(1)[0]["x"].max()))
        syncer.items.clear()
        world.until(settled(world, learner, syncer))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert [each.number for each in segments_of(learner)] == [1]


def read_pages() -> int:
    """Bytes of segments of others that count as this process's: each end of a link maps them, one to read alone."""
    gc.collect()
    total, is_borrowed = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            is_borrowed = values[0] == "r--s" and "/memfd:isthmus-" in line
        elif is_borrowed and name == "Rss:":
            total += int(values[0]) << 10
    return total


def test_what_was_read_of_other_peers_counts_no_more(world: World) -> None:
    before = read_pages()  # Of views that other tests have left.
    syncer, learners = neighbours(world, learners=3)
    size = 8

    def take(learner: End, value: float) -> None:
        learner.send(SYNCER, 1, {"x": floats(size, value)})
        world.until(lambda: bool(syncer.items))
        assert np.all(syncer.got(1)[0]["x"] == value)
        syncer.items.clear()
        world.until(settled(world, learner, syncer))

    for _ in range(2):  # Its segment is read again.
        for number, learner in enumerate(learners):
            take(learner, number)
    # Those of the link that was read last, and as much of the others.
    assert 0 < read_pages() - before <= (size + 1) * MIB + IDLE_PAGES_MAX
    for number in range(4):
        take(learners[0], number)
    assert 0 < read_pages() - before <= (size + 1) * MIB + IDLE_PAGES_MAX


def test_a_view_keeps_its_segment(world: World) -> None:
    syncer, [learner] = neighbours(world)
    learner.send(SYNCER, 1, {"x": floats(2, 1.0), "y": floats(1, 2.0)})
    world.until(lambda: bool(syncer.items))
    anchor = syncer.got(1)[0]["x"][1000:2000].reshape(10, 100)
    syncer.items.clear()
    for number in range(3, 6):
        learner.send(SYNCER, 1, {"x": floats(3, number)})
        world.until(lambda: bool(syncer.items))
        syncer.items.clear()
    assert np.all(anchor == 1.0)
    assert not settled(world, learner, syncer)()
    del anchor
    world.until(settled(world, learner, syncer))


def test_a_sender_without_a_free_segment_sends_by_tcp(world: World) -> None:
    syncer, [learner] = neighbours(world, bytes_max=3 * MIB)
    for number in range(5):
        learner.send(SYNCER, 1, {"number": number, "x": floats(2, number)})
    world.until(lambda: len(syncer.items) == 5)
    assert (learner.count("items_lent"), learner.count("items_unlent")) == (1, 4)
    assert all(np.all(item["x"] == item["number"]) for item in syncer.got(1))
    syncer.items.clear()
    world.until(settled(world, learner, syncer))
    learner.send(SYNCER, 1, {"x": floats(2, 9.0)})
    world.until(lambda: bool(syncer.items))
    assert learner.count("items_lent") == 2


def test_a_peer_that_reads_no_descriptors_gets_items_by_tcp(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    syncer, [learner] = neighbours(world)

    def full(*arguments: Any) -> int:
        raise BlockingIOError

    monkeypatch.setattr(socket, "send_fds", full)
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: bool(syncer.items))
    assert learner.count("items_unlent") == 1
    assert not segments_of(learner)[0].holders


def test_a_system_without_anonymous_memory_sends_by_tcp(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "_create", None)
    syncer, [learner] = neighbours(world)
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: bool(syncer.items))
    assert (learner.count("items_lent"), learner.count("items_unlent")) == (0, 1)


OLD = """
import fcntl, os
for module, beginnings in ((os, ("memfd_", "MFD_")), (fcntl, ("F_SEAL_", "F_ADD_SEALS", "F_GET_SEALS"))):
    for name in dir(module):
        if name.startswith(beginnings):
            delattr(module, name)
from isthmus.runtime.wire.segment_links import SegmentDesk
from tests.runtime.wire.cables import LEARNERS, SYNCER, World, floats
world = World()
syncer, learner = world.end(SYNCER, desk=SegmentDesk()), world.end(LEARNERS[0], desk=SegmentDesk())
learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
world.until(lambda: bool(syncer.ups and learner.ups))
learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
world.until(lambda: bool(syncer.items))
print(learner.count("items_lent"))
world.close()
"""


@pytest.mark.process
def test_a_python_that_was_built_with_an_old_c_library_shares_memory() -> None:
    assert subprocess.run([sys.executable, "-c", OLD], check=True, capture_output=True, text=True).stdout == "1\n"


@pytest.mark.slow
def test_what_lies_unused_is_bounded_and_its_memory_is_given_up(world: World) -> None:
    syncer, [learner] = neighbours(world)
    count = FREE_BYTES_MAX // (40 * MIB) + 2
    for number in range(count):
        learner.send(SYNCER, 1, {"x": floats(40, number)})
    world.until(lambda: len(syncer.items) == count)
    syncer.items.clear()
    world.until(settled(world, learner, syncer))
    assert 0 < sum(each.size_bytes for each in segments_of(learner)) <= FREE_BYTES_MAX
    world.until(lambda: mapped() == 2 * len(segments_of(learner)))


@pytest.mark.slow
def test_what_no_item_takes_for_long_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    syncer, [learner] = neighbours(world)
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: len(syncer.items) == 1)
    monkeypatch.setattr(segments, "IDLE_SECONDS", 0.0)
    learner.send(SYNCER, 1, {"x": floats(2, 2.0)})
    world.until(lambda: len(syncer.items) == 2)
    assert len(segments_of(learner)) == 2  # Both are held, so none is idle.
    syncer.items.clear()
    world.until(settled(world, learner, syncer))
    world.until(lambda: not segments_of(learner) and not mapped())


def test_what_lies_unused_is_given_up_after_the_last_peer_has_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncer, [learner] = neighbours(world)
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: len(syncer.items) == 1)
    syncer.items.clear()
    world.until(settled(world, learner, syncer))
    syncer.channel.close()
    world.until(lambda: bool(learner.losses))
    assert [each.is_free for each in segments_of(learner)] == [True]
    monkeypatch.setattr(segments, "IDLE_SECONDS", 0.0)
    world.until(lambda: not segments_of(learner) and not mapped())


# -- deaths and connections --------------------------------------------------------------------------------------------


def mapped() -> int:
    """Segments that this process maps, each side of it."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        return sum("/memfd:isthmus-" in line for line in maps)


def open_segments() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "memfd:isthmus-" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # That of the listing.
            continue
    return found


def test_nothing_that_is_read_is_written_after_a_connection_was_lost(world: World) -> None:
    syncer = world.end(SYNCER, desk=SegmentDesk())
    learner = world.end(LEARNERS[0], desk=SegmentDesk())
    cable = world.cable(syncer.channel.bind("tcp://127.0.0.1:0"))
    learner.channel.connect(SYNCER, cable.endpoints)
    world.until(lambda: bool(syncer.ups and learner.ups))
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: bool(syncer.items and learner.transfers))
    before = segments_of(learner)
    cable.cut()
    world.until(lambda: len(syncer.ups) == len(learner.ups) == 2)
    for number in range(2, 5):
        learner.send(SYNCER, 1, {"x": floats(2, number)})
    world.until(lambda: len(syncer.items) == 4)
    assert [float(item["x"].min()) for item in syncer.got(1)] == [1, 2, 3, 4]
    assert learner.count("items_lent") == 4
    assert not {each.number for each in before} & {each.number for each in segments_of(learner)}


def test_an_item_that_a_cut_connection_left_half_sent_arrives_whole(world: World) -> None:
    syncer = world.end(SYNCER, desk=SegmentDesk())
    learner = world.end(LEARNERS[0], desk=SegmentDesk())
    cable = world.cable(syncer.channel.bind("tcp://127.0.0.1:0"))
    learner.channel.connect(SYNCER, cable.endpoints)
    world.until(lambda: bool(syncer.ups and learner.ups))
    cable.stall("data")
    item = {"x": np.arange(6 * MIB, dtype=np.int32)}
    learner.send(SYNCER, 1, item)
    world.until(lambda: learner.count("items_sent") == 1)
    cable.cut()
    cable.stall()
    world.until(lambda: bool(syncer.items))
    assert same(syncer.got(1)[0], item)
    assert learner.count("items_lent") == 2


@pytest.mark.slow
def test_nothing_is_left_when_either_side_has_ended(world: World) -> None:
    assert (mapped(), open_segments()) == (0, 0)
    syncer, [learner] = neighbours(world)
    learner.send(SYNCER, 1, {"x": floats(3, 1.0)})
    syncer.send(LEARNERS[0], 1, {"x": floats(3, 2.0)})
    world.until(lambda: bool(syncer.items and learner.items))
    assert (mapped(), open_segments()) == (4, 2)
    learner.channel.close()
    kept = syncer.got(1)[0]["x"]
    world.until(lambda: bool(syncer.losses))
    learner.items.clear()
    assert np.all(kept == 1.0)
    assert not segments_of(syncer)
    world.until(lambda: (mapped(), open_segments()) == (1, 0))  # The one that has closed is still in its last callback.
    del kept
    syncer.items.clear()
    world.until(lambda: (mapped(), open_segments()) == (0, 0))


@pytest.mark.slow
def test_an_item_that_waits_for_a_peer_that_has_gone_keeps_no_segment(world: World) -> None:
    syncer = world.end(SYNCER, desk=SegmentDesk())
    learner = world.end(LEARNERS[0], desk=SegmentDesk())
    cable = world.cable(syncer.channel.bind("tcp://127.0.0.1:0"))
    learner.channel.connect(SYNCER, cable.endpoints)
    world.until(lambda: bool(syncer.ups and learner.ups))
    cable.stall("control")  # What has arrived is not acknowledged.
    syncer.send(LEARNERS[0], 1, {"x": floats(3, 2.0)})
    world.until(lambda: bool(learner.items))
    learner.items.clear()
    cable.is_down = True
    cable.cut()
    world.until(lambda: not segments_of(syncer))
    assert not syncer.transfers
    world.until(lambda: (mapped(), open_segments()) == (0, 0))


CHILD = """
import os, sys
import numpy as np
import uvloop
from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.wire.segment_links import SegmentDesk
from tests.runtime.wire.cables import LEARNERS, SYNCER, World, floats
world = World()
end = world.end(LEARNERS[0], desk=SegmentDesk())
end.channel.connect(SYNCER, Endpoints(*sys.argv[1:3]))
for number in range(int(sys.argv[3])):
    end.send(SYNCER, 1, {"number": number, "x": floats(2, number)})
world.until(lambda: len(end.transfers) == int(sys.argv[3]))
world.until(lambda: bool(end.items))
print(end.count("items_lent"), flush=True)
world.until(lambda: False)
"""


@pytest.mark.process
def test_a_process_that_is_killed_leaves_views_as_they_were_and_nothing_else(world: World) -> None:
    syncer = world.end(SYNCER, desk=SegmentDesk())
    endpoints = syncer.channel.bind("tcp://127.0.0.1:0")
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *endpoints[:2], "3"], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            world.until(lambda: len(syncer.items) == 3)
            syncer.send(LEARNERS[0], 1, {"x": floats(2, 7.0)})
            world.until(lambda: bool(syncer.transfers))
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "3"
            assert [each.number for each in segments_of(syncer)] == [1]
        finally:
            child.kill()
    world.until(lambda: bool(syncer.losses))
    assert all(np.all(item["x"] == item["number"]) for item in syncer.got(1))
    assert segments_of(syncer) == []
    assert mapped() == 3
    syncer.items.clear()
    assert mapped() == 0


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Of jax, where a test before this one has imported it.
def test_a_segment_of_which_a_fork_may_have_a_view_is_not_written_again(world: World) -> None:
    syncer, [learner] = neighbours(world)
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: bool(syncer.items))
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    syncer.items.clear()
    world.until(settled(world, learner, syncer))
    assert segments_of(learner) == []
    learner.send(SYNCER, 1, {"x": floats(2, 2.0)})
    world.until(lambda: bool(syncer.items))
    assert [each.number for each in segments_of(learner)] == [2]


BEFORE_FORK = """
import os, socket
from collections import Counter
leases = []
os.register_at_fork(before=lambda: leases.append(borrower.lease_of(1)))  # The hook that is registered first runs last.
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.wire.segment_links import SegmentLink
from isthmus.runtime.wire.segments import SegmentPool
from tests.runtime.wire.cables import floats
pool = SegmentPool()
lender, borrower = (SegmentLink(end, pool, Counter()) for end in socket.socketpair(1, socket.SOCK_SEQPACKET))
encoded = encode(floats(1))
[segment] = lender.lodge(encoded).segments
if not os.fork():
    os._exit(0)
os.wait()
leases.clear()
borrower.settle()
lender.settle()
print(segment.is_spoilt)
"""


@pytest.mark.process
def test_what_is_borrowed_while_a_fork_begins_is_in_the_fork() -> None:
    assert (
        subprocess.run([sys.executable, "-c", BEFORE_FORK], check=True, capture_output=True, text=True).stdout
        == "True\n"
    )


# -- who shares --------------------------------------------------------------------------------------------------------


def test_a_peer_of_another_account_is_reached_by_tcp(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    syncer, learner = world.end(SYNCER, desk=SegmentDesk()), world.end(LEARNERS[0], desk=SegmentDesk())
    learner.channel.connect(SYNCER, syncer.channel.bind("tcp://127.0.0.1:0"))
    learner.send(SYNCER, 1, {"x": floats(2, 1.0)})
    world.until(lambda: bool(syncer.items))
    assert (learner.count("desk_unreached"), syncer.count("desk_unreached")) == (1, 1)
    assert learner.count("items_lent") == 0


@pytest.mark.parametrize("lender", ["learner", "syncer"])
def test_a_peer_that_cannot_map_what_it_is_lent_gets_items_by_tcp(
    world: World, lender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def map_shared(*arguments: Any, **more: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    syncer, [learner] = neighbours(world)
    syncer.channel.expect(LEARNERS[0])
    source, target = (learner, syncer) if lender == "learner" else (syncer, learner)
    monkeypatch.setattr(segment_links, "map_shared", map_shared)
    for number in range(3):
        source.send(target.member, 1, {"number": number, "x": floats(2, number)})
    world.until(lambda: len(target.items) == 3)
    assert all(np.all(item["x"] == item["number"]) for item in target.got(1))
    assert (target.count("refused_memory"), len(target.ups)) == (1, 2)
    world.until(lambda: len(source.transfers) == 3)
    world.until(lambda: not segments_of(source) and not mapped())


def test_a_desk_that_is_not_reached_and_one_of_another_machine_are_told_apart() -> None:
    here, there = SegmentDesk(), SegmentDesk()
    address = there.address
    there.close()
    assert here.call(address, TOKEN) is None
    assert here.counts["desk_unreached"] == 1
    assert here.call(f"other/{NAME_PREFIX}x", TOKEN) is None
    assert here.call(address.partition("/")[0] + "/somebody", TOKEN) is None
    assert here.call(address.partition("/")[0] + f"/{NAME_PREFIX}\ud800", TOKEN) is None
    assert here.counts["desk_unreached"] == 2
    here.close()


def test_only_the_token_of_the_session_opens_a_connection() -> None:
    here, there = SegmentDesk(), SegmentDesk()
    link = there.call(here.address, TOKEN)
    assert link is not None
    assert here.answer(there.address, b"u" * 16) is None
    mine = here.answer(there.address, TOKEN)
    assert mine is not None
    assert here.answer(there.address, TOKEN) is None
    for each in (link, mine, here, there):
        each.close()


def test_a_connection_whose_session_never_came_up_is_dismissed_once_it_has_ended() -> None:
    here, there = SegmentDesk(), SegmentDesk()
    early, later = there.call(here.address, TOKEN), there.call(here.address, b"u" * 16)
    assert here.answer(there.address, b"v" * 16) is None
    assert early is not None
    early.close()
    assert here.answer(there.address, b"v" * 16) is None
    assert list(here._waiting.values()) == [b"u" * 16]
    assert later is not None
    mine = here.answer(there.address, b"u" * 16)
    assert mine is not None
    for each in (later, mine, here, there):
        each.close()


def test_a_connection_that_ended_before_its_session_was_up_keeps_nothing() -> None:
    here, there = SegmentDesk(), SegmentDesk()
    link = there.call(here.address, TOKEN)
    assert link is not None
    assert link.lodge(encode(floats(2))) is not None
    here.tidy()
    assert list(here._waiting.values()) == [TOKEN]
    link.close()
    there.close()
    here.tidy()
    assert not here._waiting
    here.close()


def test_strangers_at_a_desk_are_few_and_harm_nobody() -> None:
    here, there = SegmentDesk(), SegmentDesk()
    name = "\0" + here.address.partition("/")[2]
    strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(40)]
    for number, each in enumerate(strangers):
        each.connect(name)
        if number % 2:
            each.send(b"x" * (number + 1))
    link = there.call(here.address, TOKEN)
    mine = here.answer(there.address, TOKEN)
    assert link is not None
    assert mine is not None
    for each in (link, mine, here, there, *strangers):
        each.close()


# -- hostile peers -----------------------------------------------------------------------------------------------------


class Liar:
    """The other end of a link, which knows the protocol as well as we do."""

    def __init__(self) -> None:
        self.pool = SegmentPool()
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = SegmentLink(ours, self.pool, Counter())

    def lend(self, descriptors: list[int], size_bytes: int, number: int = 1, kind: int = LEND) -> None:
        socket.send_fds(self.socket, [PACKET.pack(kind, number, size_bytes)], descriptors)

    def close(self) -> None:
        self.link.close()
        self.socket.close()
        self.pool.close()


@pytest.fixture
def liar() -> Iterator[Liar]:
    liar = Liar()
    yield liar
    liar.close()


def memory(size_bytes: int, seals: int = SEALS_MIN) -> int:
    descriptor = os.memfd_create("lie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


STEP = 64 << 10
LIES: dict[str, Callable[[Liar], None]] = {
    "no seals": lambda liar: liar.lend([memory(STEP, 0)], STEP),
    "may shrink": lambda liar: liar.lend([memory(STEP, fcntl.F_SEAL_GROW)], STEP),
    "may grow": lambda liar: liar.lend([memory(STEP, fcntl.F_SEAL_SHRINK)], STEP),
    "too small": lambda liar: liar.lend([memory(STEP)], 2 * STEP),
    "too large": lambda liar: liar.lend([memory(2 * STEP)], STEP),
    "empty": lambda liar: liar.lend([memory(0)], 0),
    "huge": lambda liar: liar.lend([memory(1 << 40)], 1 << 40),
    "odd": lambda liar: liar.lend([memory(STEP + 1)], STEP + 1),
    "a file": lambda liar: liar.lend([os.open(__file__, os.O_RDONLY)], STEP),
    "a socket": lambda liar: liar.lend([socket.socket().detach()], STEP),
    "none": lambda liar: liar.lend([], STEP),
    "two": lambda liar: liar.lend([memory(STEP), memory(STEP)], STEP),
    "many": lambda liar: liar.lend([memory(STEP) for _ in range(200)], STEP),
    "twice": lambda liar: [liar.lend([memory(STEP)], STEP) for _ in range(2)],  # type: ignore[assignment, return-value]
    "one with what needs none": lambda liar: liar.lend([memory(STEP)], STEP, kind=GIVE_BACK),
    "given back and never lent": lambda liar: liar.lend([], 0, kind=GIVE_BACK),
    "spoilt and never lent": lambda liar: liar.lend([], 0, kind=SPOIL),
    "retired and never lent": lambda liar: liar.lend([], 0, kind=RETIRE),
    "no kind": lambda liar: liar.lend([], 0, kind=9),
    "short": lambda liar: liar.socket.send(b"x"),  # type: ignore[dict-item, return-value]
    "long": lambda liar: liar.socket.send(bytes(1000)),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_segments_is_refused_and_keeps_no_descriptor(liar: Liar, lie: str) -> None:
    LIES[lie](liar)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RefusalError) as refusal:
        liar.link.settle()
    assert refusal.value.reason == "segment"
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(RefusalError):
        liar.link.settle()


def test_memory_that_the_kernel_may_give_large_pages_is_borrowed(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `shmem_enabled` of always, force, or within_size: its block size is that of a large page."""
    status = SimpleNamespace(st_size=STEP, st_blksize=2 * MIB)
    monkeypatch.setattr(os, "fstat", lambda descriptor: status)
    descriptor = memory(STEP)
    liar.lend([descriptor], STEP)
    os.close(descriptor)
    assert len(liar.link.lease_of(1)) == STEP


def test_memory_of_large_pages_which_may_be_missing_is_refused(liar: Liar) -> None:
    try:
        descriptor = os.memfd_create("lie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"this kernel has no large pages of a fixed number: {error}")
    size_bytes = os.fstatvfs(descriptor).f_bsize
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS_MIN)
    liar.lend([descriptor], size_bytes)
    os.close(descriptor)
    with pytest.raises(RefusalError, match=f"pages of {size_bytes}"):
        liar.link.settle()


def test_a_segment_arrives_where_no_file_can_be_opened(liar: Liar) -> None:
    descriptor = memory(STEP)
    liar.lend([descriptor], STEP)
    os.close(descriptor)
    with no_descriptors():
        assert len(liar.link.lease_of(1)) == STEP


@contextmanager
def no_descriptors() -> Iterator[None]:
    """While this process can open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0], *map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


def test_a_peer_lends_a_bounded_number_of_segments(liar: Liar) -> None:
    for number in range(SEGMENTS_MAX):
        descriptor = memory(STEP)
        liar.lend([descriptor], STEP, number)
        os.close(descriptor)
        liar.link.settle()
    liar.lend([memory(STEP)], STEP, SEGMENTS_MAX)
    with pytest.raises(RefusalError, match="segment"):
        liar.link.settle()


def test_a_peer_that_sends_packets_without_end_is_heard_in_parts(liar: Liar) -> None:
    descriptor = memory(STEP)
    for _ in range(20):
        liar.lend([descriptor], STEP)
        liar.lend([], 0, kind=RETIRE)
    liar.link.settle()
    with pytest.raises(RefusalError, match="was not lent here"):
        liar.link.lease_of(1)
    os.close(descriptor)


def test_what_is_given_back_twice_is_refused(liar: Liar) -> None:
    encoded = encode(floats(1))
    lodged = liar.link.lodge(encoded)
    assert lodged is not None
    [segment] = lodged.segments
    liar.lend([], 0, segment.number, GIVE_BACK)
    liar.link.settle()
    all_copied(liar.link._pool)
    assert segment.is_free
    liar.lend([], 0, segment.number, GIVE_BACK)
    with pytest.raises(RefusalError):
        liar.link.settle()


def test_a_peer_cannot_write_into_a_segment_or_change_its_size(liar: Liar) -> None:
    assert liar.link.lodge(encode(floats(1))) is not None
    _, [descriptor], _, _ = socket.recv_fds(liar.socket, 100, 2)
    size = os.fstat(descriptor).st_size
    with pytest.raises(OSError, match="not permitted"):
        mmap.mmap(descriptor, size)
    with pytest.raises(OSError, match="not permitted"):
        os.write(descriptor, b"x")
    for other in (size - STEP, size + STEP):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(descriptor, other)
    with pytest.raises(OSError, match="not permitted"):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(descriptor)


def batch_of(encoded: Encoded, places: list[PiecePlace], raw: list[int] = []) -> tuple[bytes, list[memoryview]]:  # noqa: B006
    """A batch of one item, the pieces of which lie at places, or are frames."""
    body = protocol_messages.pack_batch(0, 0, encoded.digests, [record(1, encoded.spec)], places)
    return body, [memoryview(b"header"), *(encoded.pieces[piece] for piece in raw)]


ITEM = encode(np.arange(10 * MIB, dtype=np.uint8))
"""Three pieces: 4, 4 and 2 MiB."""
RIGHT = [PiecePlace(0, 1, 0, 4 * MIB), PiecePlace(1, 1, 4 * MIB, 4 * MIB), PiecePlace(2, 1, 8 * MIB, 2 * MIB)]
HOSTILE_PLACES: dict[str, tuple[list[PiecePlace], list[int], str]] = {
    "unknown": ([PiecePlace(0, 9, 0, 4 * MIB), *RIGHT[1:]], [], "segment"),
    "another": ([*RIGHT[:2], PiecePlace(2, 2, 8 * MIB, 2 * MIB)], [], "segment"),
    "outside": ([*RIGHT[:2], PiecePlace(2, 1, 11 * MIB, 2 * MIB)], [], "segment"),
    "far outside": ([*RIGHT[:2], PiecePlace(2, 1, (1 << 63) - 1, 2 * MIB)], [], "segment"),
    "apart": ([RIGHT[0], PiecePlace(1, 1, 5 * MIB, 4 * MIB), RIGHT[2]], [], "segment"),
    "apart, alike": ([*RIGHT[:2], PiecePlace(2, 1, 10 * MIB, 2 * MIB)], [], "segment"),
    "wrong size": ([*RIGHT[:2], PiecePlace(2, 1, 8 * MIB, MIB)], [], "size"),
    "damaged": ([PiecePlace(0, 1, 1, 4 * MIB), *RIGHT[1:]], [], "digest"),
    "a frame in between": ([RIGHT[0], RIGHT[2]], [1], "segment"),
    "a frame first": (RIGHT[1:], [0], "segment"),
    "twice": ([RIGHT[0], RIGHT[0], RIGHT[1]], [], "message"),
    "backwards": (RIGHT[::-1], [], "message"),
    "beyond": ([*RIGHT[:2], PiecePlace(5, 1, 8 * MIB, 2 * MIB)], [], "message"),
    "too few": (RIGHT[:2], [], "message"),
    "too many": ([*RIGHT, PiecePlace(3, 1, 0, 4 * MIB)], [], "message"),
}


def lent(number: int) -> memoryview:
    if number not in (1, 2):
        raise RefusalError("segment", "unknown")
    data = np.concatenate([np.arange(10 * MIB, dtype=np.uint8), np.arange(2 * MIB, dtype=np.uint8)])
    return memoryview(data)


@pytest.mark.parametrize("name", HOSTILE_PLACES)
def test_a_message_that_names_what_it_may_not_is_refused(name: str) -> None:
    places, raw, reason = HOSTILE_PLACES[name]
    incoming = Incoming(Inbound(), Intake(64 * MIB))
    incoming.lease_of = lent
    body, frames = batch_of(ITEM, places, raw)
    with pytest.raises(RefusalError) as refusal:
        incoming.read(memoryview(body), frames)
    assert refusal.value.reason == reason


def test_a_message_with_the_right_places_is_read_without_a_copy() -> None:
    incoming = Incoming(Inbound(), Intake(64 * MIB))
    memory = lent(1)
    incoming.lease_of = lambda number: memory
    [arrived] = incoming.read(*map_frames(batch_of(ITEM, RIGHT)))
    assert isinstance(arrived, ParcelsArrived)
    item = arrived.parcels[0][1].item
    assert same(item, np.arange(10 * MIB, dtype=np.uint8))
    assert item.ctypes.data == np.frombuffer(memory, np.uint8).ctypes.data


def map_frames(batch: tuple[bytes, list[memoryview]]) -> tuple[memoryview, list[memoryview]]:
    return memoryview(batch[0]), batch[1]


def test_places_of_a_peer_that_shares_nothing_are_refused() -> None:
    incoming = Incoming(Inbound(), Intake(64 * MIB))
    with pytest.raises(RefusalError, match="lent none"):
        incoming.read(*map_frames(batch_of(ITEM, RIGHT)))


@pytest.mark.parametrize("size_bytes", [0, -1, CHUNK_BYTES + 1])
def test_a_place_has_the_size_of_a_piece(size_bytes: int) -> None:
    body, _ = batch_of(ITEM, [PiecePlace(0, 1, 0, size_bytes)])
    with pytest.raises(RefusalError) as refusal:
        protocol_messages.batch_of(memoryview(body))
    assert refusal.value.reason == "message"


def test_a_peer_that_names_unknown_memory_is_refused_and_harms_nobody(world: World) -> None:
    context = zmq.Context()
    siege = Siege(world, context)
    each = Stranger(context, siege.endpoints, stranger(0))
    each.greet(world, lambda: each.member in siege.syncer.ups)
    body, _ = batch_of(ITEM, RIGHT)
    each.data.send_multipart([protocol_messages.seal(1, body)])
    world.until(lambda: siege.syncer.count("refused_segment") == 1)
    siege.exchange()
    siege.check()
    each.close()
    context.destroy(linger=0)


def test_a_peer_whose_descriptors_are_lies_is_refused(world: World) -> None:
    syncer, [learner] = neighbours(world)
    link = link_of(learner, syncer)
    descriptor = memory(STEP, 0)
    socket.send_fds(link._connection, [PACKET.pack(LEND, 77, STEP)], [descriptor])
    os.close(descriptor)
    world.until(lambda: syncer.count("refused_segment") == 1)
    world.until(lambda: len(syncer.ups) == 2)
    learner.send(SYNCER, 1, {"x": floats(1, 5.0)})
    world.until(lambda: bool(syncer.items))
    assert learner.count("items_lent") == 1


# -- the pool ----------------------------------------------------------------------------------------------------------


class Nobody:
    """A holder that remembers what was retired."""

    def __init__(self) -> None:
        self.retired: list[int] = []

    def retire(self, segment: SharedSegment) -> None:
        self.retired.append(segment.number)


def all_copied(pool: SegmentPool) -> None:
    """Wait until the thread of a pool has copied what it was given."""
    assert pool._thread is not None
    pool._thread.submit(lambda: None).result(PATIENCE)


def segment_of(lodged: LodgedItem | None) -> SharedSegment:
    """The only segment of an item."""
    assert lodged is not None
    [segment] = lodged.segments
    return segment


def test_the_large_arrays_of_an_item_are_told_from_its_other_pieces() -> None:
    large, chunk = np.zeros(2 * CHUNK_BYTES + 10, np.uint8), np.zeros(CHUNK_BYTES, np.uint8)
    encoded = encode({"a": large, "b": chunk, "c": np.zeros(70_001, np.uint8), "d": np.zeros(9_000, np.uint8)})
    arrays = [(each.first, each.pieces, each.size_bytes) for each in large_arrays(encoded, 65_536)]
    assert arrays == [(0, 3, len(large)), (3, 1, CHUNK_BYTES), (4, 1, 70_001)]
    assert layout([each.size_bytes for each in large_arrays(encoded, 65_536)]) == (
        [0, 2 * CHUNK_BYTES + 64, 3 * CHUNK_BYTES + 64],
        3 * CHUNK_BYTES + 64 + 70_016,
    )


def test_an_array_of_several_items_is_copied_once() -> None:
    pool, one, other = SegmentPool(), Nobody(), Nobody()
    values, momentum = floats(5, 1.0), floats(5, 2.0)
    update = pool.lodge(encode({"values": values}), one)
    state = pool.lodge(encode({"momentum": momentum, "values": values.copy()}), other)
    assert update is not None
    assert state is not None
    assert pool.bytes_copied == values.nbytes + momentum.nbytes
    assert [len(each.segments) for each in (update, state)] == [1, 2]
    [shared] = update.segments
    assert state.place_of(2) == (shared.number, 0)
    assert (sum(shared.holders.values()), shared in state.segments) == (2, True)
    all_copied(pool)
    assert all(state.has_piece(piece) for piece in range(4))
    for holder, lodged in ((one, update), (other, state)):
        for segment in lodged.segments:
            assert pool.give_back(segment.number, holder)
    assert all(segment.is_free for segment in state.segments)
    pool.close()


def test_an_array_in_a_spoilt_or_rewritten_segment_is_copied_anew() -> None:
    pool, one, other = SegmentPool(), Nobody(), Nobody()
    encoded = encode({"values": floats(1, 1.0)})
    spoilt = segment_of(pool.lodge(encoded, one))
    all_copied(pool)
    assert pool.give_back(spoilt.number, one, is_spoilt=True)
    first = segment_of(pool.lodge(encoded, one))
    assert first is not spoilt
    all_copied(pool)
    assert pool.give_back(first.number, one)
    assert segment_of(pool.lodge(encode({"values": floats(1, 2.0)}), other)) is first
    again = segment_of(pool.lodge(encoded, one))
    assert again is not first
    assert pool.bytes_copied == 4 * encoded.sizes[0]
    pool.close()


def test_an_item_without_room_for_its_other_arrays_holds_nothing() -> None:
    pool, one = SegmentPool(3 * MIB), Nobody()
    values = floats(2, 1.0)
    first = segment_of(pool.lodge(encode({"values": values}), one))
    assert pool.lodge(encode({"values": values, "momentum": floats(2, 2.0)}), one) is None
    assert sum(first.holders.values()) == 1
    pool.close()


def test_a_state_arrives_in_two_segments_and_gives_both_back(world: World) -> None:
    syncer, [one, other] = neighbours(world, learners=2)
    values, momentum = floats(5, 1.0), floats(5, 2.0)
    syncer.send(LEARNERS[0], 1, {"values": values})
    world.until(lambda: bool(one.items))
    state = {"values": values, "momentum": momentum, "round": 3}
    syncer.send(LEARNERS[1], 1, state)
    world.until(lambda: bool(other.items))
    assert same(other.got(1)[0], state)
    assert (len(segments_of(syncer)), syncer.count("bytes_copied")) == (2, 2 * values.nbytes)
    for end in (one, other):
        end.items.clear()
    world.until(lambda: all(settled(world, syncer, each)() for each in (one, other)))


def test_a_pool_keeps_no_item_and_remembers_it_while_it_lives() -> None:
    pool, one, other = SegmentPool(), Nobody(), Nobody()
    encoded = encode(floats(1))
    segment = segment_of(pool.lodge(encoded, one))
    all_copied(pool)
    assert pool.give_back(segment.number, one)
    assert segment_of(pool.lodge(encoded, other)) is segment
    gone = weakref.ref(encoded)
    del encoded
    assert gone() is None
    assert pool.give_back(segment.number, other)
    assert not pool.give_back(segment.number, other)
    assert not pool.give_back(99, other)
    pool.close()


def test_a_segment_is_not_given_to_another_item_while_it_is_written() -> None:
    pool, one, go_on = SegmentPool(), Nobody(), threading.Event()
    waited: list[bool] = []
    pool.on_copied = lambda: waited.append(go_on.wait(PATIENCE))
    items = [encode(floats(5, number)) for number in (1.0, 2.0)]
    first = segment_of(pool.lodge(items[0], one))
    assert pool.give_back(first.number, one)
    lodged = pool.lodge(items[1], one)
    assert lodged is not None
    assert first not in lodged.segments
    assert not lodged.has_piece(1)
    go_on.set()
    all_copied(pool)
    assert first.is_free
    assert lodged.has_piece(1)
    pool.close()


def test_what_one_peer_may_still_read_is_retired_when_the_others_have_done() -> None:
    pool, one, other = SegmentPool(), Nobody(), Nobody()
    encoded = encode(floats(1))
    segment = segment_of(pool.lodge(encoded, one))
    assert segment is segment_of(pool.lodge(encoded, other))
    segment.knowing |= {one: None, other: None}
    pool.leave(one)
    assert (pool.size_bytes > 0, other.retired) == (True, [])
    assert segment_of(pool.lodge(encoded, other)) is not segment
    assert pool.give_back(segment.number, other)
    assert (one.retired, other.retired) == ([], [segment.number])
    pool.close()


def test_a_pool_makes_room_by_retiring_what_is_free_and_has_bounds() -> None:
    pool, one = SegmentPool(3 * MIB), Nobody()
    first = segment_of(pool.lodge(encode(floats(1)), one))
    first.knowing[one] = None
    all_copied(pool)
    pool.give_back(first.number, one)
    items = [encode(floats(2, 1.0)), encode(floats(2, 2.0))]
    second = segment_of(pool.lodge(items[0], one))
    assert one.retired == []
    assert pool.lodge(items[1], one) is None
    assert segment_of(pool.lodge(encode(floats(1, 3.0)), one)) is first
    all_copied(pool)
    pool.give_back(first.number, one)
    pool.give_back(second.number, one)
    assert pool.lodge(encode(floats(3)), one) is not None
    assert one.retired == [first.number]
    pool.close()
    assert pool.lodge(items[0], one) is None
