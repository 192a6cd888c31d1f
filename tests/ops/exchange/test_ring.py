"""The ring all-reduce: every learner gets the same mean, whatever arrives first."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.ring import START, Hop, Ring, chunk_ends, hops, parts
from isthmus.runtime.items.schemas import compiled
from tests.ops.bodies import Context


def rings(count: int) -> list[Ring]:
    opened = [Ring(count, tokens_most=8) for _ in range(count)]
    for slot, ring in enumerate(opened):
        ring.open(Context(slot=slot))
    return opened


def reduced(
    vectors: list[Any],
    *,
    tokens: tuple[int, ...] = (8,) * 7,
    stops: tuple[int, ...] = (),
    steps: int = 1,
    seed: int = 0,
) -> list[list[Any]]:
    """The means of each learner, in steps: hops fire in a random order of those that can."""
    count, rng = len(vectors), random.Random(seed)
    bodies, arrived = rings(count), [deque([START]) for _ in vectors]
    own: list[deque[Any]] = [
        deque(
            part
            for step in range(steps)
            for part in parts(
                vector * np.float32(step + 1),
                slot,
                count,
                step=step,
                tokens=tokens[slot],
                position=step + 1,
                stop=slot in stops,
            )
        )
        for slot, vector in enumerate(vectors)
    ]
    means: list[list[Any]] = [[] for _ in vectors]
    while able := [slot for slot in range(count) if own[slot] and arrived[slot]]:
        slot = rng.choice(able)
        emitted = bodies[slot](own[slot].popleft(), arrived[slot].popleft())
        arrived[(slot + 1) % count].append(emitted["passed"])
        means[slot] += [emitted["mean"]] if "mean" in emitted else []
    assert not any(own)
    assert [list(items) for items in arrived] == [[START]] * count  # As it began.
    return means


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_all_learners_get_the_same_bytes_of_the_mean(count: int) -> None:
    rng = np.random.default_rng(count)
    vectors = [rng.normal(size=23).astype(np.float32) for _ in range(count)]
    exact = np.mean(np.array(vectors, np.float64), axis=0)
    means = [mean for (mean,) in reduced(vectors)]
    assert {mean["values"].tobytes() for mean in means} == {means[0]["values"].tobytes()}
    assert np.allclose(means[0]["values"], exact, atol=1e-6)
    assert [mean["trained"] for mean in means] == [[[slot, 8, 1] for slot in range(count)]] * count
    assert not any(mean["stop"] for mean in means)


def test_the_mean_is_weighted_by_tokens_with_the_same_bytes_everywhere() -> None:
    vectors = [np.full(7, value, np.float32) for value in (1.0, 5.0, 9.0)]
    means = [mean for (mean,) in reduced(vectors, tokens=(1, 8, 3))]
    assert {mean["values"].tobytes() for mean in means} == {means[0]["values"].tobytes()}
    assert means[0]["values"] == pytest.approx([(1 * 1 + 8 * 5 + 3 * 9) / 12] * 7, rel=1e-6)


@pytest.mark.parametrize(
    ("row", "fits"), [([1, 8, 5], True), ([1, 9, 5], False), ([1, 0, 5], False), ([3, 8, 5], False)]
)
def test_a_neighbour_cannot_claim_more_tokens_than_a_batch_has(*, row: list[int], fits: bool) -> None:
    check = compiled(Ring.schemas(3, tokens_most=8)["neighbour"])
    mismatch = check({"trained": [row], "stop": False}, {}, Context(slot=0).member)
    assert (mismatch is None) == fits


def test_the_order_in_which_hops_fire_changes_no_bit() -> None:
    rng = np.random.default_rng(1)
    vectors = [rng.normal(size=50).astype(np.float32) for _ in range(4)]
    runs = [[mean["values"].tobytes() for mean in reduced(vectors, steps=3, seed=seed)[0]] for seed in range(10)]
    assert len(set(map(tuple, runs))) == 1
    assert len(set(runs[0])) == 3


def test_one_learner_that_asks_for_the_end_is_heard_by_all() -> None:
    vectors = [np.ones(8, np.float32)] * 3
    assert [mean["stop"] for (mean,) in reduced(vectors, stops=(1,))] == [True] * 3


def test_a_vector_may_be_shorter_than_the_ring() -> None:
    assert chunk_ends(2, 5) == [0, 0, 0, 1, 1, 2]
    assert [mean["values"].tolist() for (mean,) in reduced([np.arange(2, dtype=np.float32)] * 5)] == [[0, 1]] * 5


def test_the_hops_of_three_learners() -> None:
    assert hops(0, 3) == (
        Hop(0, True, False),
        Hop(2, True, False),
        Hop(1, True, True),
        Hop(0, False, True),
        Hop(2, False, True),
    )
    for rank in range(3):  # Whom a learner gets a chunk from had it a hop before.
        assert [hop.chunk for hop in hops(rank, 3)[1:]] == [hop.chunk for hop in hops((rank - 1) % 3, 3)[:-1]]


@pytest.mark.parametrize("broken", [START, {"hop": 1}, {"step": 1}, {"chunk": 1}])
def test_an_item_of_a_ring_that_was_closed_anew_is_not_summed(broken: dict[str, Any]) -> None:
    ring, own = rings(3)[0], parts(np.ones(6, np.float32), 0, 3, step=0, tokens=8, position=1, stop=False)
    assert ring(own[0], START) is not None
    values = {"values": np.ones(2, np.float32), "trained": [[2, 8, 1]], "stop": False}
    item = {**values, "step": 0, "hop": 0, "chunk": hops(0, 3)[1].chunk, **broken} if broken else broken
    assert ring(own[1], item) is None
    assert ring.is_idle  # For good: it has no sampled port that could wake it.
