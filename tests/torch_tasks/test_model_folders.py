"""Folders in and out, against transformers itself: logits, bytes of tensors, evaluation, tokenizer, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow
import pytest
import tokenizers
import torch
import transformers
from pyarrow import parquet

from isthmus import At, Program
from isthmus.ops import transformer
from isthmus.ops.data.corpus import DataError
from isthmus.ops.island.contract import evaluation_of, first_tensors_of
from isthmus.programs.engine.request.request import find_task, prepare
from isthmus.programs.model_folders import folders, llama
from isthmus.programs.trained.export import write_folder
from isthmus.programs.training import start
from isthmus.runtime.errors import ConfigError
from tests.patience import PATIENCE

pytestmark = [pytest.mark.torch]

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rms_norm_eps": 1e-5}),
    "llama, tied, grouped": ("llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama 3, biases": (
        "llama",
        {
            "head_dim": 12,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0, **LLAMA3},
        },
    ),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("mistral", {"num_key_value_heads": 2, "sliding_window": 9}),
    "mistral, tied": ("mistral", {"num_key_value_heads": 1, "sliding_window": None, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {"num_key_value_heads": 2}),
    "qwen2, tied, yarn": (
        "qwen2",
        {
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **YARN},
        },
    ),
    "qwen3": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "qwen3, tied": ("qwen3", {"num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": True}),
}
LARGEST = 1e-5
"""Of a difference of logits, as a share of the largest logit."""


def model_of(name: str) -> Any:
    """A small random model, in transformers."""
    kind, more = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **more})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + float("norm" in path))
    return model


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of logits, as a share of the largest."""
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_of_transformers_has_the_same_logits_here(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path / "it", max_shard_size="20KB")
    folder = folders.read(tmp_path / "it", "Reading it")
    assert len(set(folder.files.values())) > 1
    tokens = np.random.default_rng(0).integers(0, 97, (2, 60))
    params = llama.ours(folder.config, folder.tensors("float32"))
    ours = jax.jit(transformer.logits, static_argnums=0)(folder.config, params, tokens)
    assert difference(ours, model(torch.tensor(tokens)).logits) <= LARGEST


# -- in ----------------------------------------------------------------------------------------------------------------


def folder_of(name: str, to: Path, dtype: str) -> Path:
    """A model folder with a tokenizer of 94 tokens, and what else transformers writes beside it."""
    model_of(name).to(getattr(torch, dtype)).save_pretrained(to, max_shard_size="20KB")
    tokenizer_in(to)
    return to


def tokenizer_in(to: Path) -> None:
    """Write a tokenizer of 94 tokens into a folder."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={chr(33 + i): i for i in range(94)}, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(to / "tokenizer.json"))


def data_in(folder: Path) -> dict[str, Path]:
    """The same texts as text, JSON lines and parquet."""

    rows = [f"{i} times 7 is {7 * i}." for i in range(500)]
    paths = {kind: folder / f"data.{kind}" for kind in ("txt", "jsonl", "parquet")}
    paths["txt"].write_text("".join(rows))
    paths["jsonl"].write_text("".join(json.dumps({"n": i, "text": row}) + "\n" for i, row in enumerate(rows)))
    parquet.write_table(pyarrow.table({"n": list(range(500)), "text": rows}), paths["parquet"])
    return paths


def task_of(folder: Path, data: Path, **more: Any) -> Any:
    settings = {"folder": str(folder), "data": [str(data)], "context": 16, "batch": 2, **more}
    return find_task(None, settings).task


@pytest.mark.parametrize("name", ["llama, tied, grouped", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_comes_back_to_the_bit_without_a_step(name: str, dtype: str, tmp_path: Path) -> None:
    source = folder_of(name, tmp_path / "it", dtype)
    task = task_of(source, data_in(tmp_path)["txt"])
    leaves = task.recipe().leaves()
    opened = folders.read(source, "Reading it")
    assert {leaf.name.replace("/", ".") for leaf in leaves} == set(opened.files)
    arrays = {leaf.name: np.asarray(task.load(leaf.name, leaf.shape), np.float32) for leaf in leaves}
    to = tmp_path / "again"
    to.mkdir()
    write_folder(opened.document, source, to, arrays, {leaf.name: str(leaf.shape.dtype) for leaf in leaves})
    again = folders.read(to, "Reading it")
    assert again.files.keys() == opened.files.keys()
    for tensor in opened.files:
        assert again.tensor(tensor).dtype == opened.tensor(tensor).dtype == dtype
        assert again.tensor(tensor).tobytes() == opened.tensor(tensor).tobytes()
    assert json.loads((to / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    assert (to / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_windows_of_an_evaluation_do_not_overlap_where_their_number_is_given(tmp_path: Path, framework: str) -> None:
    source, text = folder_of("qwen3", tmp_path / "it", "float32"), data_in(tmp_path)["txt"]
    assert task_of(source, text, framework=framework).extract is None
    task = task_of(source, text, framework=framework, evaluation_windows=20)
    batches = list(task.evaluation_batches(0))
    assert (task.extract.windows, task.extract.tokens, {each["tokens"].shape for each in batches}) == (
        20,
        16,
        {(2, 17)},
    )
    assert task.evaluated_tokens == 320
    every = task_of(source, text, framework=framework, evaluation_windows=10_000)
    predicted = np.concatenate([each["tokens"][:, 1:].ravel() for each in every.evaluation_batches(0)])
    assert len(predicted) == every.extract.windows * 16 <= every.extract.there * 16


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_held_out_sets_are_read_by_the_folders_tokenizer_and_evaluated_by_name(tmp_path: Path, framework: str) -> None:
    source, text = folder_of("qwen3", tmp_path / "it", "float32"), data_in(tmp_path)["txt"]
    task = task_of(source, text, framework=framework, evaluation_windows=20, sets={"same": str(text)})
    alone = task_of(source, text, framework=framework, evaluation_windows=20)
    assert task.evaluated_tokens == 2 * alone.evaluated_tokens
    tensors = first_tensors_of(task, 0)
    found, without = (evaluation_of(each, 0).metrics(tensors) for each in (task, alone))
    assert {**without, "loss/same": found["loss/same"]} == found
    assert found["loss/same"] > 0
    with pytest.raises(DataError, match="'law'"):
        task_of(source, text, framework=framework, sets={"law": str(tmp_path / "nowhere")}).held_out_sets[0][1]()


def test_the_loss_of_a_folder_is_that_of_transformers(tmp_path: Path) -> None:
    source = folder_of("qwen3", tmp_path / "it", "float32")
    task = task_of(source, data_in(tmp_path)["txt"])
    params = llama.nested({leaf.name: task.load(leaf.name, leaf.shape) for leaf in task.recipe().leaves()})
    batch = task.batch(At(0, 0, 0))
    tokens = torch.tensor(batch["tokens"].astype(np.int64))
    assert tokens.shape == (2, 17)
    theirs = model_of("qwen3")(tokens, labels=tokens).loss.item()
    assert float(task.loss(params, batch)) == pytest.approx(theirs, rel=1e-5)


def test_texts_are_the_same_in_every_form(tmp_path: Path) -> None:
    source = folder_of("llama", tmp_path / "it", "float32")
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "eos_token_id": [95, 96]}))
    paths = data_in(tmp_path)
    lines, rows = (task_of(source, paths[kind]).batch(At(0, 0, 3))["tokens"] for kind in ("jsonl", "parquet"))
    np.testing.assert_array_equal(lines, rows)
    assert (lines == 95).any(), "each document ends"
    for kind in ("jsonl", "parquet"):
        with pytest.raises(ConfigError, match=r"n, text"):
            task_of(source, paths[kind], column="words")
    with pytest.raises(ConfigError, match=r"task\.data"):
        find_task(None, {"folder": str(source)})
    texts = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(np.asarray([0, 3], "<i4")), pyarrow.py_buffer(b"\xff" * 3)]
    )
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "odd.parquet")
    with pytest.raises(ConfigError, match=r"odd\.parquet"):
        task_of(source, tmp_path / "odd.parquet")


@pytest.mark.parametrize("end", [97, -1])
def test_a_text_cannot_end_with_a_token_that_the_model_does_not_have(tmp_path: Path, end: int) -> None:
    source = folder_of("llama", tmp_path / "it", "float32")
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "eos_token_id": end}))
    with pytest.raises(ConfigError, match="eos_token_id below 97"):
        task_of(source, data_in(tmp_path)["txt"])


@pytest.mark.process
def test_a_folder_is_trained_and_goes_out_as_it_came_in(tmp_path: Path) -> None:
    source = folder_of("qwen3", tmp_path / "it", "bfloat16")
    paths = data_in(tmp_path)
    run = tmp_path / "run"
    more = ("--learners", 1, "--tokens", 64 * 40, "--set", "task.context=16", "--set", "task.batch=4")
    isthmus("train", "--model", source, "--data", paths["jsonl"], "--run-dir", run, "--quiet", *more)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_loss_final"] < summary["eval_loss_initial"]
    to = exported(run, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(to)
    assert model.dtype == torch.bfloat16
    assert not torch.equal(model.lm_head.weight, model_of("qwen3").to(torch.bfloat16).lm_head.weight)
    of_run, of_folder = (
        json.loads(isthmus("evaluate", where, "--data", paths["txt"], "--json")[0]) for where in (run, to)
    )
    (by_file,), (beside,) = of_run.pop("files"), of_folder.pop("files")
    assert (by_file["loss"], by_file["tokens"]) == pytest.approx((beside["loss"], of_run["tokens"]), abs=1e-6)
    assert of_run == pytest.approx(of_folder, abs=1e-6)
    assert of_run["bits_per_byte"] > 0
    said, _ = isthmus("sample", run, "--prompt", "7 times", "--tokens", 5)
    assert said.startswith("7 times")


# -- out ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{i} times 7 is {7 * i}, höchstens. " for i in range(600)))
    return path


@pytest.fixture(scope="module", params=["plain", "tied and stacked"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A short run of the shipped language model."""
    settings = {"layers": 2, "width": 32, "heads": 4, "context": 32, "batch": 4, "data": [str(text)]}
    settings |= {} if request.param == "plain" else {"tied": True, "stacked": True}
    folder: Path = tmp_path_factory.mktemp("run") / "run"
    program = Program("decoupled-diloco", interval=6, fragments=4)
    asked = {"learners": 1, "tokens": 100 * 128}
    start(prepare(program, None, run=asked, task_settings=settings, run_dir=folder).to_train().with_folder(), None)
    return folder


def isthmus(*arguments: Any, status: int = 0) -> tuple[str, str]:
    command = [str(Path(sys.executable).with_name("isthmus")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def exported(run: Path, to: Path, form: str = "huggingface", *more: Any) -> Path:
    isthmus("export", run, "--format", form, "--to", to, *more)
    return to


@pytest.mark.process
def test_an_exported_run_is_a_model_of_transformers(run: Path, text: Path, tmp_path: Path) -> None:
    folder = exported(run, tmp_path / "it")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = "42 times 7, höchstens\n\x00\x7f"
    assert tokenizer(words)["input_ids"] == list(words.encode())
    assert tokenizer.decode(list(words.encode())) == words
    opened = folders.read(folder, "Reading it")
    tokens = np.frombuffer(text.read_bytes()[: 4 * 32], np.uint8).reshape(4, 32).astype(np.int64)
    ours = transformer.logits(opened.config, llama.ours(opened.config, opened.tensors("float32")), tokens)
    assert difference(ours, model(torch.tensor(tokens)).logits) <= LARGEST

    of_run, of_folder = (json.loads(isthmus("evaluate", where, "--data", text, "--json")[0]) for where in (run, folder))
    assert of_run["loss"] == pytest.approx(of_folder["loss"], abs=1e-6)
    assert of_run["tokens"] == of_folder["tokens"] == len(text.read_bytes()) - 1
    assert of_run["bits_per_byte"] == pytest.approx(of_run["loss"] / np.log(2))
    held_out = json.loads(isthmus("evaluate", run, "--json")[0])
    summary = json.loads((run / "summary.json").read_text())
    assert held_out["loss"] == pytest.approx(summary["eval_loss_final"], abs=1e-5)

    prompt = torch.tensor([list(b"6 times 7 is ")])
    written = model.generate(prompt, max_new_tokens=16, do_sample=False)[0].tolist()
    said = [
        isthmus("sample", where, "--prompt", "6 times 7 is ", "--tokens", 16, "--temperature", 0)[0]
        for where in (run, folder)
    ]
    assert said == [bytes(written).decode(errors="replace")] * 2


@pytest.mark.process
def test_other_forms_have_names_and_arrays(run: Path, tmp_path: Path) -> None:
    import orbax.checkpoint
    from safetensors.numpy import load_file

    import isthmus as face

    model = face.load(run)
    plain = load_file(exported(run, tmp_path / "plain", "safetensors") / "model.safetensors")
    half = load_file(exported(run, tmp_path / "half", "safetensors", "--dtype", "bfloat16") / "model.safetensors")
    tree = orbax.checkpoint.StandardCheckpointer().restore(exported(run, tmp_path / "orbax", "orbax"))
    leaves = jax.tree_util.tree_flatten_with_path(model)[0]
    assert len(leaves) == len(plain) == len(half)
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_array_equal(plain[name], leaf)
        np.testing.assert_array_equal(half[name], np.asarray(leaf.astype("bfloat16")))
    jax.tree.map(np.testing.assert_array_equal, tree, model)


@pytest.mark.process
def test_what_cannot_be_exported_is_one_message(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    wrong = (
        (("export", run, "--format", "huggingface", "--to", tmp_path / "there"), "something there"),
        (("export", run, "--format", "gguf", "--to", tmp_path / "it"), "huggingface, safetensors, orbax"),
        (("export", run, "--format", "orbax", "--to", tmp_path / "it", "--dtype", "int8"), "float32"),
        (("export", run, "--format", "orbax", "--to", tmp_path / "it", "--snapshot", 99), "snapshot 99"),
        (("export", tmp_path, "--format", "orbax", "--to", tmp_path / "it"), "a run folder"),
        (("sample", run, "--prompt", ""), "at least one token"),
        (("sample", tmp_path, "--prompt", "a"), "neither config.toml nor config.json"),
        (("evaluate", run, "--data", tmp_path / "none"), "nothing there"),
    )
    for arguments, words in wrong:
        out, error = isthmus(*arguments, status=2)
        assert words in " ".join(error.split())
        assert "Traceback" not in error
        assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_tokenizer_that_knows_more_than_the_model_is_refused(tmp_path: Path) -> None:
    from isthmus.programs.model_folders.tokens import FolderTokens, byte_tokenizer

    for name, data in byte_tokenizer("Making it").items():
        (tmp_path / name).write_bytes(data)
    FolderTokens(tmp_path, 256, "Reading it")
    with pytest.raises(ConfigError, match="token ids below 97"):
        FolderTokens(tmp_path, 97, "Reading it")
    (tmp_path / "tokenizer.json").write_bytes(b'{"model": ')
    with pytest.raises(ConfigError, match="a tokenizer in"):
        FolderTokens(tmp_path, 256, "Reading it")
