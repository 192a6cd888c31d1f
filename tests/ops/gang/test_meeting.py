"""Who comes to an island's door, who is let in, and what is said of those who do not come."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing

import pytest

from isthmus.ops.data.batches import packed
from isthmus.ops.data.batches_node import InOrder, _Streamed
from isthmus.ops.data.positions import Step
from isthmus.ops.gang import meeting
from isthmus.ops.gang.meeting import GangError, join, lead
from isthmus.ops.gang.orders import ORDER_BYTES_MAX, Following, Leader, LeaderOrders, follow
from isthmus.programs.engine.islands.gang import GangOfProcesses
from isthmus.runtime.ids import Member, Replica
from tests.patience import PATIENCE
from tests.procfs import has_ipv6


def gang_of(role: str, size: int = 3, address: str = "127.0.0.1") -> GangOfProcesses:
    return GangOfProcesses(Member(Replica(role, 0), 2), size, address)


def test_a_process_that_never_comes_is_named_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.3)
    leader = gang_of("learner")
    host, _, port = leader.endpoints[0].rpartition(":")
    with socket.create_connection((host, int(port))) as stranger, socket.create_connection((host, int(port))) as one:
        stranger.sendall(b"?" * 60)
        one.sendall(leader.token.encode() + struct.pack("!IQQQ", 1, 0, 0, 0))
        expected = r"island of 3 processes: expected all of them within 0 s, found 2; learner\.2/0 did not come"
        with leader.door, pytest.raises(GangError, match=expected):
            lead(leader)


def test_a_follower_goes_by_the_roster_of_its_own_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.1)
    follower = gang_of("learner.1")
    follower.on_roster(
        [["learner/0", 1, ["127.0.0.1:1", "token"], ""], ["learner/1", 2, ["127.0.0.1:2", "token"], ""]], []
    )
    assert follower.find() is None
    with pytest.raises(GangError, match="expected its leader within 0 s, found nowhere"):
        join(follower)
    follower.on_roster([["learner/0", 2, ["127.0.0.1:3", "token"], ""]], [])
    assert follower.find() == ("127.0.0.1:3", "token")


@pytest.mark.parametrize("address", ["127.0.0.1", *(["[::1]"] if has_ipv6() else [])])
def test_an_island_meets_at_an_address_of_either_kind(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    at: list[str] = []
    monkeypatch.setattr(meeting, "_start", lambda coordinator, gang: at.append(coordinator))
    monkeypatch.setattr(meeting, "_await", lambda coordinator: None)
    leader, follower = gang_of("learner", 2, address), gang_of("learner.1", 2)
    assert leader.endpoints[0].startswith(f"{address}:")
    follower.on_roster([["learner/0", 2, list(leader.endpoints), ""]], [])
    followings: list[Following] = []
    thread = threading.Thread(target=lambda: followings.append(join(follower)))
    thread.start()
    with leader.door, closing(lead(leader)):
        thread.join()
        followings[0].close()
    assert at[0] == at[1]
    assert at[0].startswith(f"{address}:")


def test_orders_arrive_in_order_and_what_is_none_is_refused() -> None:
    ours, theirs = socket.socketpair()
    orders, following = LeaderOrders([ours]), Following(theirs)
    assert following.next(0.01) is None
    orders.give("step", 7, 0.5)
    orders.give("extract", 1)
    assert [following.next(1.0), following.next(1.0)] == [["step", 7, 0.5], ["extract", 1]]
    following.ready()
    orders.wait()
    ours.sendall((ORDER_BYTES_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(
        ValueError, match=f"an order of {ORDER_BYTES_MAX + 5} bytes: expected at most {ORDER_BYTES_MAX}"
    ):
        following.next(1.0)
    with pytest.raises(ValueError, match="no order of a leader"):
        follow(None, ["step", "x", 1.0], None, following)  # type: ignore[arg-type]
    orders.close()
    following.close()


class Sole:
    """What is called of a learner."""

    def __init__(self) -> None:
        self.trained: list[int] = []

    def step(self, batch: int, progress: float) -> dict[str, float]:
        self.trained.append(batch)
        return {"loss": progress}


def test_who_follows_begins_a_stream_at_the_state_that_its_leader_knows() -> None:
    ours, theirs = socket.socketpair()
    where = iter([Step(5, [3, packed(3)]), Step(6, [5, packed(5)]), Step(9)])
    leader, following = Leader(Sole(), LeaderOrders([ours]), lambda: next(where)), Following(theirs)  # type: ignore[arg-type]
    stream, learner = Counting(), Sole()
    batches = InOrder(_Streamed(stream))
    for progress in (0.1, 0.2, 0.3):
        leader.step(0, progress)
    while (order := following.next(0.01)) is not None:
        follow(learner, order, batches, following)  # type: ignore[arg-type]
    assert learner.trained == [5, 6, 9]
    assert stream.read == [3, 4, 5, 6, 7, 8, 9]
    ours.close()
    following.close()


class Counting:
    """A stream of numbers."""

    def __init__(self) -> None:
        self.at, self.read = 0, list[int]()

    def __next__(self) -> int:
        self.read.append(self.at)
        self.at += 1
        return self.read[-1]

    def get_state(self) -> int:
        return self.at

    def set_state(self, state: int) -> None:
        self.at = state


def test_a_leader_that_is_gone_is_told() -> None:
    ours, theirs = socket.socketpair()
    following = Following(theirs)
    ours.close()
    with pytest.raises(EOFError):
        following.next(1.0)
    following.close()


def test_a_process_that_comes_for_another_form_is_not_let_in() -> None:
    leader = gang_of("learner")
    leader.form = 7
    for form, expected in ((6, None), (7, (1, (2, 3)))):
        hello = leader.token.encode() + struct.pack("!IQQQ", 1, form, 2, 3)
        assert meeting._known(hello, leader) == expected
    leader.door.close()


@pytest.mark.long
def test_strangers_that_are_slow_keep_no_process_waiting_and_have_one_deadline_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 5.0)
    monkeypatch.setattr(meeting, "HELLOS_MAX", 2)
    leader = gang_of("learner")
    host, _, port = leader.endpoints[0].rpartition(":")
    with ExitStack() as connections, leader.door, closing(meeting.Hellos(leader)) as hellos:
        slow, slower, one = (
            connections.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(3)
        )
        assert hellos.next(time.monotonic() + 0.3) is None
        assert slow.recv(1) == b"", "of too many the oldest went"
        slower.sendall(b"?")
        one.sendall(leader.token.encode() + struct.pack("!IQQQ", 2, 0, 0, 0))
        came = hellos.next(time.monotonic() + 60)
        assert came is not None
        connections.enter_context(came.connection)
        assert came.number == 2
        [(_, deadline)] = hellos._waiting.values()  # That of the slower one, which did not move.
        assert hellos.next(deadline) is None
        while hellos._waiting and time.monotonic() < deadline + PATIENCE:  # One look after it, however late that is.
            assert hellos.next(time.monotonic() + 0.05) is None
        assert hellos._waiting == {}
        assert slower.recv(1) == b""


def test_a_hello_has_its_time_from_its_connection_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 0.1)
    leader, joining = gang_of("learner"), threading.Event()
    hello = leader.token.encode() + struct.pack("!IQQQ", 1, 0, 0, 0)

    def come() -> None:
        joining.wait(0.3)  # Longer than a hello may take: the leader looks at its door since before.
        with socket.create_connection(leader.door.getsockname()[:2]) as connection:
            connection.sendall(hello)
            joining.wait(PATIENCE)

    process = threading.Thread(target=come)
    with leader.door, closing(meeting.Hellos(leader)) as hellos:
        process.start()
        came = hellos.next(time.monotonic() + 5)
        joining.set()
        process.join()
        assert came is not None
        came.connection.close()
        assert came.number == 1


def test_what_is_no_order_comes_whole_though_it_comes_with_one() -> None:
    ours, theirs = socket.socketpair()
    orders, following = LeaderOrders([ours], [(0, 0), (1, 4)]), Following(theirs)
    orders.give_one(1, "take", 1, 4)
    orders.link(1).sendall(bytes(range(200)))
    assert following.next(1.0) == ["take", 1, 4]
    data = bytearray(200)
    at = 0
    while at < len(data):
        at += following.recv_into(memoryview(data)[at:])
    assert data == bytes(range(200))
    orders.close()
    following.close()
