"""The figures of functions come to those of an island, as data and in words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from isthmus.programs.wings.compile.compiling import lines_of
from isthmus.programs.wings.compile.figures import CountedIsland, Filling, Fit, LargestBatch, summed, target
from tests.programs.wings.compile.made import EXTRACT, LIMIT, MEGA, REFUSED, STEP, answer

TARGET = target("v6e:2x2")


def island(*functions: object) -> CountedIsland:
    return summed(TARGET, 1, answer(*functions))  # type: ignore[arg-type]


def test_an_island_is_what_its_functions_come_to() -> None:
    found = island(STEP, EXTRACT)
    assert found.fits
    assert (found.memory_bytes, found.memory_limit_bytes) == (406 * MEGA, LIMIT)
    assert found.memory == Filling("step", 300 * MEGA, 8 * MEGA, 91 * MEGA, 5 * MEGA, 2 * MEGA)
    assert found.flops_per_device == 10**12
    assert (found.collectives.count, found.collectives.asynchronous) == (12, 5)
    assert found.fragment_bytes == (400 * MEGA,)
    assert found.predicted_step_seconds == pytest.approx(2e9 / 1600e9)
    assert found.predicted_products_seconds == pytest.approx(1e12 / 918e12)
    assert (found.compile_seconds, found.is_kept, found.slot) == (40.5, False, 1)


def test_the_state_that_a_function_leaves_alone_is_in_memory_beside_it() -> None:
    found = island(STEP, EXTRACT).functions[1]
    assert found["memory_bytes"] == (201 + 200) * MEGA


def test_a_program_that_the_compiler_refuses_does_not_fit() -> None:
    found = island(replace(STEP, compiled=None, refused=REFUSED), EXTRACT)
    assert not found.fits
    assert found.memory_bytes == 40_000 * MEGA
    assert found.memory == Filling("step", 300 * MEGA, 8 * MEGA, unknown=39_692 * MEGA)
    assert found.helps == ("smaller-batch", "checkpoint", "more-devices")
    assert found.predicted_step_seconds is None
    assert (found.functions[0]["fits"], found.functions[1]["fits"]) == (False, True)


def test_against_a_state_that_is_too_large_only_more_devices_help() -> None:
    found = island(replace(STEP, state_bytes=33_000 * MEGA, compiled=None, refused=REFUSED))
    assert found.helps == ("more-devices",)


def test_what_fits_alone_does_not_fit_beside_a_state_that_fills_the_memory() -> None:
    found = island(replace(STEP, state_bytes=31_950 * MEGA), EXTRACT)
    assert not found.fits
    assert found.memory.function == "extract/0"


def test_a_step_of_several_functions_costs_what_they_cost_together() -> None:
    found = island(replace(STEP, name="gradient"), replace(STEP, name="apply"))
    assert found.flops_per_device == 2 * 10**12
    assert found.collectives.by_kind == {"all-gather": 14, "all-reduce": 10}
    assert found.predicted_step_seconds == pytest.approx(4e9 / 1600e9)


def test_an_island_is_told_as_json_and_in_words() -> None:
    fits, refused = island(STEP, EXTRACT), island(replace(STEP, compiled=None, refused=REFUSED), EXTRACT)
    data = json.loads(json.dumps(fits.as_data()))
    assert data["island"] == "v6e:2x2"
    assert data["functions"][0]["compiled"]["memory"]["temporaries"] == 90 * MEGA
    lines = lines_of(fits).splitlines()
    assert lines[0] == "v6e:2x2 (4 x TPU v6 lite, learner 1): fits"
    assert lines[1].split(maxsplit=1)[1] == "406 MB of the 32.0 GB of each device, in step"
    assert "1.25 ms at best, of which its products need 1.09 ms; nothing ran" in lines_of(fits)
    assert "12 in a step, 5 asynchronous, 4 with computation scheduled beside them" in lines_of(fits)
    assert lines_of(refused).startswith("v6e:2x2 (4 x TPU v6 lite, learner 1): does not fit\n")
    assert "a smaller batch, or jax.checkpoint in the loss, or an island of more devices" in lines_of(refused)
    assert "predicted" not in lines_of(refused)
    assert "collectives" not in lines_of(refused)
    assert "machines  " not in lines_of(fits)
    assert "machines     4, each with a process of the island" in lines_of(replace(fits, hosts=4))


def test_the_largest_batch_is_told_with_its_tokens() -> None:
    fit = Fit(8, 24, (8, 24, 32), (STEP,))
    found = summed(TARGET, 1, replace(answer(STEP, EXTRACT), fit=fit))
    assert found.is_fitted
    assert found.batch_max == LargestBatch(24, 3 * 1024, 406 * MEGA, pytest.approx(2e9 / 1600e9))
    assert "24 (to 1 in 8), 3,072 tokens" in lines_of(found)


def test_no_batch_fits() -> None:
    found = summed(TARGET, 1, replace(answer(STEP, EXTRACT), fit=Fit(8, None, (8, 4), ())))
    assert (found.is_fitted, found.batch_max) == (True, None)
    assert "largest batch  none" in lines_of(found)
    assert "largest batch" not in lines_of(island(STEP, EXTRACT))
