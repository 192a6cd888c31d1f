"""In whose memory an outer step is made: in that of its gradient, and of the momentum where nobody is sent it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.messages import WantedState
from isthmus.ops.kernels import nesterov
from isthmus.ops.kernels.buffers import copied, given
from isthmus.ops.syncer import state_sender
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.state_sender import StateSender
from tests.ops.bodies import Context
from tests.patience import PATIENCE

SIZE = 2**18
"""Values of the smallest fragment whose memory is lent."""
LR, MU = 0.5, 0.75
PART = Fragment(0, (Unit("a", 0, SIZE, (SIZE,)),))
HOME = ("recorder/0", None)


def gradient(count: int) -> Any:
    """The one that makes version `count`, of which the first is that itself."""
    direction = copied(np.random.default_rng(count).standard_normal(SIZE, np.float32))
    return {
        "fragment": 0,
        "round": count,
        "kind": "merge" if count else "initial",
        "version": [1, count],
        "direction": given(direction) if count else direction,
        "scale": np.ones(1, np.float32),
        "clock": [],
        "positions": [],
        "totals": [],
        "lives": [],
        "lengths": [],
        "merging": {"refused": []},
    }


def versions() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Values and momentum of each version, made in new memory."""
    theta, momentum, count = gradient(0)["direction"], np.zeros(SIZE, np.float32), 0
    while True:
        yield theta, momentum
        count += 1
        stepped, momentum = gradient(count)["direction"], momentum.copy()
        nesterov.step_over(theta, momentum, stepped, np.ones(1, np.float32), PART, LR, MU)
        theta = stepped


def shard(momentum: float = MU) -> OuterStep:
    outer = OuterStep([PART], lr=LR, momentum=momentum)
    outer.open(Context("syncer"))
    return outer


def stepped(outer: OuterStep, count: int) -> Any:
    return outer(gradient=gradient(count))["state"]


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def sender_of() -> StateSender:
    sender = StateSender()
    sender.open(Context("syncer"))
    return sender


def sent_of(count: int, values: np.ndarray, momentum: np.ndarray) -> bytes:
    """What is sent of a version: of the first no momentum, which is zeros."""
    return (momentum.tobytes() if count else b"") + values.tobytes()


@pytest.mark.parametrize("momentum", [MU, 0.0])
def test_a_step_makes_no_memory(momentum: float) -> None:
    outer, places = shard(momentum), []
    stepped(outer, 0)
    for count in range(1, 4):
        pulled = gradient(count)
        state = outer(gradient=pulled)["state"]
        assert address(state["values"]) == address(pulled["direction"])
        places.append([address(array) for array in state["tensors"].values()])
        del state
    assert places == [places[0]] * 3


def test_what_anybody_has_of_a_version_stays() -> None:
    outer, held = shard(), []
    for count in range(4):
        state = stepped(outer, count)
        # Whole, as a view, and as bytes on their way.
        held.append((state, state["values"][5:], memoryview(state["tensors"]["momentum"]).cast("B")))
    for (state, view, data), (values, momentum) in zip(held, versions(), strict=False):
        assert state["values"].tobytes() == values.tobytes()
        assert view.tobytes() == values[5:].tobytes()
        assert state["tensors"]["momentum"].tobytes() == bytes(data) == momentum.tobytes()


def test_a_state_that_is_being_sent_stays_and_the_next_is_made_in_place_again() -> None:
    outer, sender = shard(), sender_of()
    sender(state={HOME: stepped(outer, 0)})
    sender(wanted={HOME: WantedState(fragment=0, number=1, at=0)})
    sender(state={HOME: stepped(outer, 1)})
    sent = sender(wanted={HOME: WantedState(fragment=0, number=1, at=0)}) or []
    assert sent[0][1]["data"].tobytes() == sent_of(0, *next(versions()))
    sender(wanted={HOME: WantedState(fragment=0, number=0, at=0)})
    del sent
    places = {address(stepped(outer, count)["tensors"]["momentum"]) for count in range(2, 5)}
    assert len(places) == 1


def test_a_state_that_is_asked_for_during_a_step_is_the_next_one() -> None:
    outer, sender = shard(), sender_of()
    sender(state={HOME: stepped(outer, 0)})
    state = stepped(outer, 1)
    assert sender(wanted={HOME: WantedState(fragment=0, number=1, at=0)}) is None
    ports = dict(sender(state={HOME: state}) or [])
    assert ports["part"]["books"]["version"] == ports["published"]["version"] == [1, 1]
    # What is not asked for any more is not sent.
    state = stepped(outer, 2)
    sender(wanted={HOME: WantedState(fragment=0, number=2, at=0)})
    sender(wanted={HOME: WantedState(fragment=0, number=0, at=0)})
    assert [port for port, _ in sender(state={HOME: state}) or []] == ["published"]


@pytest.mark.slow
def test_transfers_in_another_thread_are_each_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever they begin and end, and however long they last; of steps some are in place, and some are not."""
    monkeypatch.setattr(state_sender, "PART_BYTES", SIZE)
    outer, sender, states = shard(), sender_of(), SimpleQueue[Any]()
    expected = [sent_of(count, *version) for count, version in enumerate(islice(versions(), 40))]
    places, transfers = set[int](), list[tuple[int, bytes]]()

    def send() -> None:
        rng, number, got, version, is_over = random.Random(7), 1, b"", -1, False
        while not is_over:
            inputs: dict[str, Any] = {"wanted": {HOME: WantedState(fragment=0, number=number, at=len(got))}}
            with suppress(Empty):
                inputs["state"] = {HOME: states.get_nowait()}
                if inputs["state"][HOME] is None:
                    is_over = bool(inputs.pop("state"))
            for port, part in sender(**inputs) or []:
                if port != "part" or part["number"] != number or part["at"] != len(got):
                    continue
                version = part["books"]["version"][1] if "books" in part else version
                got += part["data"].tobytes()
                if len(got) == part["size"] or rng.random() < 0.1:  # Whole, or given up.
                    transfers.append((version, got))
                    number, got = number + 1, b""

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        for count in range(len(expected)):
            state = stepped(outer, count)
            places.add(address(state["tensors"]["momentum"]))
            states.put(state)
            del state
        states.put(None)
        sending.result(PATIENCE)
    assert all(expected[version].startswith(got) for version, got in transfers)
    assert len({version for version, got in transfers if len(got) == len(expected[version])}) > 1
    assert 1 < len(places) < len(expected)
