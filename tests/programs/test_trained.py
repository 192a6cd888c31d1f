"""The trained model, read back from a run folder: of one's own task, and of the shipped one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from isthmus import Program, Task, load, train
from isthmus.programs.engine.snapshots.snapshots import Snapshots
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import DISK

ROWS, WIDTH = 6, 4


def init(key: Any) -> dict[str, Any]:
    """A tree with an embedding that is cut in three, a list, and a tensor without dimensions."""
    wide = jax.random.normal(key, (ROWS, WIDTH))
    return {"embedding": wide, "layers": [{"w": jnp.ones((WIDTH, 2))}, {"w": jnp.zeros((2, 1))}], "scale": jnp.ones(())}


def loss(params: Any, batch: Any) -> Any:
    hidden = params["embedding"][batch["row"]] @ params["layers"][0]["w"] @ params["layers"][1]["w"]
    return jnp.mean((params["scale"] * hidden - batch["y"]) ** 2)


def batch(at: Any) -> dict[str, Any]:
    rng = at.rng()
    return {"row": rng.integers(0, ROWS, 8), "y": rng.normal(size=(8, 1)).astype(np.float32)}


RULES = {"embedding": "average", "**": "rda"}
MINE = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(1e-2), merge=RULES)


@pytest.mark.slow
def test_ones_own_task_has_its_tree_again_with_split_tensors_joined(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    program = Program("decoupled-diloco", fragments=3, interval=6)
    result = train(program, MINE, learners=2, tokens=800, run_dir=folder, transport="inproc", quiet=True)
    files = sorted((folder / "snapshots" / "final").glob("*.safetensors"))
    stored = {name: array for path in files for name, array in load_file(path).items()}
    model = load(folder, MINE)
    assert jax.tree.structure(model) == jax.tree.structure(result.parameters)
    for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(result.parameters), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_array_equal(ours, theirs)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, load(folder), model)), "the run names its task"
    assert model["scale"].shape == ()
    np.testing.assert_array_equal(model["layers"][1]["w"], stored["layers/1/w"])
    assert np.isfinite(loss(model, batch_of(0)))


def batch_of(position: int) -> Any:
    from isthmus.ops.data.batches import At

    return batch(At(0, 0, position))


@pytest.mark.long
@pytest.mark.slow
def test_the_shipped_task_is_found_by_the_runs_configuration(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(32, 127)) * 400)
    folder = tmp_path / "shipped"
    settings = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 2, "data": [str(text)]}
    run_shipped(folder, settings)
    model = load(folder)
    names = {name for path in (folder / "snapshots/final").glob("*") for name in load_file(path)}
    assert any(name.startswith("embedding[") for name in names), "the embedding was split"
    assert model["embedding"].shape[1] == 16
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(model))


def run_shipped(folder: Path, settings: dict[str, Any]) -> None:
    """Train the shipped task in this process, for a few steps."""
    from isthmus.programs.engine.request.request import prepare
    from isthmus.programs.training import start

    run = {"learners": 1, "tokens": 20 * 32}
    program = Program("decoupled-diloco", interval=6, fragments=4)
    start(prepare(program, None, run=run, task_settings=settings, run_dir=folder).to_train().with_folder(), None)


@pytest.mark.long
@pytest.mark.process
def test_a_run_that_is_over_or_goes_on_is_read_at_its_snapshots(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    program = Program("decoupled-diloco", fragments=3, interval=6)
    train(program, MINE, learners=1, tokens=4000, run_dir=folder, quiet=True, snapshot_every_seconds=0.2)
    snapshots = Snapshots(folder / "snapshots", None, DISK)
    numbers = snapshots.numbers()
    held = snapshots.held(numbers[0]).held
    (folder / "snapshots" / "final").rename(tmp_path / "final")
    for model in (load(folder, MINE), load(folder, MINE, snapshot=numbers[0])):
        values = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(model)]
        expected = np.concatenate([held[p]["values"] for p in sorted(held)])
        np.testing.assert_array_equal(np.sort(np.concatenate(values)), np.sort(expected))
    with pytest.raises(ConfigError, match=f"snapshot {numbers[0] + 1}"):
        load(folder, MINE, snapshot=numbers[0] + 1)


# -- what is refused ---------------------------------------------------------------------------------------------------


def model_in(folder: Path, **files: dict[str, Any]) -> Path:
    """A run folder with these files of a final model."""
    final = folder / "snapshots" / "final"
    final.mkdir(parents=True)
    for name, tensors in files.items():
        save_file({key: np.asarray(value, np.float32) for key, value in tensors.items()}, final / f"{name}.safetensors")
    return folder


WHOLE = {"layers/0/w": np.ones((WIDTH, 2)), "layers/1/w": np.ones((2, 1)), "scale": np.ones(())}


def test_rows_come_in_their_order_whatever_the_files(tmp_path: Path) -> None:
    values = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    folder = model_in(tmp_path, a={"embedding[4:6]": values[4:], **WHOLE}, b={"embedding[0:4]": values[:4]})
    np.testing.assert_array_equal(load(folder, MINE)["embedding"], values)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"embedding": np.ones((ROWS, WIDTH + 1)), **WHOLE}, ("'embedding'", "(6, 4)", "(6, 5)")),
        (WHOLE, ("'embedding'",)),
        ({"embedding": np.ones((ROWS, WIDTH)), "bias": np.ones(3), **WHOLE}, ("'bias'",)),
        ({"embedding[2:6]": np.ones((4, WIDTH)), **WHOLE}, ("rows 0 to 2", "'embedding'")),
    ],
)
def test_a_model_that_is_not_the_tasks_is_refused(tmp_path: Path, tensors: Any, words: tuple[str, ...]) -> None:
    folder = model_in(tmp_path, a=tensors)
    with pytest.raises(ConfigError) as caught:
        load(folder, MINE)
    assert all(word in str(caught.value) for word in (*words, str(folder)))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="final model"):
            load(folder, MINE)


def test_a_file_that_is_torn_is_refused(tmp_path: Path) -> None:
    folder = model_in(tmp_path, a={"embedding": np.ones((ROWS, WIDTH)), **WHOLE})
    path = folder / "snapshots" / "final" / "a.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match=r"a\.safetensors"):
        load(folder, MINE)
