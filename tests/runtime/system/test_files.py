"""Files: lines that are appended and rotated, and files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from isthmus.runtime.system import files as store


def test_lines_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    lines = store.Lines(path)
    lines.append({"a": 1, "text": "naïve\n"})
    assert path.read_text() == '{"a": 1, "text": "na\\u00efve\\n"}\n'
    lines.append({"b": [None, 2.5]})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"a": 1, "text": "naïve\n"},
        {"b": [None, 2.5]},
    ]
    lines.close()
    again = store.Lines(path)
    again.append({"c": 3})
    again.close()
    assert len(path.read_text().splitlines()) == 3


def test_what_is_not_json_is_not_written(tmp_path: Path) -> None:
    lines = store.Lines(tmp_path / "lines")
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            lines.append({"loss": value})
    with pytest.raises(TypeError):
        lines.append({"loss": np.float32(1)})
    lines.append({"loss": 1})
    lines.close()
    assert (tmp_path / "lines").read_text() == '{"loss": 1}\n'


def test_a_file_of_lines_is_rotated_and_takes_at_most_twice_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LINES_BYTES_MAX", 1000)
    path = tmp_path / "lines"
    lines = store.Lines(path)
    for number in range(500):
        lines.append({"number": number, "text": "é"})
        sizes = [each.stat().st_size for each in tmp_path.iterdir()]
        assert all(size <= 1000 + 40 for size in sizes)
        assert sorted(each.name for each in tmp_path.iterdir()) in (["lines"], ["lines", "lines.1"])
    lines.close()
    old, new = ((tmp_path / name).read_text().splitlines() for name in ("lines.1", "lines"))
    numbers = [json.loads(line)["number"] for line in [*old, *new]]
    assert numbers == list(range(numbers[0], 500))
    assert len(numbers) > 20


def test_a_file_is_written_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    store.write_bytes(path, b"first")
    store.write_bytes(path, b"second")
    assert path.read_bytes() == b"second"
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    store.write_bytes(path, b"first")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        store.write_bytes(path, b"second")
    assert path.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_json_is_written_whole_and_strict(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    store.write_json(path, {"a": [1, 2.5, None], "b": "x"})
    assert json.loads(path.read_text()) == {"a": [1, 2.5, None], "b": "x"}
    assert path.read_text().endswith("}\n")
    with pytest.raises(ValueError, match="JSON"):
        store.write_json(path, {"loss": float("nan")})
    assert json.loads(path.read_text())["b"] == "x"


def test_tensors_come_back(tmp_path: Path) -> None:
    path = tmp_path / "final" / "fragment-0.safetensors"
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensors = {
        "b/matrix": base,
        "a/strided": base[::2, ::3],
        "transposed": base.T,
        "scalar": np.array(2.5, np.float64),
        "empty": np.empty((0, 3), np.int8),
        "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
    }
    store.write_tensors(path, tensors)
    found = load_file(path)
    assert sorted(found) == sorted(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape, name
        np.testing.assert_array_equal(found[name], tensor)
    assert [each.name for each in path.parent.iterdir()] == ["fragment-0.safetensors"]


def test_bytes_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "tape" / "learner-0"
    store.append_bytes(path, b"ab")
    store.append_bytes(path, b"")
    store.append_bytes(path, b"c")
    assert path.read_bytes() == b"abc"


def test_a_file_that_is_written_piece_by_piece_is_there_once_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "pieces"
    with store.WholeFile(path) as file:
        for piece in (b"one", b"two"):
            file.write(piece)
            assert not path.exists()
        file.done()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("pieces", b"onetwo")]
    with store.WholeFile(path) as file:
        file.write(b"other")  # And is given up.
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("pieces", b"onetwo")]
    assert store.DISK.read_part(path, 2, 3) == b"etw"
    assert store.DISK.read_part(path, 5, 9) == b"o"


@pytest.mark.parametrize("names", [("b[0:2]", "a", 'é"x'), ("only",)])
def test_a_head_that_is_written_before_its_tensors_is_that_of_safetensors(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    tensors = {name: np.full((2,) * index, index, np.float32) for index, name in enumerate(names)}
    head, order = store.tensors_head({name: tensor.shape for name, tensor in tensors.items()})
    data = head + b"".join(tensors[name].tobytes() for name in order)
    assert data == store.encoded(tensors)
    (tmp_path / "file").write_bytes(data)
    for name, tensor in tensors.items():
        begin, end = store.tensor_place(tmp_path / "file", name)
        assert data[begin:end] == tensor.tobytes()
    with pytest.raises(OSError, match="no tensor"):
        store.tensor_place(tmp_path / "file", "none")
