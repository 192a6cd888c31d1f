"""Folders are read as they are, and written whole or not at all; damaged or hostile ones are refused."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from isthmus.ops.model_config import ModelConfig
from isthmus.programs.model_folders import folders, llama
from isthmus.runtime.errors import ConfigError

MODEL = ModelConfig(vocabulary=11, layers=2, width=8, heads=2, context=6)
DOCUMENT = llama.document_of(MODEL, "bfloat16")
DOING = "Reading it"


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {place.theirs: rng.normal(size=place.shape).astype(np.float32) for place in llama.places(MODEL)}


def write(to: Path, tensors: dict[str, Any], dtype: str = "bfloat16", bytes_max: int = folders.SHARD_BYTES_MAX) -> Path:
    def fill(folder: Path) -> None:
        folders.write_documents(folder, {folders.CONFIG: DOCUMENT}, {"tokenizer.json": b"{}"})
        folders.write_tensors(folder, tensors, dict.fromkeys(tensors, dtype), bytes_max)

    folders.write(to, "Writing it", fill)
    return to


@pytest.mark.parametrize("bytes_max", [folders.SHARD_BYTES_MAX, 700])
def test_a_folder_comes_back_to_the_bit(tmp_path: Path, bytes_max: int) -> None:
    tensors = arrays()
    folder = folders.read(write(tmp_path / "it", tensors, bytes_max=bytes_max), DOING)
    assert set(folder.files) == set(tensors)
    assert set(folder.dtypes.values()) == {"bfloat16"}
    for name, tensor in tensors.items():
        found = folder.tensor(name)
        assert found.dtype == ml_dtypes.bfloat16
        assert found.tobytes() == tensor.astype(ml_dtypes.bfloat16).tobytes()
    assert folders.beside(folder.path) == ({"tokenizer.json": b"{}"}, [])
    names = sorted(path.name for path in folder.path.glob("*.safetensors"))
    if bytes_max == 700:
        assert names[-1] == f"model-{len(names):05}-of-{len(names):05}.safetensors"
        index = json.loads((folder.path / folders.INDEX).read_text())
        assert index["metadata"]["total_size"] == sum(2 * tensor.size for tensor in tensors.values())
        assert set(index["weight_map"]) == set(tensors)
    else:
        assert names == ["model.safetensors"]
    assert not [path for path in tmp_path.iterdir() if path.name != "it"], "nothing is left beside it"


def test_others_may_read_what_a_library_keeps_for_its_user(tmp_path: Path) -> None:
    folders.write(tmp_path / "it", DOING, lambda part: save_file(arrays(), part / "adapter_model.safetensors"))
    (tmp_path / "new").touch()
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["adapter_model.safetensors"]
    modes = [path.stat().st_mode for path in (tmp_path / "it" / "adapter_model.safetensors", tmp_path / "new")]
    assert modes[0] == modes[1]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A model as the caches of hubs keep it: links into the folder of the blobs."""
    model, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    model.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abcd").write_bytes(b"of the hub")
    (model / "tokenizer.json").symlink_to("../../blobs/abcd")
    return model


def test_links_of_a_hub_s_cache_are_followed(cache: Path, tmp_path: Path) -> None:
    assert folders.beside(cache) == ({"tokenizer.json": b"of the hub"}, [])
    (tmp_path / "link").symlink_to(cache)
    assert folders.beside(tmp_path / "link") == ({"tokenizer.json": b"of the hub"}, [])


def test_links_within_a_folder_are_followed_and_any_other_is_left_out(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    (tmp_path / "models--a--b" / "refs").write_bytes(b"no blob")
    (tmp_path / "models--a--b" / "blobs" / "out").symlink_to(tmp_path / "key")
    (cache / "other").write_bytes(b"inside")
    links = {
        "generation_config.json": "other",
        "tokenizer_config.json": tmp_path / "key",
        "special_tokens_map.json": "../../refs",
        "added_tokens.json": "../../blobs/out",
        "chat_template.jinja": "chat_template.jinja",
    }
    for name, target in links.items():
        (cache / name).symlink_to(target)
    files = {"generation_config.json": b"inside", "tokenizer.json": b"of the hub"}
    assert folders.beside(cache) == (files, sorted({*links} - {*files}))


def test_blobs_are_followed_from_a_cache_alone(tmp_path: Path) -> None:
    model = tmp_path / "a" / "model"
    model.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "key").write_bytes(b"secret")
    (model / "tokenizer.json").symlink_to("../../blobs/key")
    assert folders.beside(model) == ({}, ["tokenizer.json"])


def test_a_pipe_and_a_folder_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").mkdir()
    assert folders.beside(tmp_path) == ({}, ["tokenizer.json", "tokenizer_config.json"])


def test_all_that_belongs_to_a_model_goes_along_and_no_weights(tmp_path: Path) -> None:
    source = write(tmp_path / "it", arrays())
    tokenizers = ["tokenizer.model", "tokenizer.model.v3", "vocab.json", "merges.txt", "tekken.json", "qwen.tiktoken"]
    documents = ["LICENSE", "LICENSE.txt", "NOTICE", "README.md", "generation_config.json", "tokenizer_config.json"]
    templates = ["chat_template.jinja", "chat_template.json", "additional_chat_templates/tools.jinja"]
    goes = [*tokenizers, *documents, *templates]
    weights = ["README.bin", "tokenizer.model.safetensors", "pytorch_model.bin", "model.gguf"]
    states = ["optimizer.pt", "training_args.bin", "trainer_state.json"]
    stays = [*weights, *states, "notes.txt", ".env", "additional_chat_templates/key"]
    (source / "additional_chat_templates").mkdir()
    for name in [*goes, *stays]:
        (source / name).write_bytes(name.encode())
    found = folders.beside(source)
    assert found == ({"tokenizer.json": b"{}"} | {name: name.encode() for name in goes}, [])
    folders.write(tmp_path / "out", DOING, lambda part: folders.write_documents(part, {}, found.files))
    assert folders.beside(tmp_path / "out") == found


def test_a_linked_folder_of_templates_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "a.jinja").write_bytes(b"secret")
    (tmp_path / "it" / "additional_chat_templates").symlink_to(tmp_path / "keys")
    assert folders.beside(tmp_path / "it") == ({}, [])


def test_nothing_is_written_over_and_nothing_is_left_half_written(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ConfigError, match="something there"):
        write(tmp_path / "there", arrays())
    with pytest.raises(ConfigError, match="expected a folder"):
        write(tmp_path / "none" / "it", arrays())

    def refuse(folder: Path) -> None:
        (folder / "half").write_text("of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="No space left"):
        folders.write(tmp_path / "it", "Writing it", refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / folders.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / folders.WEIGHTS)


def cut(folder: Path) -> None:
    data = (folder / folders.WEIGHTS).read_bytes()
    (folder / folders.WEIGHTS).write_bytes(data[:-5])


def promise_much(folder: Path) -> None:
    header = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}})
    (folder / folders.WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header.encode())


def index_of(names: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / folders.INDEX).write_text(json.dumps({"weight_map": names}))

    return write


def index_alone(names: Any) -> Callable[[Path], None]:
    """An index to one file that has all tensors."""

    def write(folder: Path) -> None:
        (folder / folders.WEIGHTS).rename(folder / "a.safetensors")
        every = dict.fromkeys(load_file(folder / "a.safetensors"), "a.safetensors")
        index_of({**every, **names} if isinstance(names, dict) else names)(folder)

    return write


def twice(folder: Path) -> None:
    index_alone({})(folder)
    save_file({"model.norm.weight": np.zeros(8, "f4")}, folder / "b.safetensors")
    index = json.loads((folder / folders.INDEX).read_text())["weight_map"]
    index_of({**index, "model.norm.weight": "b.safetensors"})(folder)


def tied(folder: Path) -> None:
    document = json.loads((folder / folders.CONFIG).read_text())
    (folder / folders.CONFIG).write_text(json.dumps({**document, "tie_word_embeddings": True}))


def config_without(key: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        document = json.loads((folder / folders.CONFIG).read_text())
        del document[key]
        (folder / folders.CONFIG).write_text(json.dumps(document))

    return write


def pickle(folder: Path) -> None:
    (folder / folders.WEIGHTS).rename(folder / "pytorch_model.bin")


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda folder: (folder / folders.CONFIG).unlink(), "no config.json in it"),
    "no JSON": (lambda folder: (folder / folders.CONFIG).write_bytes(b"\xff\x00"), "a JSON object in config.json"),
    "deep JSON": (lambda folder: (folder / folders.CONFIG).write_text("[" * 100_000), "a JSON object in config.json"),
    "a list": (lambda folder: (folder / folders.CONFIG).write_text("[]"), "a JSON object in config.json"),
    "no width": (config_without("hidden_size"), "hidden_size"),
    "no weights": (lambda folder: (folder / folders.WEIGHTS).unlink(), "model.safetensors"),
    "pickles": (pickle, "never read"),
    "truncated": (cut, "model.safetensors, whole"),
    "empty": (lambda folder: (folder / folders.WEIGHTS).write_bytes(b""), "model.safetensors, whole"),
    "a long header": (
        lambda folder: (folder / folders.WEIGHTS).write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
        "model.safetensors, whole",
    ),
    "more than there is": (promise_much, "model.safetensors, whole"),
    "a tensor less": (
        lambda folder: changed(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        "tensors model.layers.1.mlp.up_proj.weight",
    ),
    "another shape": (
        lambda folder: changed(folder, lambda tensors: tensors.update({"lm_head.weight": np.zeros((8, 11), "f4")})),
        "lm_head.weight of shape [11, 8]",
    ),
    "another dtype": (
        lambda folder: changed(folder, lambda tensors: tensors.update({"model.norm.weight": np.zeros(8, "i1")})),
        "model.norm.weight of float32",
    ),
    "one more": (
        lambda folder: changed(folder, lambda tensors: tensors.update({"model.more.weight": np.zeros(8, "f4")})),
        "model.more.weight",
    ),
    "an index to a file that is not there": (index_alone({"lm_head.weight": "b.safetensors"}), "b.safetensors, which"),
    "an index to elsewhere": (index_alone({"lm_head.weight": "../a.safetensors"}), "../a.safetensors"),
    "an index of numbers": (index_alone(3), "weight_map"),
    "an index with more": (index_alone({"model.more.weight": "a.safetensors"}), "model.more.weight in a.safetensors"),
    "a tensor in two files": (twice, "model.norm.weight in one file"),
    "a head that is no embedding": (tied, "lm_head.weight with the values of model.embed_tokens.weight"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_is_not_whole_is_refused(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "it", arrays(), "float32")
    spoil, words = BROKEN[name]
    spoil(folder)
    with pytest.raises(ConfigError) as refused:
        folders.read(folder, DOING)
    assert words in str(refused.value)


def test_what_was_not_read_is_not_missing(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", arrays(), "float32", bytes_max=700)
    document = json.loads((folder / folders.CONFIG).read_text())
    (folder / folders.CONFIG).write_text(json.dumps({**document, "hidden_size": 16, "head_dim": 4}))
    with pytest.raises(ConfigError) as caught:
        folders.read(folder, DOING)
    assert len(caught.value.faults) == folders.NAMES_MAX
    assert all("as config.json says" in fault.expected for fault in caught.value.faults)


def test_an_adapter_is_no_model_though_one_lies_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", arrays(), "float32")
    (folder / folders.ADAPTER).write_text("{}")
    with pytest.raises(ConfigError) as caught:
        folders.read(folder, DOING)
    assert folders.ADAPTER in caught.value.faults[0].found
    assert "--merged" in caught.value.faults[0].remedy


def test_one_file_counts_before_an_index(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", arrays(), "float32")
    other = write(tmp_path / "other", {name: array + 1 for name, array in arrays().items()}, "float32", bytes_max=700)
    for file in other.glob("model-*"):
        file.rename(folder / file.name)
    (other / folders.INDEX).rename(folder / folders.INDEX)
    found = folders.read(folder, DOING)
    assert set(found.files.values()) == {folder / folders.WEIGHTS}
    assert found.tensor("model.norm.weight").tolist() == arrays()["model.norm.weight"].tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [4, 4096])
def test_a_head_that_is_the_embedding_may_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, rows: int
) -> None:
    monkeypatch.setattr(folders, "_ROWS", rows)
    folder = write(tmp_path / "it", arrays(), dtype)
    tied(folder)
    with pytest.raises(ConfigError, match=r"lm_head\.weight"):
        folders.read(folder, DOING)
    changed(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"]}))
    assert "lm_head.weight" not in folders.read(folder, DOING).files


def test_no_byte_of_a_header_makes_a_crash(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", arrays(), "float32")
    data = bytearray((folder / folders.WEIGHTS).read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(200):
        spoilt = bytearray(data)
        for at in rng.integers(0, 1500, 3):
            spoilt[at] = rng.integers(0, 256)
        (folder / folders.WEIGHTS).write_bytes(spoilt)
        try:
            read = folders.read(folder, DOING)
        except ConfigError:
            continue
        assert all(read.tensor(name).nbytes < 1 << 12 for name in read.files)
