"""What is wrong with a first step is known before any: parameters without a gradient, a loss that is not finite."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import Task
from isthmus.programs import training
from isthmus.programs.engine.islands import claims
from isthmus.programs.engine.islands.environment import Accelerators
from isthmus.programs.engine.request import layout
from isthmus.programs.engine.request.request import prepare
from isthmus.runtime.errors import ConfigError


def init(key: Any) -> Any:
    return {"w": jax.random.normal(key, (4, 1)), "b": jnp.zeros(1), "stats": {"mean": jnp.zeros(4)}}


def loss(params: Any, batch: Any) -> Any:
    x = batch["x"] - params["stats"]["mean"]
    return jnp.mean((x @ params["w"] + params["b"]) ** 2)


def batch(at: Any) -> Any:
    return {"x": at.rng().normal(size=(8, 4)).astype(np.float32)}


TASK = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))


def frozen(params: Any, batch: Any) -> Any:
    held = {"mean": jax.lax.stop_gradient(params["stats"]["mean"])}
    return loss({**params, "stats": held}, batch)


def unused(params: Any, batch: Any) -> Any:
    return jnp.mean((batch["x"] @ params["w"]) ** 2)


def dead(params: Any, batch: Any) -> Any:
    """Zeros at the first batch, and not for ever: what is before a layer of zeros learns once that does."""
    return jnp.mean((batch["x"] @ (params["b"] * params["w"]) - 1.0) ** 2) + jnp.sum(params["stats"]["mean"])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepared(task: Task, tokens: int = 100_000) -> Any:
    return prepare(task=task, run={"tokens": tokens, "learners": 1})


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (loss, []),
        (dead, []),
        (frozen, ["stats/mean"]),
        (jax.jit(frozen), ["stats/mean"]),
        (unused, ["b", "stats/mean"]),
    ],
)
def test_parameters_that_no_path_leads_to_are_named(function: Any, names: list[str]) -> None:
    assert layout.without_gradient(replace(TASK, loss=function), 0) == names


def test_a_request_has_what_is_odd_about_its_task() -> None:
    assert [warning.found for warning in prepared(replace(TASK, loss=frozen)).warnings] == ["none for 'stats/mean'"]
    assert prepared(TASK).warnings == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"loss": lambda params, batch: jnp.log(-jnp.sum(params["w"] ** 2))}, "found nan"),
        ({"loss": lambda params, batch: jnp.sum(params["w"]) / jnp.sum(params["b"])}, "inf"),
        ({"init": lambda key: {**init(key), "w": jnp.full((4, 1), jnp.nan)}}, "'w'"),
        ({"batch": lambda at: {"x": np.full((8, 4), np.inf, np.float32)}}, "'x'"),
    ],
)
def test_a_loss_that_is_not_finite_is_refused(tmp_path: Any, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match="expected a finite loss") as caught:
        prepared(replace(TASK, **changed))
    assert told in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", ["PARAMETERS_MAX", "BATCH_BYTES_MAX", "OPERATIONS_MAX"])
def test_what_is_large_is_not_compiled_for_that(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Its loss is not computed, so nobody knows yet that it is none."""
    monkeypatch.setattr(layout, limit, 3)
    layout.check_first_loss(replace(TASK, loss=lambda params, batch: jnp.log(-jnp.sum(params["w"] ** 2))), 0)


def test_a_budget_below_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one step, which is 8 tokens"):
        prepared(TASK, 7)
    assert prepared(TASK, 8).job.tokens == 8


def test_where_jax_has_no_cpu_the_loss_is_computed_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with JAX_PLATFORMS=cuda, for a run in one process."""

    def no_cpu(backend: str | None = None) -> Any:
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    layout.check_first_loss(TASK, 0)
    with pytest.raises(ConfigError, match="expected a finite loss"):
        layout.check_first_loss(replace(TASK, loss=lambda params, batch: jnp.log(-jnp.sum(params["w"] ** 2))), 0)


def test_where_computing_would_take_the_learners_accelerators_the_loss_is_not_computed() -> None:
    infinite = replace(TASK, loss=lambda params, batch: jnp.log(-jnp.sum(params["w"] ** 2)))
    with pytest.raises(ConfigError, match="expected a finite loss"):
        prepare(task=infinite, run={"tokens": 1000, "learners": 1})
    assert prepare(task=infinite, run={"tokens": 1000, "learners": 1}, computes=False).job.tokens == 1000


@pytest.mark.parametrize(("transport", "computes"), [("zmq", False), ("inproc", True)])
def test_a_script_starts_no_accelerator_unless_the_run_is_in_it(
    monkeypatch: pytest.MonkeyPatch, transport: str, computes: bool
) -> None:
    named: dict[str, str] = {}
    monkeypatch.setattr(claims, "has_backend", lambda: False)
    monkeypatch.setattr(claims.environment, "find", lambda: Accelerators("cuda", ("0",)))
    monkeypatch.setattr(claims, "set_environment", named.update)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)

    class PreparedError(Exception):
        pass

    def spied(*_: Any, computes: bool, **__: Any) -> Any:
        raise PreparedError(computes)

    monkeypatch.setattr(training, "prepare", spied)
    with pytest.raises(PreparedError, match=str(computes)):
        training.train("decoupled-diloco", TASK, transport=transport)
    assert named == ({"JAX_PLATFORMS": "cuda,cpu"} if computes else {})


APART = """
import json, os
from isthmus.programs.engine.request.environment import computed_apart, has_backend, stay_forkable
def compute():
    import jax.numpy as jnp
    return [float(jnp.sqrt(-1.0)), os.getpid()]
def fail():
    if os.getpid() != own:
        raise ValueError
    return "here"
own = os.getpid()
stay_forkable()
value, pid = computed_apart(compute)
print(value != value, pid != own, has_backend(), len(os.listdir("/proc/self/task")), computed_apart(fail))
"""


@pytest.mark.process
def test_a_process_that_hosts_are_forked_from_computes_a_first_loss_in_another_one() -> None:
    done = subprocess.run([sys.executable, "-c", APART], capture_output=True, text=True, check=False)
    assert done.stdout == "True True False 1 here\n", done.stderr
