"""Batches of other sizes: only what is a batch changes, and arrays that share no first axis are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from isthmus.ops.island.life import DeviceCall
from isthmus.programs.wings.compile.figures import Counted
from isthmus.programs.wings.compile.worker import fitted, resized
from isthmus.runtime.errors import ConfigError
from tests.programs.wings.compile.made import MEGA, REFUSED, STEP

STATE = 300 * MEGA


def shape(*sides: int) -> Any:
    here = SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(sides, jnp.float32, sharding=here)  # type: ignore[no-untyped-call]


def step(*batch: Any) -> DeviceCall:
    return DeviceCall("step", None, (shape(8, 8), batch, shape()), is_step=True, batch=1)


def needing(call: DeviceCall, rows: int) -> list[Counted]:
    """As if a row took 10 MB."""
    given = resized(call, rows).arguments[1]
    assert [leaf.shape for leaf in given] == [(rows, *leaf.shape[1:]) for leaf in call.arguments[1]]
    return [replace(STEP, compiled=None, refused=replace(REFUSED, used_bytes=STATE + 10 * MEGA * rows))]


def test_the_largest_batch_is_found_and_told_with_its_functions() -> None:
    call = step(shape(8, 64), shape(8))
    fit = fitted([call], lambda rows: needing(call, rows), STATE, 1000 * MEGA)
    assert fit.rows_given == 8
    assert fit.rows in range(62, 71)
    assert fit.rows in fit.rows_tried
    assert [each.needed(STATE) for each in fit.steps] == [STATE + 10 * MEGA * fit.rows]


def test_where_nothing_fits_there_is_no_batch() -> None:
    call = step(shape(8, 64))
    fit = fitted([call], lambda rows: needing(call, rows), STATE, STATE)
    assert (fit.rows, fit.steps) == (None, ())
    assert fit.rows_tried[-1] == 1


def test_what_takes_no_batch_stays_as_it_is() -> None:
    call = DeviceCall("apply", None, (shape(8, 8), shape(4)))
    assert resized(call, 16) is call


@pytest.mark.parametrize("batch", [(shape(8, 64), shape(4, 8)), (shape(8, 64), shape()), ()])
def test_arrays_without_one_first_axis_are_refused(batch: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="one first axis"):
        fitted([step(*batch)], lambda rows: [], STATE, 1000 * MEGA)
