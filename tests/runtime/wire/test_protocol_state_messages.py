"""When a STATE goes: at once where somebody may wait for it, otherwise with the next heartbeat."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from isthmus.runtime.clock import Instant
from isthmus.runtime.items.layout import CHUNK_BYTES, RefusalError
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.protocol_credit import CHARGE_MIN, LARGE_BYTES, MESSAGE_BYTES_MAX
from isthmus.runtime.wire.protocol_messages import AGE_LAST, AGES_MAX, State
from isthmus.runtime.wire.protocol_session import AHEAD_MAX
from tests.effort import long
from tests.runtime.wire.session_ends import A, C, End, connected, settle

WIDE = 32 << 20
RELAYED = 8 << 20
MS = 1_000_000


def sent(a: End, b: End, count: int, item: Any = "small") -> None:
    """Send so often, each in a message of its own, and let everything arrive."""
    for _ in range(count):
        a.send(1, item)
        settle(a, b)


def test_a_small_item_is_acknowledged_with_the_heartbeat() -> None:
    a, b = connected(WIDE)
    sent(a, b, 3)
    assert b.session is not None
    assert (len(b.got), a.ended, b.session.has_more()) == (3, [], False)
    b.beat()
    settle(a, b)
    assert a.ended == ["small"] * 3
    assert not a.pair.outbound.kept


def test_item_credit_is_told_at_once_and_takes_the_acknowledgement_along() -> None:
    a, b = connected(WIDE)
    sent(a, b, 2)
    b.pair.grants.give(1, 1)
    settle(a, b)
    assert (a.credit, a.ended) == ({1: 1}, ["small"] * 2)


@pytest.mark.parametrize(("size_bytes", "is_told"), [(LARGE_BYTES // 2, False), (LARGE_BYTES, True)])
def test_a_large_message_is_acknowledged_at_once(size_bytes: int, is_told: bool) -> None:
    a, b = connected(WIDE)
    sent(a, b, 1)
    sent(a, b, 1, np.zeros(size_bytes, np.uint8))
    assert len(a.ended) == (2 if is_told else 0)


def test_a_large_item_whose_end_is_small_is_acknowledged_at_once() -> None:
    a, b = connected(WIDE)
    size_bytes = CHUNK_BYTES + 20_000
    a.send(1, np.zeros(size_bytes, np.uint8), size_bytes=size_bytes)
    a.pump()
    for _ in range(2):
        b.hear_data(a.data.popleft())
        b.pump()
    assert len(b.control) == 2
    settle(a, b)
    assert len(a.ended) == len(b.got) == 1


def test_a_quarter_of_the_window_is_told_at_once() -> None:
    a, b = connected(RELAYED)
    assert a.session is not None
    for _ in range(RELAYED // 4 // CHARGE_MIN - 1):
        assert a.session.forward(A, C, [b"small"])
        settle(a, b)
        assert a.pair.outbound.window is not None
        assert a.pair.outbound.window.under_way
    sent(a, b, 1)
    assert a.ended == ["small"]


def test_a_quarter_of_the_pace_is_told_at_once() -> None:
    a, b = connected(WIDE)
    a.pair.outbound.keep(LARGE_BYTES)
    size_bytes = LARGE_BYTES // 8
    sent(a, b, 4, np.zeros(size_bytes, np.uint8))
    assert a.ended == []  # The other side has not heard of the pace.
    a.beat()
    b.beat()
    settle(a, b)
    assert len(a.ended) == 4
    sent(a, b, 1, np.zeros(size_bytes, np.uint8))
    assert len(a.ended) == 4
    sent(a, b, 1, np.zeros(size_bytes, np.uint8))
    assert len(a.ended) == 6


def test_control_messages_are_answered_before_there_are_too_many() -> None:
    a, b = connected(WIDE)
    sent(a, b, 1)
    told = 0
    for _ in range(AHEAD_MAX):
        b.pair.grants.give(1, 1)
        b.pump()
        a.hear_control(b.control.popleft())
        a.pump()
        told += len(a.control)
        while a.control:
            b.hear_control(a.control.popleft())
    assert told == 4
    assert a.credit[1] == AHEAD_MAX


def test_many_small_items_are_acknowledged_at_once() -> None:
    a, b = connected(WIDE)
    sent(a, b, AGES_MAX - 1)
    assert a.ended == []
    sent(a, b, 1)
    assert len(a.ended) == AGES_MAX


def test_a_connection_comes_up_without_a_heartbeat_and_says_what_was_delivered() -> None:
    a, b = connected(WIDE)
    sent(a, b, 3)
    b.drop()
    a.dial(2)
    settle(a, b)
    assert a.session is not None
    assert (a.session.phase, a.ended, a.ages) == ("live", ["small"] * 3, [0] * 3)
    sent(a, b, 1)
    assert len(b.got) == 4


# -- how long ago ------------------------------------------------------------------------------------------------------


def test_an_acknowledgement_says_how_long_ago_each_item_came() -> None:
    a, b = connected(WIDE)
    for b.now in (Instant(1 * MS), Instant(3 * MS), Instant(3 * MS + 1999)):
        sent(a, b, 1)
    b.now = Instant(10 * MS)
    b.beat()
    settle(a, b)
    assert a.ages == [9 * MS, 7 * MS, 7 * MS - 2000]


def test_of_many_items_at_once_the_last_age_stands_for_the_rest() -> None:
    a, b = connected(WIDE)
    sent(a, b, 1)
    for _ in range(AGES_MAX + 50):
        a.send(1, "together")
    b.now = Instant(b.now + 5 * MS)
    a.pump()
    while a.data:
        b.hear_data(a.data.popleft())
    b.now = Instant(b.now + 2 * MS)
    settle(a, b)
    assert a.ages == [7 * MS] + [2 * MS] * (AGES_MAX + 50)


def test_an_age_beyond_an_hour_is_an_hour() -> None:
    a, b = connected(WIDE)
    sent(a, b, 1)
    b.now = Instant(10**16)
    b.beat()
    settle(a, b)
    assert a.ages == [AGE_LAST * 1000]


def test_the_form_of_a_state_bounds_the_number_of_its_ages() -> None:
    fields: list[Any] = [protocol_messages.STATE, 0, 0, 300, [1] * AGES_MAX, {}, 0]
    assert protocol_messages.state_of(memoryview(msgspec.msgpack.encode(fields))).ages == [1] * AGES_MAX
    fields[4].append(1)
    with pytest.raises(RefusalError, match="length <= 256"):
        protocol_messages.state_of(memoryview(msgspec.msgpack.encode(fields)))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_nothing_is_let_go_by_a_state_whose_ages_do_not_fit(count: int) -> None:
    a, b = connected(WIDE)
    sent(a, b, 2)
    assert a.session is not None
    state = State(a.session._sent_heard, 0, 2, [0] * count, {}, 0)
    with pytest.raises(RefusalError, match=f"{count} ages of 2 items"):
        a.hear_control(protocol_messages.seal(1, protocol_messages.pack_state(state)))
    assert (len(a.pair.outbound.kept), a.ended) == (2, [])


# -- no stall ----------------------------------------------------------------------------------------------------------

WINDOWS = [CHARGE_MIN, 40_000, 128 << 10, 1 << 20, CHUNK_BYTES, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 20_000, RELAYED]
SIZES = [0, 0, 0, 1000, 50_000, 120_000, 300_000, CHUNK_BYTES, CHUNK_BYTES + 50_000]


@pytest.mark.parametrize("window_bytes", [*WINDOWS[:3], *map(long, WINDOWS[3:]), WIDE])
def test_without_any_heartbeat_no_window_makes_anything_wait(window_bytes: int) -> None:
    a, b = connected(window_bytes)
    rng = random.Random(window_bytes)
    assert a.session is not None
    for number in range(150):
        a.send(1, [number, np.zeros(rng.choice(SIZES), np.uint8)])
        if number % 5 == 0:
            assert a.session.forward(A, C, [bytes(rng.choice([1, 30_000, CHUNK_BYTES]))])
        settle(a, b)
        assert len(b.got) == number + 1
    for number in range(150):
        a.send(1, [number, np.zeros(rng.choice(SIZES), np.uint8)])
    settle(a, b)
    assert [parcel.item[0] for parcel in b.got] == [*range(150)] * 2
