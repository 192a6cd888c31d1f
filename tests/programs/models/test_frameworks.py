"""The examples of other libraries' models: they train, and are the same model as one that is written out.

Each library's model with the same first values, without dropout, is stepped by a learner on the same batches.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import Program, Task, train
from isthmus.ops.data.batches import At
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from tests.effort import soaked

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
LIBRARIES = ("flax_nnx", "flax_linen", "equinox_model")
RNG = np.random.default_rng(0)
KERNELS = {size: RNG.normal(size=size, scale=size[0] ** -0.5).astype(np.float32) for size in ((64, 32), (32, 10))}
STEPS = 50


def example(name: str, monkeypatch: pytest.MonkeyPatch, **constants: object) -> ModuleType:
    """An example as a module of its own, with other constants."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    for constant, value in constants.items():
        assert hasattr(module, constant)
        setattr(module, constant, value)
    return module


def first(path: str, shape: Any) -> Any:
    """The first value of a leaf: the same matrices whatever they are called and which way they lie."""
    if len(shape.shape) == 2:
        return KERNELS[shape.shape] if shape.shape in KERNELS else KERNELS[shape.shape[::-1]].T
    return np.zeros(shape.shape, shape.dtype) if "first/bias" in path or "last/bias" in path else None


def plain_loss(params: Any, batch: Any) -> Any:
    """The model without any library, in training."""
    x = batch["x"] @ params["first"]["w"] + params["first"]["b"]
    x = (x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-5) * params["norm"]["scale"] + params["norm"]["shift"]
    logits = jax.nn.relu(x) @ params["last"]["w"] + params["last"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def plain_init(key: Any) -> Any:
    first, last = ({"w": jnp.asarray(w), "b": jnp.zeros(w.shape[1])} for w in KERNELS.values())
    return {"first": first, "last": last, "norm": {"scale": jnp.ones(32), "shift": jnp.zeros(32)}}


def losses(task: Task) -> list[float]:
    learner = Learner(task, (), life=LearnerLife(0, 0, 1))
    learner.begin()
    return [float(learner.step(task.batch(At(0, 0, i)), i / STEPS)["loss"]) for i in range(STEPS)]


@pytest.fixture(scope="module")
def plain() -> list[float]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)

    def batch(at: At) -> Any:
        rows = at.rng().integers(1500, size=64)
        return {"x": x[rows].astype("float32") / 16, "y": y[rows]}

    task = Task(plain_init, plain_loss, batch, tokens_per_batch=64, optimizer=optax.sgd(0.1, momentum=0.9))
    found = losses(task)
    assert found[-1] < 0.2 < 2.0 < found[0]
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", [LIBRARIES[0], *map(soaked, LIBRARIES[1:])])
def test_the_losses_are_those_of_the_same_model_without_a_library(
    name: str, plain: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(example(name, monkeypatch, DROPOUT=0.0).task, load=first)
    np.testing.assert_allclose(losses(task), plain, rtol=1e-5)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_script_becomes_a_task_by_at_most_twelve_lines_which_its_page_shows(name: str) -> None:
    script, added = (EXAMPLES / f"{name}.py").read_text().split("# -- for isthmus")
    page = (EXAMPLES.parent / "how-to" / "bring-a-flax-or-equinox-model.md").read_text()
    assert f"```python\n{added.partition(chr(10))[2]}```" in page
    lines = [line for line in added.splitlines()[1:] if line.strip()]
    lines += [line for line in script.split('"""')[2].splitlines() if "isthmus" in line]
    assert 0 < len(lines) <= 12, lines
    assert f"[{name}.py](../examples/{name}.py)" in page
    assert f"| {len(lines)} |" in next(line for line in page.splitlines() if f"[{name}.py]" in line)
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", [LIBRARIES[0], *map(soaked, (*LIBRARIES[1:], "optax_chain"))])
def test_two_learners_train_it_in_this_process(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = example(name, monkeypatch).task
    program = Program("decoupled-diloco", interval=12, fragments=2)
    result = train(program, task, learners=2, tokens=400 * 64, run_dir=tmp_path / "run", transport="inproc", quiet=True)
    summary = result.summary
    assert summary["outer_steps"] > 0
    assert result.eval_loss < 0.5 * summary["eval_loss_initial"]
    assert summary["eval_metrics"]["accuracy"] > 0.7
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert jax.tree.structure(shapes) == jax.tree.structure(result.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("name", [LIBRARIES[0], *map(soaked, LIBRARIES[1:])])
def test_dropout_draws_anew_in_every_step(name: str, plain: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    wet = replace(example(name, monkeypatch, DROPOUT=0.5).task, load=first)
    still = replace(wet, batch=lambda at: wet.batch(At(0, 0, 0)), load=first)
    task = replace(still, step=lambda state, batch, now: (state, still.step(state, batch, now)[1]))
    found = losses(task)
    assert abs(found[0] - plain[0]) > 1e-3
    if name != "flax_nnx":  # There the keys are part of the state, which this step gives back as it was.
        assert len(set(found)) > STEPS // 2
