"""Runs of models whose leaves are frozen but for adapters: what is sent, kept and loaded, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import At, Program, Task, load
from isthmus.programs.engine.request import new_spec, spec
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.errors import ConfigError
from tests.effort import long

WIDTH = 16


def adapters_of(hidden: int, scale: float = 1.0) -> Task:
    """A task with a frozen model of `hidden` rows and WIDTH columns, and adapters whose size does not depend on it."""

    def init(key: Any) -> Any:
        base = {"in": jax.random.normal(jax.random.key(1), (WIDTH, hidden)) * scale}
        return {"base": base, "down": jax.random.normal(key, (WIDTH, 2)), "up": jnp.zeros((2, 1)), "b": jnp.zeros(1)}

    def loss(params: Any, batch: Any) -> Any:
        deep = jnp.mean(jnp.tanh(batch["x"] @ params["base"]["in"]), 1, keepdims=True)
        return jnp.mean((deep + batch["x"] @ params["down"] @ params["up"] + params["b"] - batch["y"]) ** 2)

    def batch(at: At) -> Any:
        x = at.rng().normal(size=(16, WIDTH)).astype(np.float32)
        return {"x": x, "y": x.sum(1, keepdims=True)}

    merge = {"base/**": "frozen", "**": "rda"}
    return Task(init, loss, batch, tokens_per_batch=16, optimizer=optax.adam(1e-2), merge=merge, evaluation=2)


def sent(summary: Any) -> dict[str, tuple[int, int]]:
    """(items, bytes) of each edge."""
    return {f"{each['source']} -> {each['target']}": (each["items"], each["bytes"]) for each in summary["edges"]}


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize("program", ["decoupled-diloco", long("streaming-diloco")])
def test_bytes_are_those_of_the_adapters(world: Worlds, program: str) -> None:
    """A frozen model of 1,000 times the size adds no byte to what is sent and kept, and is loaded whole."""
    results = [
        world.run(Program(program, fragments=1, interval=8), task=adapters_of(hidden), learners=2, steps=60)
        for hidden in (4, 4000)
    ]
    small, large = (each.summary for each in results)
    size = 2 * WIDTH + 2 + 1  # Values of the adapters.
    items, size_bytes = sent(large)["fragment-send.answer -> merge.answer"]
    assert 0 < size_bytes < items * (4 * size + 2000)
    for edge, (items, size_bytes) in sent(small).items():
        assert sent(large)[edge] == (items, pytest.approx(size_bytes, rel=0.02)), edge
    assert large["eval_loss_final"] < 0.9 * large["eval_loss_initial"]
    kept = [sum(f.stat().st_size for f in (each.folder / FOLDER).rglob("*") if f.is_file()) for each in results]
    assert max(kept) - min(kept) < 2000
    model = load(results[1].folder, adapters_of(4000))
    np.testing.assert_array_equal(model["base"]["in"], adapters_of(4000).init(jax.random.key(0))["base"]["in"])
    assert float(np.abs(model["up"]).max()) > 0
    request = prepare(task=adapters_of(4000), run={"tokens": 10_000, "learners": 2})
    spec.write(results[1].folder, new_spec.of(request, zero_ns=0, cpu_seconds=0.0))  # As of a real run.
    with pytest.raises(ConfigError, match="expected frozen leaf 'base/in' with digest"):
        load(results[1].folder, adapters_of(4000, scale=2.0))


@pytest.mark.slow
def test_a_request_names_them_by_digest() -> None:
    request = prepare(task=adapters_of(4), run={"tokens": 10_000, "learners": 2})
    assert [tensor.name for tensor in request.job.layout] == ["b", "down", "up"]
    ((name, digest),) = request.job.frozen
    assert name == "base/in"
    assert spec.read(new_spec.of(request, zero_ns=0, cpu_seconds=0.0)).job.frozen == ((name, digest),)
    other = prepare(task=adapters_of(4, scale=2.0), run={"tokens": 10_000, "learners": 2})
    assert other.job.frozen != request.job.frozen
    assert other.fingerprint != request.fingerprint


@pytest.mark.parametrize(
    ("merge", "program", "run", "found"),
    [
        ({"**": "frozen"}, "decoupled-diloco", {}, "all of them frozen"),
        ({"base/**": "frozen", "**": "rda"}, "data-parallel", {}, None),
        ({"base/**": "frozen", "**": "rda"}, "decoupled-diloco", {"processes": (2, 1)}, "the frozen leaf 'base/in'"),
    ],
)
def test_what_is_refused(merge: Any, program: str, run: Any, found: str | None) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(program, replace(adapters_of(4), merge=merge), run={"tokens": 10_000, "learners": 2, **run})
    assert found is None or found in [fault.found for fault in error.value.faults]
