"""The Trainers of TRL as learners: a tiny model folder, two islands, and a cosine that ends when the run does."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.programs.engine.run.process_run import Run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.skipif(find_spec("trl") is None, reason="it needs TRL"),
]

SCRIPT = """
import os
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import KIND, KINDConfig as Config
import isthmus.torch

letters = {each: number for number, each in enumerate("abcdefghijklmnopqrstuvwxyz ")}
words = Tokenizer(models.WordLevel({**letters, "<pad>": 27, "<eos>": 28, "<unk>": 29}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
ids = {"pad_token_id": 27, "eos_token_id": 28, "bos_token_id": 28}
folder = f"tiny-{os.getpid()}"
LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=64, **sizes, **ids)).save_pretrained(folder)
tokenizer.save_pretrained(folder)

lines = ["the cat sat on the mat", "a dog ran over the hill", "we train models far apart", "bytes are cheap"]
said = [(lines[place % 4], lines[(place + 1) % 4]) for place in range(200)]
pairs = [{"prompt": one[:8], "chosen": one[8:], "rejected": other[8:]} for one, other in said]
rates = []

class Watch(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        rates.append(more["optimizer"].param_groups[0]["lr"] / args.learning_rate)

trainer = KINDTrainer(
    model=LlamaForCausalLM.from_pretrained(folder),
    args=Config(
        output_dir="out", max_length=32, max_steps=5000, per_device_train_batch_size=4, learning_rate=1e-3,
        lr_scheduler_type="cosine", use_cpu=True, bf16=False, report_to="none", save_strategy="no", logging_steps=5,
    ),
    train_dataset=Dataset.from_list(ROWS),
    processing_class=tokenizer,
    callbacks=[isthmus.torch.Callback(), Watch()],
)
trainer.train()
losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
print("END", rates[-1], max(rates), trainer.optimizer.param_groups[0]["lr"], losses[0], losses[-1], flush=True)
"""
KINDS = {
    "SFT": ("[{'text': one} for one, _ in said]", 50 * 2 * 4 * 20),
    "DPO": ("pairs", 50 * 2 * 8),
}
"""The rows, and tokens or rows of pairs of some 50 steps of each island."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_of_trl_trains_and_its_schedule_ends_with_the_run(kind: str, tmp_path: Path) -> None:
    rows, tokens = KINDS[kind]
    text = SCRIPT.replace("from trl import KIND, KINDConfig", f"from trl import {kind}Trainer, {kind}Config")
    (tmp_path / "train.py").write_text(text.replace("KINDTrainer", f"{kind}Trainer").replace("ROWS", rows))
    run = Run(tmp_path, "--loop", "train.py", tokens=tokens)
    try:
        run.finish("done")
        assert run.merges() > 0
        for slot in (0, 1):
            log = (run.folder / "logs" / f"learner-{slot}.log").read_text()
            last, highest, after, first_loss, last_loss = map(float, re.findall(r"END (.*)", log)[0].split())
            assert last <= 0.01 < 0.9 < highest  # Of the last step that was made.
            assert after == 0.0
            assert last_loss < first_loss
    finally:
        run.close()
