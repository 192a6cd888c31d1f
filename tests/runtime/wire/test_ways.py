"""Ways with gates: what is read waits for its time, in order, and no more of it than the gate has room for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from isthmus.runtime.wire.ways import Gate, WayThread
from tests.patience import PATIENCE, wait_for


class Late(Gate):
    """Each piece is due so many seconds after it was read; None: it cannot be said yet."""

    piece_bytes = 4
    waiting_bytes_max = 8

    def __init__(self, seconds: float | None = 0.0) -> None:
        self.seconds = seconds
        self.is_closed = False
        self.due_sizes: list[int] = []
        self.passed_sizes: list[tuple[int, bool]] = []

    @property
    def is_shut(self) -> bool:
        return self.is_closed

    def due(self, size_bytes: int) -> float | None:
        self.due_sizes.append(size_bytes)
        return None if self.seconds is None else time.monotonic() + self.seconds

    def passed(self, size_bytes: int, *, has_waited: bool) -> None:
        self.passed_sizes.append((size_bytes, has_waited))


class Connected:
    """A way of a thread's, with the sockets of both peers."""

    def __init__(self, there: Gate | None, back: Gate | None = None) -> None:
        self.thread = WayThread("ways of a test")
        (self.dialler, self._near), (self._far, self.host) = socket.socketpair(), socket.socketpair()
        for each in (self.dialler, self.host):
            each.settimeout(PATIENCE)
        assert self.thread.give(self._near, self._far, there, back)

    def close(self) -> None:
        self.thread.close()
        for each in (self.dialler, self.host):
            each.close()
        assert self._near.fileno() == self._far.fileno() == -1


def received(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


@pytest.fixture
def gate() -> Late:
    return Late()


@pytest.fixture
def connected(gate: Late) -> Iterator[Connected]:
    made = Connected(gate)
    yield made
    made.close()


def test_pieces_are_as_large_as_the_gate_has_them_in_order_and_counted(gate: Late, connected: Connected) -> None:
    connected.dialler.sendall(b"0123456789")
    assert received(connected.host, 10) == b"0123456789"
    wait_for(lambda: gate.passed_sizes == [(4, False), (4, False), (2, False)])
    connected.host.sendall(b"back, without a gate")
    assert received(connected.dialler, 20) == b"back, without a gate"
    assert len(gate.passed_sizes) == 3


def test_a_piece_waits_for_its_time(gate: Late, connected: Connected) -> None:
    gate.seconds = 0.2
    begun = time.monotonic()
    connected.dialler.sendall(b"late")
    assert received(connected.host, 4) == b"late"
    assert time.monotonic() - begun >= 0.2
    wait_for(lambda: gate.passed_sizes == [(4, True)])


def test_behind_a_gate_that_is_shut_no_more_is_read_than_it_has_room_for(gate: Late, connected: Connected) -> None:
    gate.is_closed = True
    connected.dialler.sendall(b"0123456789" * 10)
    wait_for(lambda: sum(gate.due_sizes) > gate.waiting_bytes_max)
    time.sleep(0.05)
    assert gate.due_sizes == [4, 4, 4]  # The last of these is the one beyond the bound.
    connected.host.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connected.host.recv(1)
    gate.is_closed = False
    connected.host.settimeout(PATIENCE)
    assert received(connected.host, 100) == b"0123456789" * 10
    wait_for(lambda: sum(size for size, _ in gate.passed_sizes) == 100)


def test_a_gate_that_cannot_say_when_is_asked_again(gate: Late, connected: Connected) -> None:
    gate.seconds = None
    connected.dialler.sendall(b"then")
    wait_for(lambda: len(gate.due_sizes) > 2)
    gate.seconds = 0.0
    assert received(connected.host, 4) == b"then"
    assert {*gate.due_sizes} == {4}


def test_what_is_late_arrives_after_its_sender_has_gone(gate: Late, connected: Connected) -> None:
    gate.is_closed = True
    connected.dialler.sendall(b"01234567")
    wait_for(lambda: sum(gate.due_sizes) == 8)
    connected.dialler.close()
    connected.host.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connected.host.recv(1)
    gate.is_closed = False
    connected.host.settimeout(PATIENCE)
    assert received(connected.host, 100) == b"01234567"


def test_a_receiver_that_is_behind_gets_all_of_it(gate: Late, connected: Connected) -> None:
    gate.piece_bytes, gate.waiting_bytes_max = 1 << 16, 1 << 18
    connected.dialler.settimeout(0.05)
    data, sent = bytes(range(256)) * (1 << 14), 0
    while sent < len(data):
        try:
            sent += connected.dialler.send(data[sent : sent + (1 << 16)])
        except TimeoutError:
            break
    assert 0 < sent < len(data)
    assert received(connected.host, sent) == data[:sent]


def test_what_waits_at_the_end_is_dropped_and_a_thread_that_has_ended_takes_no_way(gate: Late) -> None:
    gate.is_closed = True
    made = Connected(gate)
    made.dialler.sendall(b"0123")
    wait_for(lambda: bool(gate.due_sizes))
    made.close()
    one, other = socket.socketpair()
    with one, other:
        assert not made.thread.give(one, other)
        assert one.fileno() >= 0
    assert not gate.passed_sizes
