"""With how many of its processes an elastic island may train, and what is refused of `run.devices_min`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from isthmus import At
from isthmus.programs.engine.islands.sizes import cpu_devices, sizes_here, sizes_on
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.runtime.errors import ConfigError
from tests.programs.family import task as task_of


@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    monkeypatch.chdir(tmp_path)

    def make(batch: int, devices_min: int, processes: tuple[int, ...] = (4,)) -> Request:
        run = {"learners": 2, "tokens": 100_000, "devices_min": devices_min, "processes": processes}
        return prepare(run=run, task_settings={"batch": batch, "layers": 1, "width": 32, "heads": 2})

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "devices_min", "each", "sizes"),
    [(12, 1, 1, [1, 2, 3, 4]), (12, 2, 1, [2, 3, 4]), (8, 1, 1, [1, 2, 4]), (24, 3, 2, [2, 3, 4]), (8, 0, 1, None)],
)
def test_as_many_as_the_batch_divides_over(
    request_of: object, batch: int, devices_min: int, each: int, sizes: list[int] | None
) -> None:
    request: Request = request_of(batch, devices_min)  # type: ignore[operator]
    assert sizes_on(request, (4, 1), (each, each)) == ([] if sizes is None else [sizes, []])


def test_what_the_variable_of_jax_says_is_what_each_process_has(
    request_of: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert sizes_here(request_of(12, 3, (3,))) == [[2, 3]]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("batch", "devices_min", "processes", "expected"),
    [
        (12, 5, (4,), "at most the 4 devices of the island of learner 0, found 5"),
        (12, 1, (), "an island of several processes, found none"),
        (5, 1, (2,), "a batch that divides by 2"),
    ],
)
def test_what_cannot_be_is_refused(
    request_of: object, batch: int, devices_min: int, processes: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        sizes_on(request_of(batch, devices_min, processes), processes, (1,) * len(processes))  # type: ignore[operator]


def test_one_process_has_no_island_that_goes_on_without_some(request_of: object) -> None:
    with pytest.raises(ConfigError, match=r"found run\.devices_min = 1"):
        request_of(12, 1, ()).in_one_process()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"JAX_NUM_CPU_DEVICES": "3"}, 3),
        ({"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=4"}, 4),
        ({"JAX_PLATFORMS": "rocm"}, None),
        ({"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}, 2),
    ],
)
def test_the_devices_of_a_process_on_the_cpu_are_known_before_it_starts(
    variables: dict[str, str], expected: int | None
) -> None:
    assert cpu_devices(variables) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "mesh", "expected"),
    [
        (64, {"data": -1}, "a batch that divides by 3, the devices along 'data' of the island's mesh, found 64 rows"),
        (63, {"data": -1, "model": 2}, "a multiple of 2 devices"),
        (63, {"data": -1}, None),
    ],
)
def test_a_task_that_does_not_fit_this_machine_is_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batch: int, mesh: dict[str, int], expected: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    task = replace(task_of(optax.sgd(0.1)), batch=lambda at: _rows(at, batch), mesh=mesh)
    request = prepare(task=task, run={"learners": 2, "tokens": 10_000})
    if expected is None:
        assert sizes_here(request) == []
        return
    with pytest.raises(ConfigError, match=expected):
        sizes_here(request)
    assert list(tmp_path.iterdir()) == []


def _rows(at: At, count: int) -> dict[str, Any]:
    x = np.ones((count, 8), np.float32) * at.rng().random(dtype=np.float32)
    return {"x": x, "y": x[:, :1]}
