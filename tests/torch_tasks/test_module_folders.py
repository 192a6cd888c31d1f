"""Folders of architectures that transformers alone computes: trained, written, measured, and sampled from; and folders
that islands in both frameworks train."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from isthmus.ops.data.batches import At, tokens_in
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.optimizer import adamw, learning_rate
from isthmus.ops.island.schedule import RateSchedule
from isthmus.ops.island.torch_optimizer import ClippedAdamW
from isthmus.programs.engine.request.request import find_task
from isthmus.programs.engine.request.slot_tasks import SlotTasks
from isthmus.programs.engine.request.task_checks import check_alike, layout_of
from isthmus.programs.model_folders import folders, modules
from isthmus.programs.model_folders.llama import nested
from isthmus.programs.trained.evaluate import evaluate
from isthmus.programs.trained.text_model import text_model
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.test_model_folders import data_in, exported, folder_of, isthmus, task_of, tokenizer_in

pytestmark = [pytest.mark.torch]

HALVES = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64, "hidden_size": 32}
OTHERS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    | {"attn_pdrop": 0.0},
    "gpt_neox": {**HALVES, "intermediate_size": 64},
    "opt": {**HALVES, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    "mixtral": {**HALVES, "intermediate_size": 48, "num_key_value_heads": 2, "num_local_experts": 4},
    "llama": {**HALVES, "intermediate_size": 48, "hidden_act": "gelu"},
}


def other_folder(kind: str, to: Path, dtype: str = "float32", **more: Any) -> Path:
    """A folder of a small random model with a tokenizer."""
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=97, bos_token_id=95, eos_token_id=96, pad_token_id=94, **OTHERS[kind], **more
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.to(getattr(torch, dtype)).save_pretrained(to, max_shard_size="20KB")
    tokenizer_in(to)
    return to


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@pytest.mark.parametrize("kind", OTHERS)
def test_the_loss_of_a_folder_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    source = other_folder(kind, tmp_path / "it")
    task = task_of(source, data_in(tmp_path)["jsonl"])
    layout = {spec.name: spec for spec in layout_of(task, 0)}
    assert {spec.merge for spec in layout.values()} == {"average", "rda"}
    module = task.build()
    assert set(layout) == {name.replace(".", "/") for name, _ in module.named_parameters()}
    batch = task.batch(At(0, 0, 0))
    tokens = torch.tensor(batch["tokens"].astype(np.int64))
    theirs = loaded(source)(tokens, labels=tokens).loss.item()
    assert task.loss(module.eval(), {"tokens": tokens}).item() == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_comes_back_to_the_bit_without_a_step(kind: str, dtype: str, tmp_path: Path) -> None:
    source = other_folder(kind, tmp_path / "it", dtype)
    model = modules.read(source, "Reading it")
    assert model.dtype("Reading it") == dtype
    arrays = {
        name.replace(".", "/"): each.detach().float().numpy()
        for name, each in model.load(dtype, "Reading it").named_parameters()
    }
    modules.write(model.with_tensors(arrays, dtype, "Writing it"), tmp_path / "again")
    before, after = (
        {name: each for file in folders.weight_files(path, "") for name, each in load_file(file).items()}
        for path in (source, tmp_path / "again")
    )
    assert before.keys() == after.keys()
    assert all(before[name].dtype == dtype for name in before)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_other_dtypes_are_computed_in(tmp_path: Path) -> None:
    source = other_folder("gpt2", tmp_path / "it", "bfloat16")
    module = modules.read(source, "").load("bfloat16", "")
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        whole = modules.token_losses(module, tokens, "float32")
        expected = modules.token_losses(loaded(source).float(), tokens, "float32")
        torch.testing.assert_close(whole, expected, rtol=1e-6, atol=1e-6)
        half = modules.token_losses(loaded(source).float(), tokens, "bfloat16")
    assert not torch.equal(half, expected)
    torch.testing.assert_close(half, expected, rtol=0.05, atol=0.05)
    modules.token_losses(module, tokens, "float32").mean().backward()
    assert module.transformer.wte.weight.grad.abs().sum() > 0


def test_a_wrong_folder_is_one_message(tmp_path: Path) -> None:
    data = data_in(tmp_path)["jsonl"]
    source = other_folder("gpt_neox", tmp_path / "it")
    text = (source / "config.json").read_text()

    def refused(words: str, **changes: Any) -> None:
        (source / "config.json").write_text(json.dumps({**json.loads(text), **changes}))
        with pytest.raises(ConfigError, match=words):
            layout_of(task_of(source, data), 0)
        (source / "config.json").write_text(text)

    refused(r"llama \(LlamaForCausalLM\).*'gpt_neoks'", model_type="gpt_neoks")
    refused("code of its own", auto_map={"AutoModelForCausalLM": "mine.py--Mine"})
    refused("quantization_config", quantization_config={"bits": 4})
    refused("GPTNeoXForSequenceClassification", architectures=["GPTNeoXForSequenceClassification"])
    refused("hidden_size", hidden_size="many")
    refused("shape", intermediate_size=65)
    refused("files without them", num_hidden_layers=3)
    refused("layers.1", num_hidden_layers=1)
    with pytest.raises(ConfigError, match="at most 64"):
        task_of(source, data, context=65)
    with pytest.raises(ConfigError, match=r"task\.framework"):
        find_task(None, {"folder": str(source), "data": [str(data)], "framework": "tf"})
    with pytest.raises(ConfigError, match="llama"):
        task_of(source, data, framework="jax")
    shard = next(source.glob("*.safetensors"))
    tensors = load_file(shard)
    missing = sorted(tensors)[0]
    save_file({name: each for name, each in tensors.items() if name != missing} or {"a": np.zeros(1)}, shard)
    with pytest.raises(ConfigError, match=f"{missing} in .* files without"):
        layout_of(task_of(source, data), 0)
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(ConfigError, match="whole"):
        task_of(source, data)


def test_the_optimizer_is_that_of_jax() -> None:
    import jax.numpy as jnp

    values = {"weight": np.array([[1.0, -2.0], [0.5, 3.0]], np.float32), "bias": np.array([0.3, -0.1], np.float32)}
    settings = {"peak": 0.01, "weight_decay": 0.1, "clip": 0.5}
    in_jax = adamw(schedule=RateSchedule(0.2), **settings)
    params = {name: jnp.asarray(each) for name, each in values.items()}
    state = in_jax.init(params)
    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for name, each in values.items():
            getattr(module, name).copy_(torch.from_numpy(each))
    in_torch = ClippedAdamW(module, **settings)
    rng = np.random.default_rng(0)
    for progress in (0.05, 0.1, 0.3, 0.9, 1.0):
        grads = {name: rng.normal(size=each.shape).astype(np.float32) for name, each in values.items()}
        updates, state = in_jax.update({k: jnp.asarray(v) for k, v in grads.items()}, state, params, progress=progress)
        params = {name: params[name] + updates[name] for name in params}
        for group in in_torch.param_groups:
            group["lr"] = settings["peak"] * RateSchedule(0.2).share(progress)
        for name, each in grads.items():
            getattr(module, name).grad = torch.from_numpy(each.copy())
        in_torch.step()
        for name in values:
            np.testing.assert_allclose(getattr(module, name).detach(), params[name], rtol=2e-6, atol=1e-7)
    for progress in np.linspace(-0.1, 1.1, 25):
        rate = float(learning_rate(progress, peak=1.0, schedule=RateSchedule(0.2)))
        assert RateSchedule(0.2).share(progress) == pytest.approx(rate, abs=1e-6)
        assert RateSchedule(0.0).share(progress) == pytest.approx(
            float(learning_rate(progress, peak=1.0, schedule=RateSchedule(0.0)))
        )


@pytest.mark.process
def test_a_folder_is_trained_and_its_run_needs_it_no_more(tmp_path: Path) -> None:
    source = other_folder("gpt2", tmp_path / "it", "bfloat16")
    paths = data_in(tmp_path)
    run = tmp_path / "run"
    more = ("--learners", 2, "--tokens", 64 * 60, "--set", "task.context=16", "--set", "task.batch=4")
    isthmus("train", "--model", source, "--data", paths["jsonl"], "--run-dir", run, "--quiet", *more)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_loss_final"] < summary["eval_loss_initial"]
    assert "from nothing" not in (run / "logs" / "daemon.log").read_text()  # No process had threads.
    before = {name: (source / name).read_bytes() for name in ("config.json", "tokenizer.json")}
    shutil.rmtree(source)
    to = exported(run, tmp_path / "out")
    assert {name: (to / name).read_bytes() for name in before if name != "config.json"}.items() <= before.items()
    assert json.loads((to / "config.json").read_text()) == json.loads(before["config.json"])
    assert loaded(to).dtype == torch.bfloat16
    of_run, of_folder = (evaluate(text_model(where, ""), paths["txt"], "") for where in (run, to))
    assert [each.loss for each in of_run.files] == pytest.approx([of_folder.loss], abs=1e-6)
    ours, theirs = ({**each._asdict(), "files": 1} for each in (of_run, of_folder))
    assert ours == pytest.approx(theirs, abs=1e-6)
    held_out = evaluate(text_model(run, ""), None, "")
    assert held_out.loss == pytest.approx(summary["eval_loss_final"], abs=0.02)  # Which was computed in bfloat16.
    texts = [
        isthmus("sample", where, "--prompt", "7 times", "--tokens", 90, "--temperature", 0)[0] for where in (run, to)
    ]
    assert texts[0] == texts[1]
    assert texts[0].startswith("7 times")


def test_two_frameworks_have_one_layout_and_one_loss(tmp_path: Path) -> None:
    source, data = folder_of("qwen3, tied", tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]
    in_jax, in_torch = (task_of(source, data, framework=each) for each in ("jax", "torch"))
    check_alike(in_jax, layout_of(in_jax, 0), "torch", in_torch, layout_of(in_torch, 0))
    batch = in_jax.batch(At(0, 0, 0))
    np.testing.assert_array_equal(batch["tokens"], in_torch.batch(At(0, 0, 0))["tokens"])
    tree = in_jax.init(jax.random.key(0))
    first = {leaf.name: in_jax.load(leaf.name, leaf.shape) for leaf in in_jax.recipe().leaves()}
    assert first.keys() == {name for name, _ in named_leaves(tree)}
    module = in_torch.build()
    with torch.no_grad():
        theirs = float(in_torch.loss(module, {"tokens": torch.from_numpy(batch["tokens"])}))
    assert abs(float(in_jax.loss(nested(first), batch)) - theirs) <= 1e-5


@pytest.mark.process
def test_islands_in_both_frameworks_train_one_folder(tmp_path: Path) -> None:
    source, data = folder_of("qwen3", tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]
    summaries = []
    for frameworks in (["jax", "torch"], ["torch", "jax"]):
        run = tmp_path / frameworks[0]
        listed = f"task.framework={json.dumps(frameworks)}"
        more = ("--learners", 2, "--tokens", 64 * 200, "--set", "task.context=16", "--set", "task.batch=4")
        isthmus("train", "--model", source, "--data", data, "--run-dir", run, "--quiet", "--set", listed, *more)
        summaries.append(json.loads((run / "summary.json").read_text()))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert {line["learner"] for line in lines if line.get("tokens")} == {0, 1}
        assert "from nothing" not in (run / "logs" / "daemon.log").read_text()
        assert evaluate(text_model(run, ""), None, "").loss == pytest.approx(summaries[-1]["eval_loss_final"], abs=1e-5)
    first, second = (each["eval_loss_initial"] for each in summaries)
    assert abs(first - second) <= 1e-5
    assert all(each["eval_loss_final"] < each["eval_loss_initial"] for each in summaries)


def test_a_machine_has_a_framework_of_its_own(tmp_path: Path) -> None:
    source, data = folder_of("llama", tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]
    settings = {"folder": str(source), "data": [str(data)], "context": 16, "batch": 2}
    subject = find_task(None, settings, machines={"beta": "torch"})
    tasks = SlotTasks.read(subject.reference.text)
    assert tasks is not None
    assert 'framework = "torch"' in tasks.of_slot(0, "beta")
    assert "framework =" not in tasks.of_slot(0, "alpha")  # What follows from the folder.
    assert [type(each).__name__ for each in subject.tasks.values()] == ["Task", "TorchTask"]
    with pytest.raises(ConfigError, match="--model FOLDER"):
        find_task(None, {}, machines={"beta": "torch"})


@pytest.mark.process
def test_requests_import_no_framework() -> None:
    words = "import sys, isthmus.programs.trained.export, isthmus.programs.folder_task"
    shown = "print(sorted({'jax', 'torch', 'transformers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", f"{words}; {shown}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_prompts_are_read_and_not_trained_on(framework: str, tmp_path: Path) -> None:
    source = folder_of("qwen3", tmp_path / "it", "float32")
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "eos_token_id": 96}))
    rows = [{"ask": f"{i} x 7", "text": f"it is {7 * i}"} for i in range(500)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = task_of(source, tmp_path / "rows.jsonl", prompt="ask", framework=framework)
    batch = task.batch(At(0, 0, 3))
    tokens, weights = batch["tokens"].astype(np.int64), batch["weights"]
    assert weights.shape == (2, 16)
    assert weights.sum() == pytest.approx(1.0)
    counted = tokens_in(batch, task.tokens_per_batch, 0)
    assert 0 < counted == (weights > 0).sum() < 32
    assert task.tokens_per_batch.at_most == 32
    text = find_task(None, {"folder": str(source), "data": [str(tmp_path / "rows.jsonl")], "context": 16}).task
    ends, ask = tokens[:, 1:] == 96, tokens[:, 1:] == ord("x") - 33
    assert (weights[ends] > 0).all(), "the end of a text is learnt"
    assert ask.any()
    assert not weights[ask].any()
    assert text.tokens_per_batch == 8 * 16
    labels = torch.tensor(np.where(np.pad(weights, ((0, 0), (1, 0))) > 0, tokens, -100))
    theirs = loaded(source)(torch.tensor(tokens), labels=labels).loss.item()
    if framework == "torch":
        ours = task.loss(task.build().eval(), {name: torch.tensor(each) for name, each in batch.items()}).item()
    else:
        ours = float(
            task.loss(nested({leaf.name: task.load(leaf.name, leaf) for leaf in task.recipe().leaves()}), batch)
        )
    assert ours == pytest.approx(theirs, rel=1e-5)
    whole = list(task.evaluation_batches(0))
    assert sum(each["weights"].sum() for each in whole) / len(whole) == pytest.approx(1.0, rel=1e-5)
    assert len({each["weights"].max() for each in whole}) == 1  # A token counts alike in all of them.
    for wrong, words in (({"prompt": "asked"}, r"'asked'.*\n.*task\.prompt"), ({"column": "words"}, r"task\.column")):
        with pytest.raises(ConfigError, match=words):
            task_of(source, tmp_path / "rows.jsonl", **{"prompt": "ask", **wrong})
    with pytest.raises(ConfigError, match="plain text"):
        task_of(source, data_in(tmp_path)["txt"], prompt="ask")
    np.save(tmp_path / "ids.npy", np.arange(90, dtype=np.int32).repeat(90))
    with pytest.raises(ConfigError, match="token ids"):
        task_of(source, tmp_path / "ids.npy", prompt="ask")


def test_arrow_files_are_rows(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    source, paths = folder_of("llama", tmp_path / "it", "float32"), data_in(tmp_path)
    saved = tmp_path / "saved"
    saved.mkdir()
    table = pyarrow.parquet.read_table(paths["parquet"])
    (saved / "state.json").write_text("{}")
    with pyarrow.ipc.new_stream(saved / "data.arrow", table.schema) as stream:
        stream.write_table(table)
    with pyarrow.ipc.new_file(tmp_path / "file.arrow", table.schema) as file:
        file.write_table(table)
    expected = task_of(source, paths["parquet"]).batch(At(0, 0, 3))["tokens"]
    for path in (saved, tmp_path / "file.arrow"):
        np.testing.assert_array_equal(task_of(source, path).batch(At(0, 0, 3))["tokens"], expected)
    (tmp_path / "file.arrow").write_bytes(b"ARROW1 and no more")
    with pytest.raises(ConfigError, match="arrow in"):
        task_of(source, tmp_path / "file.arrow")
