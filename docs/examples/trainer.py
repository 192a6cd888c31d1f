"""The Trainer of transformers as a learner; the two lines that isthmus needs have its name in them.

isthmus train --loop trainer.py --learners 2 --tokens 200000
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import isthmus.torch

CONTEXT = 64
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=CONTEXT, **sizes))

text = torch.tensor(list(Path(__file__).read_bytes()))
windows = text.unfold(0, CONTEXT, 8)
data = [{"input_ids": window, "labels": window} for window in windows]

arguments = TrainingArguments(
    output_dir="trainer",
    max_steps=100_000,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=data,
    callbacks=[isthmus.torch.Callback()],
)
trainer.train()
