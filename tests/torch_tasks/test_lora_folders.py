"""Adapters of a model folder by settings: what is trained, sent, written and read again; and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isthmus
from isthmus.ops.data.batches import At
from isthmus.ops.island.torch_model import drawing
from isthmus.programs.engine.request.request import find_task
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.request.task_checks import layout_of
from isthmus.programs.trained.evaluate import evaluate
from isthmus.programs.trained.export import export
from isthmus.programs.trained.text_model import text_model
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.test_model_folders import data_in, folder_of, task_of
from tests.torch_tasks.test_model_folders import isthmus as command
from tests.torch_tasks.test_module_folders import other_folder

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]

LLAMA = "llama, tied, grouped"
TOKENS = torch.arange(20).reshape(2, 10)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(TOKENS).logits.float()


def base_of(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def count(task: Any) -> int:
    return sum(int(np.prod(spec.shape)) for spec in layout_of(task, 0))


def first_module(task: Any, seed: int = 0) -> Any:
    with drawing(seed):
        return task.build()


# -- the task ----------------------------------------------------------------------------------------------------------


def test_adapters_alone_are_trained_and_begin_as_the_folder(tmp_path: Path) -> None:
    source, data = folder_of(LLAMA, tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]
    task = task_of(source, data, lora_rank=2)
    layout = layout_of(task, 0)
    assert len(layout) == 3 * 7 * 2  # Layers, linear layers of each, A and B.
    assert all(".lora_" in spec.name.replace("/", ".") for spec in layout)
    assert {(spec.dtype, spec.merge) for spec in layout} == {("float32", "rda")}
    frozen = {name for name, _ in task.frozen(0)}
    assert sum("lora" in name for name in frozen) == 0
    assert sum(name.endswith("/weight") for name in frozen) == 3 * 9 + 2  # And norms, the embedding and the last norm.
    module = first_module(task)
    assert torch.equal(logits(module), logits(base_of(source)))
    again, other = first_module(task), first_module(task, 1)
    named, named_again, named_other = (dict(each.named_parameters()) for each in (module, again, other))
    for name, each in named.items():
        if "lora_A" in name:
            assert torch.equal(each, named_again[name])
            assert not torch.equal(each, named_other[name])
        elif "lora_B" in name:
            assert not each.any()


@pytest.mark.parametrize(
    ("more", "layers", "factor"),
    [
        ({"lora_modules": ["q_proj", "v_proj"]}, 3 * 2, 2.0),
        ({"lora_modules": ["layers.1.mlp.up_proj"], "lora_alpha": 3}, 1, 1.5),
        ({}, 3 * 7, 2.0),
    ],
)
def test_settings_are_those_of_peft(more: dict[str, Any], layers: int, factor: float, tmp_path: Path) -> None:
    source, data = folder_of(LLAMA, tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]
    task = task_of(source, data, lora_rank=2, **more)
    assert len(layout_of(task, 0)) == 2 * layers
    adapted = [each for each in first_module(task).modules() if isinstance(each, peft.tuners.lora.LoraLayer)]
    assert {each.scaling["default"] for each in adapted} == {factor}
    assert {each.r["default"] for each in adapted} == {2}


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "opt"])
def test_other_architectures_have_adapters(kind: str, tmp_path: Path) -> None:
    source, data = other_folder(kind, tmp_path / "it", "bfloat16"), data_in(tmp_path)["jsonl"]
    task = task_of(source, data, lora_rank=3, checkpoint=True)
    assert {spec.dtype for spec in layout_of(task, 0)} == {"float32"}
    assert all("lora_" in spec.name for spec in layout_of(task, 0))
    module = first_module(task)
    tokens = torch.tensor(task.batch(At(0, 0, 0))["tokens"].astype(np.int64))
    task.loss(module.train(), {"tokens": tokens}).backward()
    assert all(each.grad is not None for each in module.parameters() if each.requires_grad)
    moved = [name for name, each in module.named_parameters() if each.grad is not None and each.grad.any()]
    assert moved
    assert all("lora_B" in name for name in moved)  # While B is zero, A has no gradient but zeros.


def test_framework_alpha_and_rate_follow_from_the_rank(tmp_path: Path) -> None:
    source, data = folder_of(LLAMA, tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]
    settings = {"folder": str(source), "data": [str(data)], "context": 16}
    run = RunSettings.read({"tokens": 10_000})
    adapted = find_task(None, {**settings, "lora_rank": 4}, run)
    assert type(adapted.task).__name__ == "TorchTask"
    assert (adapted.settings["framework"], adapted.settings["lora_alpha"]) == ("torch", 8)
    assert {"task.framework", "task.lora_alpha", "task.lr"} <= adapted.chosen.keys()
    whole = find_task(None, settings, run)
    assert "task.lora_alpha" not in whole.chosen
    assert whole.settings["framework"] == "jax"
    wider = find_task(None, {**settings, "lora_rank": 8}, run)
    assert wider.settings["lr"] == adapted.settings["lr"] > whole.settings["lr"]


def test_wrong_requests_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, data = folder_of(LLAMA, tmp_path / "it", "float32"), data_in(tmp_path)["jsonl"]

    def refused(setting: str, **more: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            task_of(source, data, **more)
        (fault,) = caught.value.faults
        assert setting in fault.action
        return f"{fault.found} {fault.expected} {fault.remedy}"

    for wrong in (0, -1):
        refused("lora_rank", lora_rank=wrong)
    assert "at most 16, the width of model.layers.0.self_attn.k_proj" in refused("lora_rank", lora_rank=17)
    task_of(source, data, lora_rank=17, lora_modules=["q_proj"])  # Which is 32 wide.
    refused("lora_alpha", lora_rank=2, lora_alpha=0)
    refused("lora_alpha", lora_alpha=4)
    refused("lora_modules", lora_modules=["q_proj"])
    names = refused("lora_modules", lora_rank=2, lora_modules=["q_proj", "qproj"])
    assert "'qproj'" in names
    assert "down_proj" in names
    refused("lora_modules", lora_rank=2, lora_modules=["lm_head"])
    refused("lora_modules", lora_rank=2, lora_modules=["self_attn"])
    refused("framework", lora_rank=2, framework="jax")
    refused("framework", lora_rank=2, framework=["torch", "jax"])
    with pytest.raises(ConfigError) as caught:
        task_of(source, data, lora_rank=2, lora_modules=["qproj", "kproj"])
    assert len(caught.value.faults) == 2
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "pip install peft" in refused("lora_rank", lora_rank=2)
    task_of(source, data)


# -- runs --------------------------------------------------------------------------------------------------------------


def trained(source: Path, data: Path, run: Path, **more: Any) -> dict[str, Any]:
    """The summary of a short run of two islands."""
    settings = ["--set=task.lora_rank=2", "--set=task.context=16", "--set=task.batch=4", "--set=task.lr=0.01"]
    command(
        "train", "--model", source, "--data", data, "--run-dir", run, "--quiet", "--learners", 2, "--tokens", 64 * 60,
        "--set=program.push=float32", "--set=program.interval=6", *settings,
        *(f"--set={key}={value}" for key, value in more.items()),
    )  # fmt: skip
    return dict(json.loads((run / "summary.json").read_text()))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(LLAMA, tmp_path_factory.mktemp("source") / "it", "float32")


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of adapters, over."""
    folder = tmp_path_factory.mktemp("adapted")
    trained(source, data_in(folder)["jsonl"], folder / "run")
    return folder / "run"


@pytest.mark.process
def test_adapters_alone_cross_the_links_and_are_kept(source: Path, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_loss_final"] < summary["eval_loss_initial"]
    spec = json.loads((run / "spec.json").read_text())
    size = sum(int(np.prod(shape)) for _, shape, *_ in spec["job"]["layout"])
    weights = sum(each.numel() for each in base_of(source).parameters())
    assert size < weights / 4
    assert {name.rsplit("/", 3)[1] for name, *_ in spec["job"]["layout"]} == {"lora_A", "lora_B"}
    answers = next(edge for edge in summary["edges"] if edge["target"] == "merge.answer")
    assert answers["items"] > 0
    assert all(edge["bytes"] < 1.2 * edge["items"] * 4 * size for edge in summary["edges"] if edge["items"])
    finals = [load_file(file) for file in (run / "snapshots" / "final").glob("*.safetensors")]
    assert sum(each.size for tensors in finals for each in tensors.values()) == size
    assert all(file.stat().st_size < 4 * weights / 2 for file in (run / "snapshots").rglob("*"))


@pytest.mark.process
def test_the_adapter_is_read_by_peft(source: Path, run: Path, tmp_path: Path) -> None:
    expected = logits(isthmus.load(run))
    assert not torch.allclose(expected, logits(base_of(source)), atol=1e-3)
    export(run, tmp_path / "adapter", "huggingface")
    written = {each.name for each in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= written
    assert "config.json" not in written
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 4, "CAUSAL_LM")
    assert config["base_model_name_or_path"] == str(source)
    assert torch.equal(logits(peft.PeftModel.from_pretrained(base_of(source), tmp_path / "adapter")), expected)
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")), expected)
    export(run, tmp_path / "half", "huggingface", dtype="bfloat16")
    halves = load_file(tmp_path / "half" / "adapter_model.safetensors")
    assert {each.dtype.name for each in halves.values()} == {"bfloat16"}
    command("export", run, "--format", "huggingface", "--merged", "--to", tmp_path / "merged")
    merged = base_of(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)
    for name in ("config.json", "tokenizer.json"):
        assert json.loads((tmp_path / "merged" / name).read_text()) == json.loads((source / name).read_text())


@pytest.mark.process
def test_a_run_of_adapters_is_sampled_evaluated_and_gone_on_from(source: Path, run: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    held_out = evaluate(text_model(run, ""), None, "")
    assert held_out.loss == pytest.approx(summary["eval_loss_final"], abs=1e-5)
    export(run, tmp_path / "merged", "huggingface", is_merged=True)
    texts = [
        command("sample", where, "--prompt", "7 times", "--tokens", 40, "--temperature", 0)[0]
        for where in (run, tmp_path / "merged")
    ]
    assert texts[0] == texts[1]
    data = tomllib.loads((run / "config.toml").read_text())["task"]["data"]
    more = ("--set=task.lora_rank=2", "--set=task.context=16", "--set=task.batch=4", "--learners", 1)
    command(
        "train", "--model", source, "--data", *data, "--run-dir", tmp_path / "more", "--quiet", "--tokens", 64 * 4,
        "--from", run, *more,
    )  # fmt: skip
    later = json.loads((tmp_path / "more" / "summary.json").read_text())
    assert later["eval_loss_initial"] == pytest.approx(summary["eval_loss_final"], abs=1e-5)
    command("train", "--resume", tmp_path / "more", "--tokens", 64 * 8, "--quiet")
    resumed = json.loads((tmp_path / "more" / "summary.json").read_text())
    assert resumed["tokens_total"] >= 64 * 8


@pytest.mark.process
def test_a_run_of_adapters_needs_the_folder_that_it_adapts(source: Path, run: Path, tmp_path: Path) -> None:
    """But for its adapters, which leave without it."""
    held = tmp_path / "held"
    shutil.copytree(source, held)
    try:
        shard = next(source.glob("*.safetensors"))
        tensors = load_file(shard)
        changed = {name: each + np.float32(0.5) for name, each in tensors.items()}
        save_file(changed, shard, {"format": "pt"})
        with pytest.raises(ConfigError, match="digest"):
            text_model(run, "")
        shutil.rmtree(source)
        with pytest.raises(ConfigError, match="which the run's adapters adapt"):
            text_model(run, "")
        with pytest.raises(ConfigError, match="which the run's adapters adapt"):
            export(run, tmp_path / "merged", "huggingface", is_merged=True)
        assert not list(tmp_path.glob("*merged*"))
        export(run, tmp_path / "adapter", "huggingface")
    finally:
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(held, source)
    expected = logits(isthmus.load(run))
    assert torch.equal(logits(peft.PeftModel.from_pretrained(base_of(source), tmp_path / "adapter")), expected)
