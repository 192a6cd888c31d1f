"""The node that tells of a shard's versions and sends their states: what a part is, and what stays while it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.messages import NewVersion, ShardState, StatePart, WantedState
from isthmus.ops.recovery.hold import digest_of
from isthmus.ops.syncer import state_sender
from isthmus.ops.syncer.state_sender import StateSender
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.ops.bodies import Context

HOME = ("recorder/0", None)


def state(count: int, *, tensors: bool = True) -> Any:
    values = np.arange(5, dtype=np.float32) + 10 * count
    return ShardState(
        fragment=3,
        version=[1, count],
        kind="merge",
        values=values,
        clock=[[0, 1, 10 * count]],
        positions=[[0, count]],
        totals=[[0, 1, 10 * count]],
        refused=[],
        tensors={"theta": values + 1, "momentum": -values} if tensors else {},
        lengths=[0.5],
    )


def sender_of() -> StateSender:
    sender = StateSender()
    sender.open(Context("syncer", 2, incarnation=7))
    return sender


def part(sender: StateSender, number: int, at: int = 0, fragment: int = 3) -> Any:
    sent = sender(wanted={HOME: WantedState(fragment=fragment, number=number, at=at)}) or []
    assert len(sent) <= 1
    return sent[0][1] if sent else None


def test_of_each_version_its_books_leave_at_once() -> None:
    sender, item = sender_of(), state(4)
    [(port, told)] = sender(state={("syncer/2", 3): item}) or []
    assert port == "published"
    assert told == NewVersion(
        shard=2,
        incarnation=7,
        fragment=3,
        version=[1, 4],
        kind="merge",
        digest=digest_of(item["values"], item["clock"], item["positions"]),
        lengths=[0.5],
    )


@pytest.mark.parametrize("size", [1, 7, 20, 33, 60, 1 << 20])
@pytest.mark.parametrize("tensors", [True, False])
def test_parts_one_after_the_other_are_the_arrays_in_the_order_of_their_names(
    monkeypatch: pytest.MonkeyPatch, size: int, *, tensors: bool
) -> None:
    monkeypatch.setattr(state_sender, "PART_BYTES", size)
    sender, item = sender_of(), state(4, tensors=tensors)
    sender(state={("syncer/2", 3): item})
    arrays = [*(item["tensors"][name] for name in sorted(item["tensors"])), item["values"]]
    expected, got = b"".join(array.tobytes() for array in arrays), b""
    check = compiled(StatePart)
    while len(got) < len(expected):
        sent = part(sender, 9, len(got))
        assert check(sent, {}, Member(Replica("syncer", 2), 7)) is None
        assert (sent["at"], sent["size"], ("books" in sent)) == (len(got), len(expected), not got)
        assert 0 < sent["data"].size <= size
        got += sent["data"].tobytes()
    assert got == expected
    assert part(sender, 10)["books"]["tensors"] == [*sorted(item["tensors"]), "values"]


def test_a_transfer_is_of_one_state_and_the_next_of_the_newest() -> None:
    sender = sender_of()
    sender(state={("syncer/2", 3): state(4)})
    first = part(sender, 1)
    sender(state={("syncer/2", 3): state(5)})
    assert part(sender, 1)["data"].tobytes() == first["data"].tobytes()
    assert part(sender, 2)["books"]["version"] == [1, 5]


def test_where_nothing_is_wanted_any_more_the_last_part_is_replaced_once() -> None:
    sender = sender_of()
    assert part(sender, 1) is None, "it has no state of it yet"
    sender(state={("syncer/2", 3): state(4)})
    part(sender, 1)
    assert part(sender, 0)["data"].size == 0
    assert part(sender, 0) is None
