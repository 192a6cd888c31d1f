"""A shard that comes back goes on with the momentum of its former life, where it fits, whenever it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.syncer.outer_step import OuterStep
from tests.ops.bodies import Context
from tests.ops.syncer.test_merge_and_outer_step import PARTS

SIZE, UNITS = PARTS[0].size, len(PARTS[0].units)
MU = 0.5


def gradient(kind: str, version: list[int], values: Any) -> Any:
    return {
        "fragment": 0,
        "round": version[1],
        "kind": kind,
        "version": version,
        "direction": np.broadcast_to(np.asarray(values, np.float32), (SIZE,)).copy(),
        "scale": np.ones(UNITS, np.float32),
        "clock": [],
        "positions": [],
        "totals": [],
        "lives": [],
        "lengths": [],
        "merging": {"refused": []},
    }


def shard(life: int) -> OuterStep:
    outer = OuterStep(PARTS, lr=0.25, momentum=MU)
    outer.open(Context("syncer", incarnation=life))
    return outer


def step(outer: OuterStep, life: int, count: int, kept: Any = None) -> Any:
    """The outer step to version [life, count]: its gradient is that of the count."""
    given = {} if kept is None else {"kept": {("recorder/0", 0): kept}}
    return outer(gradient=gradient("merge", [life, count], np.linspace(-count, 1.5, SIZE)), **given)


def former() -> Any:
    """The state of version [1, 2] of a shard's first life."""
    outer = shard(1)
    outer(gradient=gradient("initial", [1, 0], 1.0))
    return [step(outer, 1, count)["state"] for count in (1, 2)][-1]


def kept_of(state: Any, **other: Any) -> Any:
    return {"fragment": 0, "version": state["version"], "tensors": state["tensors"], **other}


def test_a_state_is_what_is_published_and_the_momentum_beside_it() -> None:
    outer = shard(1)
    emitted = outer(gradient=gradient("initial", [1, 0], 1.0))
    beside = {"tensors": None, "lengths": []}
    assert {**emitted["state"], **beside} == {**emitted["update"], **beside}
    np.testing.assert_array_equal(emitted["state"]["tensors"]["momentum"], np.zeros(SIZE))
    without = OuterStep(PARTS, lr=0.25, momentum=0.0)
    without.open(Context("syncer"))
    assert without(gradient=gradient("initial", [1, 0], 1.0))["state"]["tensors"] == {}


def test_given_in_time_every_step_is_as_if_the_shard_had_never_been_away() -> None:
    alone, back, state = shard(1), shard(2), former()
    alone(gradient=gradient("initial", [1, 0], 1.0))
    uninterrupted = [step(alone, 1, count) for count in range(1, 6)][2:]
    told = back(gradient=gradient("recover", [1, 2], state["values"]))
    assert told["merged"]["momentum"] is None
    resumed = [step(back, 2, 3, kept_of(state)), *(step(back, 2, count) for count in (4, 5))]
    for one, other in zip(resumed, uninterrupted, strict=True):
        assert one["update"]["values"].tobytes() == other["update"]["values"].tobytes()
        assert one["merged"]["momentum"] == [1, 2]


@pytest.mark.parametrize("late", [1, 2, 3])
def test_given_late_it_counts_as_much_as_if_it_had_been_there(late: int) -> None:
    alone, back, state = shard(1), shard(2), former()
    alone(gradient=gradient("initial", [1, 0], 1.0))
    uninterrupted = [step(alone, 1, count) for count in range(1, 3 + late + 1)][-1]
    back(gradient=gradient("recover", [1, 2], state["values"]))
    for count in range(3, 3 + late):
        step(back, 2, count)
    told = step(back, 2, 3 + late, kept_of(state))
    expected = uninterrupted["state"]["tensors"]["momentum"]
    np.testing.assert_allclose(told["state"]["tensors"]["momentum"], expected, rtol=1e-6, atol=1e-6)


def test_one_that_is_older_in_the_same_epoch_counts_as_the_part_that_is_left_of_it() -> None:
    back, state = shard(2), former()
    back(gradient=gradient("recover", [1, 4], state["values"]))
    told = step(back, 2, 5, kept_of(state))
    new = np.linspace(-5, 1.5, SIZE)
    expected = MU * (MU**2 * state["tensors"]["momentum"].astype(np.float64)) + new
    np.testing.assert_allclose(told["state"]["tensors"]["momentum"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        {"version": [1, 3]},  # Newer than what learners hold: of gradients that are undone.
        {"version": [0, 1]},  # Of another epoch: nobody can say what came between.
        {"fragment": 9},
        {"tensors": {}},
        {"tensors": {"momentum": np.ones(SIZE + 1, np.float32)}},
        {"tensors": {"momentum": np.full(SIZE, np.nan, np.float32)}},
        {"tensors": {"momentum": np.full(SIZE, 1e30, np.float32)}},
    ],
)
def test_one_that_does_not_fit_is_left_aside(other: dict[str, Any]) -> None:
    back, state = shard(2), former()
    back(gradient=gradient("recover", [1, 2], state["values"]))
    told = step(back, 2, 3, kept_of(state, **other))
    np.testing.assert_array_equal(told["state"]["tensors"]["momentum"], np.linspace(-3, 1.5, SIZE, dtype=np.float32))
    assert told["merged"]["momentum"] is None


def coded(life: int) -> OuterStep:
    outer = OuterStep(PARTS, lr=0.25, momentum=MU, update="int4")
    outer.open(Context("syncer", incarnation=life))
    return outer


def test_theta_is_gone_on_with_where_what_is_published_is_coded() -> None:
    alone, back = coded(1), coded(2)
    alone(gradient=gradient("initial", [1, 0], 1.0))
    state = [step(alone, 1, count)["state"] for count in (1, 2)][-1]
    assert state["tensors"]["theta"].tobytes() != state["values"].tobytes()
    uninterrupted = [step(alone, 1, count) for count in (3, 4)]
    back(gradient=gradient("recover", [1, 2], state["values"]))
    resumed = [step(back, 2, 3, kept_of(state)), step(back, 2, 4)]
    for one, other in zip(resumed, uninterrupted, strict=True):
        assert one["update"]["values"].tobytes() == other["update"]["values"].tobytes()
        assert one["state"]["values"].tobytes() == other["state"]["values"].tobytes()
    late = coded(2)
    late(gradient=gradient("recover", [1, 2], state["values"]))
    step(late, 2, 3)
    told = step(late, 2, 4, kept_of(state))["state"]
    assert told["tensors"]["theta"].tobytes() != uninterrupted[-1]["state"]["tensors"]["theta"].tobytes()
    np.testing.assert_allclose(
        told["tensors"]["momentum"], uninterrupted[-1]["state"]["tensors"]["momentum"], atol=1e-5
    )


def test_a_theta_that_comes_after_a_step_takes_nothing_back() -> None:
    """It is of the version before that step: to go on from it would lose the step."""

    def back() -> OuterStep:
        outer = OuterStep(PARTS, lr=0.25, momentum=0.0, update="int4")
        outer.open(Context("syncer", incarnation=2))
        return outer

    former_life = OuterStep(PARTS, lr=0.25, momentum=0.0, update="int4")
    former_life.open(Context("syncer", incarnation=1))
    former_life(gradient=gradient("initial", [1, 0], 1.0))
    state = [step(former_life, 1, count)["state"] for count in (1, 2)][-1]
    without, late = back(), back()
    for outer in (without, late):
        outer(gradient=gradient("recover", [1, 2], state["values"]))
        step(outer, 2, 3)
    told, expected = step(late, 2, 4, kept_of(state)), step(without, 2, 4)
    assert told["state"]["tensors"]["theta"].tobytes() == expected["state"]["tensors"]["theta"].tobytes()
