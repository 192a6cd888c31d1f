"""The example with handwritten digits: its data, its settings, and that islands learn it together."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus import Program, train
from isthmus.ops.data.batches import At
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.engine.request.reference import load
from isthmus.runtime.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "digits.py"
NAMES = runpy.run_path(str(EXAMPLE), run_name="digits")
task, evaluate, logits = NAMES["task"], NAMES["evaluate"], NAMES["logits"]
X, Y, HELD_OUT = NAMES["X"], NAMES["Y"], NAMES["HELD_OUT"]


@pytest.mark.long
@pytest.mark.slow
def test_held_out_images_are_never_trained_on() -> None:
    held_out = list(task.evaluation_batches(0))
    assert sum(len(batch["y"]) for batch in held_out) == HELD_OUT
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in held_out]), X[-HELD_OUT:])
    np.testing.assert_array_equal(np.concatenate([batch["y"] for batch in held_out]), Y[-HELD_OUT:])
    shown = np.concatenate([task.batch(At(0, 0, i))["x"] for i in range(40)])[:, 1:-1, 1:-1]
    inner = {
        image[1 + i : 7 + i, 1 + j : 7 + j].tobytes() for image in X[:-HELD_OUT] for i in (-1, 0, 1) for j in (-1, 0, 1)
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
    x = X[:32]
    scores, found = logits(state["params"], x)
    np.testing.assert_allclose(logits(state["params"], x, found)[0], scores, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(logits(state["params"], x[:1], found)[0] - scores[:1]).max()) < 1e-5
    assert 2.0 < float(evaluate(state, {"x": x, "y": Y[:32]})["loss"]) < 2.6


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


def test_it_is_named_as_other_tasks_are() -> None:
    assert load(f"{EXAMPLE}:task", "Loading").tokens_per_batch == 16
    assert load(f"{EXAMPLE}:digits(size = 32)", "Loading").tokens_per_batch == 32
    with pytest.raises(ConfigError, match="size = 7 is no divisor of 288"):
        load(f"{EXAMPLE}:digits(size = 7)", "Loading")


def test_its_former_name_is_refused_with_where_it_is_now() -> None:
    (file,) = reference.GONE.values()
    assert (ROOT / file).samefile(EXAMPLE)
    for name in ("task", "digits(width = 32)"):
        with pytest.raises(ConfigError, match=re.escape(file)):
            load(f"isthmus.programs.digits:{name}", "Loading")


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
