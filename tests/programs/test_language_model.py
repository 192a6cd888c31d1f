"""The shipped task: its settings, its data, and that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.recipe import Now
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.language_model import rate_default, task
from isthmus.runtime.errors import ConfigError


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_bytes(b"It is a truth universally acknowledged. " * 500)
    return str(tmp_path / "text")


@pytest.mark.slow
def test_nano_is_the_default(text: str) -> None:
    nano = task(data=(text,))
    specs = layout(nano)
    assert sum(int(np.prod(spec.shape)) for spec in specs) == 131_904
    assert [spec.name for spec in specs if spec.merge == "average"] == ["embedding", "head"]
    assert {"layers/1/feedforward/down", "norm"} <= {spec.name for spec in specs}
    assert nano.tokens_per_batch == 512
    assert nano.batch(At(0, 0, 0))["tokens"].shape == (8, 65)
    assert len(list(nano.evaluation_batches(0))) == 32


@pytest.mark.parametrize(
    ("optimizer", "width", "batch", "rate"),
    [
        ("muon", 64, 8, 0.012),
        ("muon", 64, 32, 0.012),
        ("muon", 64, 2, 0.006),
        ("muon", 64, (4, 2, 0), 0.006),
        ("adamw", 64, 8, 0.006),
        ("adamw", 256, 8, 0.0015),
        ("adamw", 256, 2, 0.00075),
    ],
)
def test_the_default_rate_follows_from_optimizer_width_and_batch(
    optimizer: str, width: int, batch: int | tuple[int, ...], rate: float
) -> None:
    assert rate_default(optimizer, width, batch) == rate


@pytest.mark.slow
def test_settings_reach_the_model(text: str) -> None:
    specs = layout(task(layers=1, width=32, heads=2, context=16, tied=True, dtype="bfloat16", batch=3, data=(text,)))
    shapes = {spec.name: spec.shape for spec in specs}
    assert shapes["embedding"] == (256, 32)
    assert shapes["layers/0/feedforward/gate"] == (32, 88)
    assert not {"head", "layers/1/norm"} & set(shapes)
    assert [spec.name for spec in specs if spec.merge == "average"] == ["embedding"]


@pytest.mark.further
@pytest.mark.slow
def test_experts_take_the_place_of_the_feed_forward_half(text: str) -> None:
    sparse = task(
        layers=1, width=16, heads=2, context=16, experts=4, experts_chosen=1, experts_balance=0.5, data=(text,)
    )
    shapes = {spec.name: spec.shape for spec in layout(sparse)}
    assert shapes["layers/0/feedforward/router"] == (16, 4)
    assert shapes["layers/0/feedforward/gate"] == (4, 16, 44)
    params, batch = sparse.init(jax.random.key(0)), sparse.batch(At(0, 0, 0))
    trained, told = jax.jit(sparse.loss)(params, batch)
    assert float(trained) == pytest.approx(float(told["loss"]) + 0.5 * float(told["balance"]), rel=1e-5)
    recipe = sparse.recipe()
    assert float(recipe.evaluate(params, batch)["loss"]) == pytest.approx(float(told["loss"]), rel=1e-5)
    _, told_of_step = jax.jit(recipe.step)(recipe.state_of(params), batch, Now(jax.random.key(0), np.float32(0.1)))
    assert float(told_of_step["loss"]) == pytest.approx(float(told["loss"]), rel=1e-5)


@pytest.mark.slow
def test_rows_of_stacked_layers_are_units(text: str) -> None:
    deep = task(layers=3, width=32, heads=2, context=16, stacked=True, checkpoint=True, data=(text,))
    specs = {spec.name: spec for spec in layout(deep)}
    assert specs["layers/feedforward/gate"].shape == (3, 32, 88)
    cut = {unit.tensor for fragment in partition(layout(deep), 6) for unit in fragment.units if unit.is_split}
    assert "layers/feedforward/gate" in cut


@pytest.mark.slow
def test_token_files_give_the_model_their_vocabulary(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(20_000) % 1000)
    tokens = task(data=(str(tmp_path),), vocabulary=1000)
    assert {spec.name: spec.shape for spec in layout(tokens)}["head"] == (64, 1000)
    assert tokens.batch(At(0, 0, 0))["tokens"].dtype == np.uint16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "Setting task.layers: expected an integer of at least 1, found 0"),
        ({"layers": 2.0}, "task.layers: expected an integer"),
        ({"layers": True}, "task.layers: expected an integer"),
        ({"context": 0}, "task.context"),
        ({"batch": -8}, "task.batch"),
        ({"heads": 3}, "heads of even size, found width 64 and 3 heads.\n  Set task.width to a multiple of 6"),
        ({"width": 12}, "heads of even size, found width 12 and 4 heads"),
        ({"tied": 1}, "task.tied: expected true or false"),
        ({"dtype": "float16"}, "task.dtype: expected one of 'float32', 'bfloat16', found 'float16'"),
        ({"lr": 0.0}, "task.lr: expected a number above 0"),
        ({"lr": float("nan")}, "task.lr"),
        ({"lr": float("inf")}, "task.lr"),
        ({"warmup": 1}, "task.warmup: expected a number from 0 to below 1"),
        ({"weight_decay": -0.1}, "task.weight_decay"),
        ({"clip": 0}, "task.clip"),
        ({"optimizer": "adam"}, "task.optimizer: expected one of 'adamw', 'muon', found 'adam'"),
        ({"data": "text"}, "task.data: expected a list, each of it a text"),
        ({"vocabulary": 1}, "task.vocabulary: expected from 2"),
        ({"token_dtype": "int8"}, "task.token_dtype: expected one of 'uint16', 'uint32'"),
        ({"experts": -1}, "task.experts: expected an integer of at least 0"),
        ({"experts": 4, "experts_chosen": 0}, "task.experts_chosen: expected an integer of at least 1"),
        ({"experts": 1}, "from 1 to 1, for there are so many, found 2.\n  Set task.experts_chosen to fewer"),
        ({"experts_slack": 0.0}, "task.experts_slack: expected a number above 0"),
        ({"experts_balance": -0.01}, "task.experts_balance: expected a number of at least 0"),
        ({"data": ("nowhere/at/all",)}, "a file or a folder at nowhere/at/all, found nothing there"),
        ({"vocabulary": 255}, "is read as bytes, found vocabulary=255"),
        ({"context": 1 << 24}, "tokens in the training split"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(**settings)
    assert message in str(caught.value)


def test_wrong_settings_are_shown_together() -> None:
    with pytest.raises(ConfigError) as caught:
        task(layers=0, width=-1, lr=-1.0)
    assert len(caught.value.faults) == 3


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a" * 12_000)
    first = task(data=(str(path),)).batch(At(0, 0, 0))["tokens"]
    path.write_bytes(b"b" * 12_001)
    second = task(data=(str(path),)).batch(At(0, 0, 0))["tokens"]
    assert set(first.flat) == {ord("a")}
    assert set(second.flat) == {ord("b")}


@pytest.mark.soak
def test_a_hundred_steps_on_the_standard_library_lower_the_held_out_loss() -> None:
    nano = task()
    params = nano.init(jax.random.key(0))
    state = nano.optimizer.init(params)

    def step(params: Any, state: Any, batch: Any, progress: Any) -> Any:
        loss, gradient = jax.value_and_grad(nano.loss)(params, batch)
        updates, state = nano.optimizer.update(gradient, state, params, progress=progress)
        return optax.apply_updates(params, updates), state, loss

    train, evaluate = jax.jit(step, donate_argnums=(0, 1)), jax.jit(nano.loss)

    def held_out() -> float:
        return float(np.mean([evaluate(params, batch) for batch in nano.evaluation_batches(0)]))

    before = held_out()
    for position in range(100):
        progress = np.float32(position / 100)
        params, state, loss = train(params, state, nano.batch(At(0, 0, position)), progress)
    assert np.isfinite(loss)
    assert before == pytest.approx(np.log(256), abs=0.1)
    # About 2.6 for any seed; a model that has learned the frequencies of single bytes only is at 3.1.
    assert held_out() < 2.8


@pytest.mark.parametrize("stacked", [False, True])
def test_muon_steps_the_matrices_of_the_layers_and_adamw_all_else(stacked: bool) -> None:
    recipe = task(experts=2, stacked=stacked, optimizer="muon").recipe()
    names = [name for name, _ in named_leaves(jax.eval_shape(recipe.state_of, recipe.shapes()))]
    matrices = {"query", "key", "value", "output", "gate", "up", "down"}
    by_muon = {name.rsplit("/", 1)[1] for name in names if "/muon/" in name and "/mu/" in name}
    by_adamw = {name.rsplit("/", 1)[1] for name in names if "/adamw/" in name and "/nu/" in name}
    assert (by_muon, by_adamw) == (matrices, {"embedding", "head", "norm", "router"})
    whole = task(experts=2, stacked=stacked, optimizer="adamw").recipe()
    assert not any("muon" in name for name, _ in named_leaves(jax.eval_shape(whole.state_of, whole.shapes())))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.txt.gz", "a.jsonl.ZST", "a.bin.gz"])
def test_what_is_no_text_in_its_bytes_is_refused(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_bytes(b"It is a truth universally acknowledged. " * 500)
    for data in ((str(tmp_path / name),), (text, str(tmp_path))):
        with pytest.raises(ConfigError) as caught:
            task(data=data)
        (fault,) = caught.value.faults
        assert str(tmp_path / name) in fault.found
        assert fault.remedy


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv"])
def test_rows_in_text_are_read_as_bytes(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_bytes(Path(text).read_bytes())
    rows, plain = (task(data=(str(path),)).batch(At(0, 0, 0))["tokens"] for path in (tmp_path / name, text))
    np.testing.assert_array_equal(rows, plain)
