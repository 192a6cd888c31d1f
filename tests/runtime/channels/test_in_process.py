"""The in-process channel: the conformance suite on both clocks, and what only it has: delays, and who may join."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import uvloop

from isthmus.runtime.channels.conformance import (
    KIB,
    QUEUE,
    A,
    B,
    ChannelConformance,
    Ends,
    MakeEnds,
    RecordingReceiver,
    block,
    parcel,
)
from isthmus.runtime.channels.contract import Channel
from isthmus.runtime.channels.in_process import Network
from isthmus.runtime.clock import Clock, Duration, Instant, milliseconds, seconds
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.ids import Member
from isthmus.runtime.system.loop_clock import LoopClock
from tests.loops import run_until


class InprocEnds(Ends):
    """Ends of one network."""

    def __init__(self, clock: Clock, window_bytes: int, delay: Duration) -> None:
        self.network = Network(clock, window_bytes=window_bytes, delay=lambda edge, source, target, size: delay)

    def join(self, member: Member, receiver: RecordingReceiver | None) -> Channel:
        end = self.network.join(member)
        if receiver is not None:
            end.open(receiver)
        return end

    def leave(self, member: Member) -> None:
        self.network.ends[member].close()


class VirtualEnds(InprocEnds):
    """On the virtual clock; each transfer takes `delay`."""

    def __init__(self, clock: VirtualClock, window_bytes: int, delay: Duration) -> None:
        super().__init__(clock, window_bytes, delay)
        self.clock = clock

    def until(self, holds: Callable[[], bool]) -> None:
        self.clock.run(holds, Instant(seconds(1000)))

    def rest(self) -> None:
        while self.clock.step():
            pass


class LoopEnds(InprocEnds):
    """On the loop of this thread."""

    def __init__(self, loop: uvloop.Loop, window_bytes: int, delay: Duration) -> None:
        super().__init__(LoopClock(loop), window_bytes, delay)
        self.loop = loop

    def until(self, holds: Callable[[], bool]) -> None:
        run_until(self.loop, holds)

    def rest(self) -> None:
        until = self.loop.time() + 0.02
        run_until(self.loop, lambda: self.loop.time() > until)


@pytest.fixture
def loop() -> Iterator[uvloop.Loop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


class TestOnTheVirtualClock(ChannelConformance):
    @pytest.fixture(params=[0, 5], ids=["at once", "after 5 ms"])
    def ends(self, request: pytest.FixtureRequest) -> MakeEnds:
        return lambda window_bytes: VirtualEnds(VirtualClock(), window_bytes, milliseconds(request.param))


class TestOnTheLoop(ChannelConformance):
    @pytest.fixture(params=[0, 3], ids=["at once", "after 3 ms"])
    def ends(self, request: pytest.FixtureRequest, loop: uvloop.Loop) -> MakeEnds:
        return lambda window_bytes: LoopEnds(loop, window_bytes, milliseconds(request.param))


def test_a_transfer_takes_as_long_as_its_delay_says_and_none_overtakes_another() -> None:
    clock = VirtualClock()
    seen: list[tuple[int, Member, Member, int, int, int]] = []

    def delay(edge: int, source: Member, target: Member, size: int) -> Duration:
        return milliseconds(size / KIB)

    network = Network(clock, delay=delay, window_bytes=128 * KIB, watch=lambda *transfer: seen.append(transfer))
    a, b, got = network.join(A), network.join(B), RecordingReceiver()
    b.open(got)
    arrivals: list[int] = []
    got.on_item = lambda source, parcel_: arrivals.append(clock.now() // milliseconds(1))
    structure = parcel(QUEUE, block(0)).size_bytes - 64 * KIB
    for number, size in enumerate((40, 20, 60, 20)):
        a.send(B, parcel(QUEUE, block(number, size * KIB - structure)), replaces=False)
    while clock.step():
        pass
    assert arrivals == [40, 40, 60, 60]
    assert [(begun // milliseconds(1), ended // milliseconds(1)) for *_, begun, ended in seen] == [
        (0, 40),
        (0, 40),
        (0, 60),
        (40, 60),
    ]
    assert [transfer[:4] for transfer in seen][:2] == [(QUEUE, A, B, 40 * KIB), (QUEUE, A, B, 20 * KIB)]


def test_credit_takes_the_delay_of_an_empty_item() -> None:
    clock = VirtualClock()
    network = Network(clock, delay=lambda edge, source, target, size: milliseconds(7 + size))
    a, b, got = network.join(A), network.join(B), RecordingReceiver()
    a.open(got)
    b.grant(A, QUEUE, 2)
    clock.run(lambda: bool(got.credits), Instant(seconds(1)))
    assert clock.now() == milliseconds(7)


def test_a_member_joins_once() -> None:
    network = Network(VirtualClock())
    network.join(A)
    with pytest.raises(ValueError, match="left/0#1 has joined already"):
        network.join(A)


def test_closing_an_old_end_leaves_a_newer_one_of_the_same_member_alone() -> None:
    clock = VirtualClock()
    network = Network(clock)
    old = network.join(A)
    old.close()
    new, got = network.join(A), RecordingReceiver()
    new.open(got)
    old.close()
    network.join(B).send(A, parcel(QUEUE, block(1)), replaces=False)
    clock.run(lambda: bool(got.items), Instant(seconds(1)))
    assert got.numbers() == [1]


def test_what_waits_and_what_is_under_way_is_dropped_and_counted_when_the_sender_leaves() -> None:
    clock = VirtualClock()
    network = Network(clock, window_bytes=256 * KIB, delay=lambda edge, source, target, size: milliseconds(5))
    a, b, got = network.join(A), network.join(B), RecordingReceiver()
    b.open(got)
    for number in range(8):
        a.send(B, parcel(QUEUE, block(number)), replaces=False)
    clock.run(lambda: len(got.items) == 1, Instant(seconds(1)))
    a.close()
    a.send(B, parcel(QUEUE, block(9)), replaces=False)
    while clock.step():
        pass
    assert got.numbers() == [0]
    assert a.statistics()["dropped"] == 8
