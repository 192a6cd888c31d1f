"""The weights that a run begins from: what is taken, what is missing or more, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.learner.first_version import begun_from
from isthmus.programs.engine.request.weights import weights_of
from isthmus.runtime.errors import ConfigError
from tests.ops.bodies import Spec

LAYOUT = (Spec("embedding", (6, 2)), Spec("head", (2, 3)), Spec("scale", ()))
FRAGMENTS = partition(LAYOUT, 2)


def model(**more: Any) -> dict[str, Any]:
    """Tensors by name, each counting upwards from its own hundred."""
    shapes = {"embedding": (6, 2), "head": (2, 3)} | more
    return {
        name: np.arange(100 * at, 100 * at + np.prod(shape), dtype=np.float32).reshape(shape)
        for at, (name, shape) in enumerate(shapes.items(), 1)
        if shape is not None
    }


def saved(folder: Path, tensors: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_first_version_has_the_values_of_the_folder_and_of_init_where_it_lacks_them(tmp_path: Path) -> None:
    tensors = model()
    weights = weights_of(saved(tmp_path / "weights", tensors | {"other": np.zeros(3, np.float32)}), FRAGMENTS)
    assert (weights.missing, weights.more) == (["scale"], ["other"])
    assert "as the task makes them: 'scale'; left out: 'other'" in weights.words
    weights.write(tmp_path, FRAGMENTS)
    found: dict[str, Any] = {}
    for fragment in FRAGMENTS:
        values = begun_from(tmp_path, fragment, np.full(fragment.size, -1.0, np.float32))
        for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
            found.setdefault(unit.tensor, []).append((unit.start, values[begin:end]))
    for name, parts in found.items():
        whole = np.concatenate([part for _, part in sorted(parts, key=lambda part: part[0])])
        np.testing.assert_array_equal(whole, tensors[name].reshape(-1) if name in tensors else [-1.0])


def test_without_weights_a_first_version_is_that_of_init(tmp_path: Path) -> None:
    values = np.ones(FRAGMENTS[0].size, np.float32)
    assert begun_from(tmp_path, FRAGMENTS[0], values) is values
    assert begun_from(None, FRAGMENTS[0], values) is values


def test_those_of_a_run_are_its_final_model(tmp_path: Path) -> None:
    saved(tmp_path / "run" / "snapshots" / "final", model())
    assert weights_of(tmp_path / "run", FRAGMENTS).tensors.keys() == {"embedding", "head"}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (model(head=(3, 2)), r"expected tensor 'head' of shape \[2, 3\], found \[3, 2\]"),
        ({"other": np.zeros(3, np.float32)}, "expected tensors of the model, such as 'embedding', 'head', 'scale'"),
        ({"embedding[2:6]": np.zeros((4, 2), np.float32)}, "expected rows 0 to 2 of tensor 'embedding'"),
    ],
    ids=["another-shape", "nothing-in-common", "rows-missing"],
)
def test_weights_of_another_form_are_refused(tmp_path: Path, tensors: dict[str, Any], words: str) -> None:
    folder = saved(tmp_path / "weights", tensors)
    with pytest.raises(ConfigError, match=words):
        weights_of(folder, FRAGMENTS)


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones((2, 3), np.bool_),
        np.ones((2, 3), np.int64),
        np.ones((2, 3), np.uint8),
        np.array([[0, 1, np.nan], [0, 0, 0]], np.float32),
        np.array([[0, 1, 0], [0, 0, -np.inf]], np.float16),
        np.array([[0, 1, 0], [0, 0, 1e300]], np.float64),  # Not finite in float32.
    ],
    ids=["bool", "int64", "uint8", "nan", "infinite", "too-large"],
)
def test_values_that_no_leaf_may_have_are_refused(tmp_path: Path, wrong: Any) -> None:
    folder = saved(tmp_path / "weights", model() | {"head": wrong})
    with pytest.raises(ConfigError) as caught:
        weights_of(folder, FRAGMENTS)
    (fault,) = caught.value.faults
    assert "'head'" in fault.expected
    weights_of(saved(tmp_path / "others", model() | {"left-out": wrong}), FRAGMENTS)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_floats_of_other_sizes_are_taken(tmp_path: Path, dtype: Any) -> None:
    folder = saved(tmp_path / "weights", {name: array.astype(dtype) for name, array in model().items()})
    assert weights_of(folder, FRAGMENTS).tensors["head"].dtype == dtype


def test_a_pipe_instead_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    folder = saved(tmp_path / "weights", model())
    os.mkfifo(folder / "more.safetensors")
    with pytest.raises(ConfigError):
        weights_of(folder, FRAGMENTS)


def test_a_folder_without_any_and_a_program_without_fragments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        weights_of(tmp_path / "nowhere", FRAGMENTS)
    with pytest.raises(ConfigError, match="a program that exchanges fragments"):
        weights_of(saved(tmp_path / "weights", model()), ())
