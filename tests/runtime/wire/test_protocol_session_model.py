"""Two hosts that send, grant, pause and lose connections at any point, against what must come of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isthmus.runtime.items import layout as frames
from isthmus.runtime.wire import protocol_session
from isthmus.runtime.wire.protocol_credit import WINDOW_BYTES_MAX
from tests.effort import examples
from tests.runtime.wire.session_ends import NOW, A, B, End, settle


class Connections(RuleBasedStateMachine):
    """Two hosts that send, grant, pause and lose connections at any point, against what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (frames, protocol_session):
            self.patch.setattr(module, "CHUNK_BYTES", 4096)
        self.patch.setattr(frames, "INLINE_BYTES_MAX", 64)
        self.ends = End(A, B, 50_000), End(B, A, 60_000)
        self.connection = 0
        self.number = 0
        self.sent: dict[int, dict[int, list[int]]] = {0: {1: [], 2: []}, 1: {1: [], 2: []}}
        self.newest: dict[int, dict[tuple[int, int], int]] = {0: {}, 1: {}}
        self.latest_count: Counter[int] = Counter()
        self.granted: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}

    def teardown(self) -> None:
        try:
            for end in self.ends:
                end.is_paused = False
                end.deliver()
            self.dial()
            settle(*self.ends)
            for here, there in ((0, 1), (1, 0)):
                got = self.ends[there].got
                queues = {edge: [_number(p.item) for p in got if p.edge == edge] for edge in (1, 2)}
                assert queues == self.sent[here]
                assert {(p.edge, p.key): _number(p.item) for p in got if p.edge > 2} == self.newest[here]
                assert self.ends[here].credit == self.granted[there]
                assert len(self.ends[here].ended) + self.ends[here].superseded == self.count(here)
                assert not self.ends[here].pair.outbound.kept
        finally:
            self.patch.undo()

    def count(self, here: int) -> int:
        return sum(map(len, self.sent[here].values())) + self.latest_count[here]

    @rule(here=st.integers(0, 1), edge=st.integers(1, 2), size=st.integers(0, 20_000))
    def send_queued(self, here: int, edge: int, size: int) -> None:
        self.number += 1
        self.sent[here][edge].append(self.number)
        self.ends[here].send(edge, _item(self.number, size), size_bytes=size)

    @rule(here=st.integers(0, 1), edge=st.integers(3, 4), key=st.integers(0, 2), size=st.integers(0, 20_000))
    def send_latest(self, here: int, edge: int, key: int, size: int) -> None:
        self.number += 1
        self.newest[here][edge, key] = self.number
        self.latest_count[here] += 1
        self.ends[here].send(edge, _item(self.number, size), key=key, replaces=True, size_bytes=size)

    @rule(here=st.integers(0, 1), edge=st.integers(1, 2), count=st.integers(1, 3))
    def grant(self, here: int, edge: int, count: int) -> None:
        self.granted[here][edge] += count
        self.ends[here].pair.grants.give(edge, count)

    @rule(here=st.integers(0, 1), size_bytes=st.sampled_from((0, 20_000, WINDOW_BYTES_MAX)))
    def keep(self, here: int, size_bytes: int) -> None:
        self.ends[here].pair.outbound.pace = size_bytes  # Below the least that `keep` takes, as the windows are.

    @rule(here=st.integers(0, 1))
    def pump(self, here: int) -> None:
        self.ends[here].pump()

    @rule(here=st.integers(0, 1), count=st.integers(1, 5), is_control=st.booleans())
    def deliver(self, here: int, count: int, is_control: bool) -> None:
        one, other = self.ends[here], self.ends[1 - here]
        for _ in range(count):
            if is_control and one.control:
                other.hear_control(one.control.popleft())
            elif not is_control and one.data and (here == 1 or other.session is not None):
                other.hear_data(one.data.popleft())

    @rule(here=st.integers(0, 1), is_paused=st.booleans())
    def pause(self, here: int, is_paused: bool) -> None:
        self.ends[here].is_paused = is_paused
        self.ends[here].deliver()

    @rule(here=st.integers(0, 1))
    def beat(self, here: int) -> None:
        end = self.ends[here]
        message = end.session.next_control(NOW, is_beat=True) if end.session is not None else None
        if message is not None:
            end.control.append(message)

    @rule()
    def dial(self) -> None:
        self.connection += 1
        self.ends[1].drop()
        self.ends[0].dial(self.connection)

    @invariant()
    @precondition(lambda self: hasattr(self, "ends"))
    def nothing_is_beyond_the_window(self) -> None:
        for one, other in ((self.ends[0], self.ends[1]), (self.ends[1], self.ends[0])):
            under_way = [sum(map(len, parts)) for parts in one.data if len(parts) > 1 or len(parts[0]) > 60]
            assert sum(under_way) <= other.window_bytes or len(under_way) == 1
            assert sum(event.cost for _, event in other.held) <= other.window_bytes or len(other.held) == 1


def _item(number: int, size: int) -> Any:
    return [number, np.full(size, number % 251, np.uint8), np.arange(7)]


def _number(item: Any) -> int:
    number, values, seven = item
    assert np.all(values == number % 251)
    assert np.array_equal(seven, np.arange(7))
    return int(number)


Connections.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60)
TestConnections = Connections.TestCase
