"""The second shipped task: its data, its settings, and that islands learn it together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus import Program, train
from isthmus.ops.data.batches import At
from isthmus.programs.digits import HELD_OUT, digits, evaluate, images, logits, task
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.engine.request.reference import load
from isthmus.runtime.errors import ConfigError


@pytest.mark.long
@pytest.mark.slow
def test_held_out_images_are_never_trained_on() -> None:
    x, y = images()
    held_out = list(task.evaluation_batches(0))
    assert sum(len(batch["y"]) for batch in held_out) == HELD_OUT
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in held_out]), x[-HELD_OUT:])
    np.testing.assert_array_equal(np.concatenate([batch["y"] for batch in held_out]), y[-HELD_OUT:])
    shown = np.concatenate([task.batch(At(0, 0, i))["x"] for i in range(40)])[:, 1:-1, 1:-1]
    inner = {
        image[1 + i : 7 + i, 1 + j : 7 + j].tobytes() for image in x[:-HELD_OUT] for i in (-1, 0, 1) for j in (-1, 0, 1)
    }
    assert {image.tobytes() for image in shown} <= inner


@pytest.mark.slow
def test_statistics_are_merged_as_means_and_moments_stay() -> None:
    kinds = {spec.name: spec.merge for spec in layout(task)}
    assert {name for name, kind in kinds.items() if kind == "mean"} == {
        f"statistics/{layer}/{what}" for layer in ("first", "second") for what in ("mean", "variance")
    }
    assert kinds["params/first/kernel"] == "rda"
    assert kinds["params/head/w"] == "average"
    assert not any(name.startswith("optimizer") for name in kinds)


@pytest.mark.long
@pytest.mark.slow
def test_a_network_is_normalised_by_its_batch_or_by_given_statistics() -> None:
    state = task.init(jax.random.key(0))
    x = images().x[:32]
    scores, found = logits(state["params"], x)
    np.testing.assert_allclose(logits(state["params"], x, found)[0], scores, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(logits(state["params"], x[:1], found)[0] - scores[:1]).max()) < 1e-5
    assert 2.0 < float(evaluate(state, {"x": x, "y": images().y[:32]})["loss"]) < 2.6


@pytest.mark.soak
def test_running_statistics_go_to_those_of_the_data() -> None:
    recipe = task.recipe()
    state, step = jax.jit(recipe.init)(jax.random.key(0)), jax.jit(recipe.step)
    from isthmus.ops.island.recipe import Now

    batch = task.batch(At(0, 0, 0))
    for _ in range(60):
        state, _ = step(state, batch, Now(jax.random.key(0), np.float32(1.0)))
    _, found = logits(state["params"], batch["x"])
    np.testing.assert_allclose(state["statistics"]["first"]["mean"], found["first"]["mean"], rtol=0.2, atol=0.05)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"width": 0}, "an integer of at least 1, found width = 0"),
        ({"size": 7}, "a divisor of 288, the images held out, found size = 7"),
        ({"lr": 0.0}, "a number above 0, found lr = 0.0"),
        ({"warmup": 1.0}, "from 0 to below 1, found warmup = 1.0"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        digits(**settings)


def test_it_is_named_as_other_tasks_are() -> None:
    assert load("isthmus.programs.digits:task", "Loading") is task
    assert load("isthmus.programs.digits:digits(size = 32)", "Loading").tokens_per_batch == 32


@pytest.mark.process
def test_without_scikit_learn_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'sklearn' else found(name, *rest)\n"
        "from isthmus.programs.engine.request.reference import load\n"
        "from isthmus.runtime.errors import ConfigError\n"
        "try: load('isthmus.programs.digits:task', 'Loading')\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install -e '.[digits]'" in done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_four_learners_read_digits(tmp_path: Path) -> None:
    program = Program("decoupled-diloco", interval=12, fragments=2)
    result = train(program, task, tokens=6_400, run_dir=tmp_path / "run", transport="inproc", quiet=True)
    assert result.eval_loss < 0.4
    assert result.summary["eval_metrics"]["accuracy"] > 0.85
    assert result.summary["outer_steps"] >= 6
    moved = result.parameters["statistics"]["first"]["mean"]
    assert float(np.abs(moved).max()) > 0.01, "statistics were not merged"
