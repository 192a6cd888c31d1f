"""Tasks whose layers are cut into stages: what is refused before a run, and that a step is traced by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import At, Task, scan_layers
from isthmus.ops.island.functions import functions_of
from isthmus.programs import language_model
from isthmus.programs.engine.islands.sizes import sizes_here, sizes_on
from isthmus.programs.engine.request.faults import mesh_faults
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.evaluations import RunSize
from isthmus.programs.language_model import chosen
from isthmus.programs.language_model import task as language_task
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError

MESH = {"data": -1, "stage": 2}


def init(key: Any) -> Any:
    return {"layers": 0.1 * jax.random.normal(key, (4, 8, 8)), "scale": jnp.ones(8)}


def layer(x: Any, weights: Any) -> tuple[Any, None]:
    return x + jnp.tanh(x @ weights), None


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean((scan_layers(layer, batch["x"] * params["scale"], params["layers"])[0] - 1.0) ** 2)


def scanned(params: Any, batch: Any) -> Any:
    return jnp.mean((jax.lax.scan(layer, batch["x"] * params["scale"], params["layers"])[0] - 1.0) ** 2)


def closing(params: Any, batch: Any) -> Any:
    def scaled(x: Any, weights: Any) -> tuple[Any, None]:
        return x + jnp.tanh(params["scale"] * x @ weights), None

    return jnp.mean((scan_layers(scaled, batch["x"], params["layers"])[0] - 1.0) ** 2)


def batch(at: At) -> Any:
    return {"x": at.rng().normal(size=(8, 8)).astype(np.float32)}


def staged(of: Callable[[Any, Any], Any] = loss, **layout: Any) -> Task:
    given = {"init": init, "optimizer": optax.sgd(0.1), "mesh": MESH, "stacked": ("layers",)} | layout
    return Task(loss=of, batch=batch, tokens_per_batch=8, **given)


def faults(task: Task, devices: int = 2) -> list[tuple[str, str]]:
    return [(fault.action, fault.found) for fault in mesh_faults(task, devices, 0, 0, "an island")]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_layers_and_batches_that_divide_are_accepted(devices: int) -> None:
    assert faults(staged(), devices) == []


@pytest.mark.parametrize(
    ("task", "devices", "action", "found"),
    [
        (staged(), 3, "Making a mesh (an island)", "3"),
        (staged(), 16, "Cutting a batch into micro-batches (an island)", "8 rows"),
        (staged(mesh={"data": 1, "stage": 3}), 3, "Cutting 'layers' (an island)", "4 layers"),
        (staged(scanned), 2, "Cutting layers into stages (an island)", "one that does not"),
    ],
)
def test_what_stages_do_not_divide_is_refused_by_name(task: Task, devices: int, action: str, found: str) -> None:
    assert faults(task, devices) == [(action, found)]


def test_a_layer_that_closes_over_parameters_is_refused_where_it_is() -> None:
    with pytest.raises(ConfigError, match=r"Running a step by the stages of mesh=.*test_stages\.py"):
        faults(staged(closing))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"stacked": ()}, "expected stacked= layers, which the axis 'stage' of mesh= cuts, found none"),
        ({"mesh": {"stage": 2}}, "expected another axis before 'stage' in mesh="),
    ],
)
def test_a_task_without_layers_to_cut_is_refused_as_it_is_made(layout: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        staged(**layout)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"stages": 2}, "Setting task.stages: expected stacked layers"),
        ({"microbatches": 2}, "Setting task.microbatches: expected stacked layers"),
        ({"stages": 3, "batch": 9, "stacked": True}, "Setting task.stages: expected a number that divides 4 layers"),
        ({"stages": 2, "batch": 7, "stacked": True}, "found 7 rows"),
        ({"stages": 2, "batch": [8, 7], "stacked": True}, "found 7 rows"),
        ({"stages": 2, "batch": 6, "microbatches": 3, "stacked": True}, "found 3 micro-batches"),
    ],
)
def test_settings_of_the_shipped_task_that_do_not_divide_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        language_task(layers=4, **settings)


def test_a_batch_that_is_chosen_divides_into_micro_batches() -> None:
    settings, run = Schema.of("task", language_model.task).read({"optimizer": "muon"}), RunSize(4000, 2)
    assert chosen({**settings, "stages": 4, "microbatches": None}, run)["batch"] % 4 == 0
    assert chosen({**settings, "stages": 2, "microbatches": 6}, run)["batch"] % 6 == 0


@pytest.mark.slow
def test_elastic_islands_need_devices_for_all_stages_when_a_process_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    run = {"learners": 2, "tokens": 10_000, "devices_min": 1, "processes": (2,)}
    with pytest.raises(ConfigError, match=r"Reading run\.devices_min: expected stages"):
        sizes_here(prepare(task=staged(), run=run))
    request = prepare(task=staged(), run={**run, "devices_min": 2, "processes": (4,)})
    assert sizes_on(request, (4, 1), (1, 2)) == [[2, 4], []]
    assert list(tmp_path.iterdir()) == []


def test_micro_batches_pass_a_layer_each_by_itself() -> None:
    def centred(x: Any, weights: Any) -> tuple[Any, Any]:
        return x - x.mean(0) + 0 * weights.sum(), x.mean()

    x, layers = jnp.arange(16.0).reshape(8, 2), jnp.zeros((3, 2))
    whole, means = scan_layers(centred, x, layers)
    parted, means_parted = scan_layers(centred, x, layers, microbatches=4)
    assert not np.allclose(whole, parted)
    np.testing.assert_array_equal(
        parted, (x.reshape(4, 2, 2) - x.reshape(4, 2, 2).mean(1, keepdims=True)).reshape(8, 2)
    )
    np.testing.assert_allclose(means_parted, means, atol=1e-6)
    assert replace(staged(), mesh={"data": -1}).recipe().mesh == (("data", -1),)


def test_layers_that_are_not_merged_lie_by_stages_like_their_moments() -> None:
    merge = {"layers/base": "frozen", "layers/own": "local", "**": "rda"}

    def made(key: Any) -> Any:
        return {
            "layers": {name: jnp.ones((4, 64, 64)) for name in ("base", "own", "shared")},
            "head": jnp.ones((32, 128)),
        }

    task = staged(
        init=made, mesh={"data": -1, "stage": 1}, stacked=("layers/**",), merge=merge, optimizer=optax.adam(0.1)
    )
    layout = functions_of(task, (), 0.0, tuple(jax.devices()[:1])).layout
    assert layout is not None
    specs = sorted((tuple(each.spec) for each in (*layout.merged, *layout.local)), key=str)
    # The count of Adam; three leaves of layers, with moments of the two that are trained; the head, with moments.
    assert specs == [("stage",)] * 7 + [()] + [(None, "stage")] * 3


def test_a_staged_task_of_a_step_is_traced_too() -> None:
    def step(state: Any, batch: Any, now: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, state, gradient), {"loss": value}

    task = Task.of_step(
        init,
        step,
        lambda state, batch: {"loss": loss(state, batch)},
        batch,
        tokens_per_batch=8,
        merge={"**": "rda"},
        mesh=MESH,
        stacked=("layers",),
    )
    assert [fault.action for fault in mesh_faults(task, 2, 0, 0, "an island")] == []
    assert [fault.found for fault in mesh_faults(task, 16, 0, 0, "an island")] == ["8 rows"]
