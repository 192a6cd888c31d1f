"""A task is checked where it is made and where it is laid out, and every refusal says what, where and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.island.recipe import Now
from isthmus.programs.engine.request.layout import check_first_loss, layout, warnings
from isthmus.programs.job import TensorSpec
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError


def init(key: jax.Array) -> Any:
    return {"w": jax.random.normal(key, (32, 1)), "layers": [{"b": jnp.zeros(1)}, {"b": jnp.ones(1)}]}


def loss(params: Any, batch: Any) -> jax.Array:
    bias = params["layers"][0]["b"] * params["layers"][1]["b"]
    return jnp.mean((batch["x"] @ params["w"] + bias - batch["y"]) ** 2)


def batch(at: At) -> Any:
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


def make(**changed: Any) -> Task:
    arguments = {"init": init, "loss": loss, "batch": batch, "tokens_per_batch": 64, "optimizer": optax.adamw(1e-2)}
    return Task(**(arguments | changed))


def refusal(**changed: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        layout(make(**changed))
    return str(caught.value)


def test_layout_names_tensors_by_their_path_in_the_order_of_the_leaves() -> None:
    assert layout(make(merge={"w": "average", "**": "rda"})) == (
        TensorSpec("layers/0/b", (1,), "float32", "rda"),
        TensorSpec("layers/1/b", (1,), "float32", "rda"),
        TensorSpec("w", (32, 1), "float32", "average"),
    )


def test_a_rule_that_is_misspelt_covers_nothing_or_comes_too_late_is_told() -> None:
    tree = {"head": jnp.ones(1), "headless": jnp.ones(1), "a": {"head": jnp.ones(1), "tail": jnp.ones(1)}}

    def kinds(**rules: str) -> dict[str, str]:
        merge = {pattern.replace("__", "/").replace("ANY", "*"): kind for pattern, kind in rules.items()}
        return {spec.name: spec.merge for spec in layout(make(init=lambda key: tree, loss=first_head, merge=merge))}

    def first_head(params: Any, batch: Any) -> Any:
        return params["head"][0]

    assert kinds(a__ANYANY="average", head="mean", ANYANY="rda") == {
        "a/head": "average",
        "a/tail": "average",
        "head": "mean",
        "headless": "rda",
    }
    assert kinds(headANY="local", ANYANY="rda") == {"a/head": "rda", "a/tail": "rda"}
    for rules, told in (
        ({"a__tal": "rda", "ANYANY": "rda"}, r"found 'a/tal'.\n  Did you mean 'a/tail'"),
        ({"ANYANY": "rda", "head": "average"}, r"found '\*\*' before 'head', which takes all"),
        ({"a__ANYANY": "rda"}, "a rule for every leaf, found none for 'head', 'headless'"),
        ({"ANYANY": "local"}, "at least one leaf that is merged, found all of them local"),
        ({"ANYANY": "sum"}, "one of 'rda', 'average', 'mean', 'local', 'frozen' in merge="),
    ):
        with pytest.raises(ConfigError, match=told):
            kinds(**rules)


def test_attributes_and_a_bare_array_have_names() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Weights:
        w: Any

    task = make(init=lambda key: Weights(w=jnp.ones((32, 1))), loss=lambda p, b: jnp.mean(b["x"] @ p.w))
    assert [spec.name for spec in layout(task)] == ["w"]
    task = make(init=lambda key: jnp.ones((32, 1)), loss=lambda p, b: jnp.mean(b["x"] @ p))
    assert [spec.name for spec in layout(task)] == ["parameters"]


def test_layout_computes_nothing() -> None:
    huge = make(
        init=lambda key: {"w": jnp.zeros((1 << 20, 1 << 20))}, loss=lambda p, b: jnp.mean(p["w"]) * jnp.mean(b["x"])
    )
    assert layout(huge)[0].shape == (1 << 20, 1 << 20)


def test_double_precision_batches_and_progress_reading_optimizers_are_fine() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, progress: Any, **_: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * progress, updates), state

    own = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    double = lambda at: jax.tree.map(lambda leaf: leaf.astype(np.float64), batch(at))  # noqa: E731
    assert len(layout(make(optimizer=optax.chain(optax.adam(1e-3), own), batch=double))) == 3


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"loss": lambda p, b: (b["x"] @ p["w"])[:, 0]}, r"one scalar of a floating dtype, found float32\[64\]"),
        ({"loss": lambda p, b: (jnp.sum(p["w"]), 1)}, "one scalar of a floating dtype, found tuple"),
        ({"loss": lambda p, b: None}, "one scalar of a floating dtype, found None"),
        ({"loss": lambda p, b: (p["w"], {})}, r"one scalar of a floating dtype, found float32\[32, 1\]"),
        ({"loss": lambda p, b: (jnp.sum(p["w"]), {"w": p["w"]})}, r"one number for 'w', found float32\[32, 1\]"),
        ({"loss": lambda p, b: jnp.argmax(p["w"])}, r"one scalar of a floating dtype, found int32\[\]"),
        ({"init": lambda key: {}}, "at least one array, found no array"),
        ({"init": lambda key: {"w": jnp.ones((32, 1), jnp.int8)}}, "floating-point leaves only"),
        ({"init": lambda key: {"w": jnp.ones((0, 1))}}, r"elements in tensor 'w', found shape \(0, 1\)"),
        ({"init": lambda key: {"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}}, "two named 'a/b'"),
        ({"batch": lambda at: {}}, r"at least one array, found \{\}"),
        ({"batch": lambda at: {"x": 1.0}}, "a numeric array at 'x', found float 1.0"),
        ({"batch": lambda at: {"x": [[1.0, 2], [3, 4]]}}, "a numeric array at 'x', found a list of numbers"),
        ({"batch": lambda at: [1.0] * 9}, "a numeric array at 'batch', found a list of numbers"),
        ({"batch": lambda at: {"x": np.array(["a"])}}, "a numeric array at 'x', found dtype <U1"),
    ],
)
def test_what_a_task_returns_is_checked(changed: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        layout(make(**changed))


@pytest.mark.slow
def test_scalars_beside_a_loss_are_told_and_only_the_loss_is_made_small() -> None:
    def beside(params: Any, given: Any) -> Any:
        error = loss(params, given)
        return error + 100.0 * jnp.sum(params["w"] ** 2), {"loss": error, "size": jnp.sum(params["w"] ** 2)}

    task = make(loss=beside, optimizer=optax.sgd(1e-3))
    assert len(layout(task)) == 3
    assert warnings(task, 0) == ()
    check_first_loss(task, 0)
    recipe, now = task.recipe(), Now(jax.random.key(0), np.float32(0.0))
    state = recipe.state_of(init(jax.random.key(0)))
    stepped, told = recipe.step(state, batch(At(0, 0, 0)), now)
    assert float(told["loss"]) == pytest.approx(float(loss(state.model, batch(At(0, 0, 0)))), rel=1e-6)
    assert float(told["size"]) == pytest.approx(float(jnp.sum(state.model["w"] ** 2)), rel=1e-6)
    assert float(recipe.evaluate(stepped.model, batch(At(0, 0, 0)))["size"]) < 0.7 * float(told["size"])


@pytest.mark.parametrize(
    ("differs", "where"),
    [
        (lambda at: at.position == 1, "At(seed=0, slot=0, position=1, split='train')"),
        (lambda at: at.slot == 1, "At(seed=0, slot=1, position=0, split='train')"),
        (lambda at: at.split == "evaluation", "At(seed=0, slot=0, position=0, split='evaluation')"),
    ],
)
def test_a_batch_that_changes_is_refused_leaf_by_leaf(differs: Callable[[At], bool], where: str) -> None:
    def changing(at: At) -> Any:
        made = batch(at)
        if differs(at):
            made = {"x": made["x"][:63], "y": made["y"].astype(np.float16), "z": made["y"]}
        return made

    message = refusal(batch=changing)
    assert message.count(where) == 3
    assert "'x' as at At(seed=0, slot=0, position=0, split='train'), float32[64, 32], found float32[63, 32]" in message
    assert "'y' as at At(seed=0, slot=0, position=0, split='train'), float32[64, 1], found float16[64, 1]" in message
    assert "'z' as at At(seed=0, slot=0, position=0, split='train'), absent, found float32[64, 1]" in message


def test_a_batch_that_is_one_array_is_called_batch() -> None:
    assert "expected 'batch' as at" in refusal(batch=lambda at: batch(at)["x"][at.position :])


def test_a_batch_of_another_structure_or_of_other_values_is_refused() -> None:
    assert "found PyTreeDef([*])" in refusal(batch=lambda at: [batch(at)["x"]] if at.position else (batch(at)["x"],))
    rng = np.random.default_rng(0)
    message = refusal(batch=lambda at: batch(at) | {"y": rng.normal(size=(64, 1))})
    assert "Running task.batch(At(seed=0, slot=0, position=0, split='train')) twice" in message
    assert "the same 'y'" in message
    assert "'x'" not in message


NOTHING: dict[str, Any] = {}


def broken(*_: Any) -> Any:
    return NOTHING["missing"]


class Broken:
    def __call__(self, *_: Any) -> Any:
        return NOTHING["missing"]


@pytest.mark.parametrize("name", ["init", "loss", "batch"])
def test_what_a_function_raises_is_shown_with_its_file_and_line(name: str) -> None:
    line = broken.__code__.co_firstlineno + 1
    message = refusal(**{name: broken})
    assert f"Running task.{name}(" in message
    assert f"KeyError: 'missing' ({__file__}:{line})" in message


def test_the_place_is_found_behind_callable_objects_jit_and_wrong_signatures() -> None:
    assert f"{__file__}:{Broken.__call__.__code__.co_firstlineno + 1})" in refusal(loss=Broken())
    assert f"{__file__}:{broken.__code__.co_firstlineno + 1})" in refusal(loss=jax.jit(broken))
    without = lambda params: 0.0  # noqa: E731
    assert f"{__file__}:{without.__code__.co_firstlineno})" in refusal(loss=without)
    assert "takes 1 positional argument" in refusal(loss=without)
    read = lambda params, batch: float(params["w"].sum())  # noqa: E731
    assert f"{__file__}:{read.__code__.co_firstlineno})" in refusal(loss=read)


def test_an_optimizer_that_does_not_fit_is_refused() -> None:
    def double(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), updates), state

    wrong = optax.GradientTransformation(lambda _: optax.EmptyState(), double)
    assert "Running task.optimizer.update" in refusal(optimizer=wrong)
    growing = optax.GradientTransformation(lambda _: jnp.zeros(1), lambda u, s, p=None: (u, jnp.zeros(len(s) + 1)))
    assert "float32[1] becomes parameters float32[2]" in refusal(optimizer=growing)


def test_arguments_are_checked_together() -> None:
    with pytest.raises(ConfigError) as caught:
        make(init={}, tokens_per_batch=0, optimizer=0.1, evaluation=0, merge="embedding")
    message = str(caught.value)
    assert len(caught.value.faults) == 5
    for part in ("init(key), found {}", "tokens_per_batch", "optax gradient transformation, found 0.1", "evaluation="):
        assert part in message
    assert "merge= a dict of path patterns" in message
    for count in (-1, 1.5, True, "64"):
        with pytest.raises(ConfigError, match="tokens_per_batch= an integer of at least 1"):
            make(tokens_per_batch=count)


def test_a_task_is_frozen() -> None:
    with pytest.raises(AttributeError):
        make().tokens_per_batch = 3  # type: ignore[misc]


@pytest.mark.parametrize(("evaluation", "count"), [(None, 16), (3, 3)])
def test_evaluation_batches_are_made_one_at_a_time_on_the_held_out_split(evaluation: int | None, count: int) -> None:
    asked: list[At] = []
    task = make(batch=asked.append, evaluation=evaluation)
    batches = task.evaluation_batches(7)
    assert asked == []
    next(batches)
    assert asked == [At(7, 0, 0, "evaluation")]
    list(batches)
    assert asked == [At(7, 0, position, "evaluation") for position in range(count)]


@pytest.mark.process
def test_importing_tasks_imports_no_jax() -> None:
    program = (
        "import sys, isthmus.programs.task, isthmus.programs.language_model as shipped\n"
        "from isthmus.runtime.errors import ConfigError\n"
        "try: shipped.task(layers=0)\n"
        "except ConfigError: print(sorted({'jax', 'jaxlib', 'optax'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
