"""What the page on tuning tells its reader to type, with a small model in place of the one that a package has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers

from tests.patience import PATIENCE
from tests.programs.page_blocks import blocks_of
from tests.torch_tasks.test_module_folders import HALVES

pytest.importorskip("peft")
pytestmark = [pytest.mark.torch]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "tune-a-model.md"
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def small_folder(to: Path) -> None:
    """A Llama of 22 thousand parameters whose tokens are characters, with a chat template."""
    letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={chr(32 + i): i for i in range(95)}, merges=[]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="~", pad_token="~")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(to)
    sizes = {**HALVES, "intermediate_size": 48, "max_position_embeddings": 256, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(vocab_size=95, bos_token_id=94, eos_token_id=94, pad_token_id=94, **sizes)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(to)


@pytest.mark.process
def test_every_command_that_needs_the_folder_does_what_it_should(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    small_folder(tmp_path / "smollm2")
    blocks = [block for block in blocks_of(PAGE.read_text()) if Path(__file__).name in block.why_not]
    commands = [command for block in blocks if block.language == "shell" for command in block.commands]
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert {command.split()[1] for command in commands if "bin/isthmus" in command} >= {"train", "export", "evaluate"}
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (8, 16)
    assert (tmp_path / "whole" / "model.safetensors").is_file()
