"""Runs of a user's modules as folders: adapters of peft, alone and merged, and models of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import isthmus
from isthmus.programs.trained.export import export
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.test_model_folders import folder_of
from tests.torch_tasks.test_model_folders import isthmus as command
from tests.torch_tasks.torch_models import EXAMPLE

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]

TASK = """
import numpy as np, peft, torch
from transformers import AutoModelForCausalLM
from isthmus.torch import Task

def plain(): return AutoModelForCausalLM.from_pretrained({folder!r}, dtype=torch.float32)
def adapted(**more):
    return peft.get_peft_model(plain(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **more))
def beside():
    model = adapted()
    model.base_model.model.model.norm.weight.requires_grad_(True)
    return model
def saved(): return adapted(modules_to_save=["lm_head"])
def loss(model, batch): return model(input_ids=batch["ids"], labels=batch["ids"]).loss
def batch(at): return {{"ids": at.rng().integers(0, 8, (2, 12))}}
def optimizer(model): return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
def made(build): return Task(build, loss, batch, tokens_per_batch=24, evaluation=2, optimizer=optimizer)
plain_task, lora, beside_task, saved_task = made(plain), made(adapted), made(beside), made(saved)
"""
TOKENS = torch.arange(20).reshape(2, 10)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("qwen3", tmp_path_factory.mktemp("source") / "it", "float32")


def run_of(name: str, source: Path, tmp_path: Path) -> Path:
    """A short run of one of the tasks."""
    file = tmp_path / f"of_{name}.py"
    file.write_text(TASK.format(folder=str(source)))
    program = isthmus.decoupled_diloco(interval=2, fragments=1, push="float32")
    where = {"run_dir": tmp_path / "run", "transport": "inproc", "quiet": True}
    isthmus.train(program, f"{file}:{name}", tokens=24 * 8, learners=1, **where)  # type: ignore[arg-type]
    return tmp_path / "run"


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(TOKENS).logits.float()


@pytest.mark.process
@pytest.mark.parametrize("name", ["lora", "saved_task"])
def test_an_adapter_is_written_as_peft_does_and_merged(name: str, source: Path, tmp_path: Path) -> None:
    run = run_of(name, source, tmp_path)
    expected = logits(isthmus.load(run))
    base = transformers.AutoModelForCausalLM.from_pretrained(source)
    assert not torch.allclose(expected, logits(base))
    export(run, tmp_path / "adapter", "huggingface")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        each.name for each in (tmp_path / "adapter").iterdir()
    }
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2
    assert torch.equal(logits(peft.PeftModel.from_pretrained(base, tmp_path / "adapter")), expected)
    command("export", run, "--format", "huggingface", "--merged", "--to", tmp_path / "merged", "--dtype", "float32")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, rtol=1e-5, atol=1e-5)
    assert (tmp_path / "merged" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    export(run, tmp_path / "half", "huggingface", dtype="bfloat16", is_merged=True)
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto").dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="--merged"):
        export(run, tmp_path / "other", "safetensors", is_merged=True)


@pytest.mark.slow
def test_a_model_of_transformers_is_written_by_itself(source: Path, tmp_path: Path) -> None:
    run = run_of("plain_task", source, tmp_path)
    export(run, tmp_path / "out", "huggingface")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(again), logits(isthmus.load(run)))
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    with pytest.raises(ConfigError, match="adapter"):
        export(run, tmp_path / "no", "huggingface", is_merged=True)
    assert not list(tmp_path.glob("*no*"))


@pytest.mark.slow
def test_what_is_trained_beside_an_adapter_is_not_lost(source: Path, tmp_path: Path) -> None:
    run = run_of("beside_task", source, tmp_path)
    with pytest.raises(ConfigError, match=r"norm/weight.*\n.*--merged"):
        export(run, tmp_path / "adapter", "huggingface")
    assert not list(tmp_path.glob("*adapter*"))
    export(run, tmp_path / "merged", "huggingface", is_merged=True)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(isthmus.load(run)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_another_module_has_no_such_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = f"{EXAMPLE}:task"
    isthmus.train("decoupled-diloco", task, tokens=4096, learners=1, run_dir=tmp_path / "run", transport="inproc")
    with pytest.raises(ConfigError, match="of transformers, or an adapter of peft"):
        export(tmp_path / "run", tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()
