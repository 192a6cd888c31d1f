"""Tasks in PyTorch for benches: the model of docs/examples/torch_nano.py on the batches of the shipped task, and one of
124 million parameters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from isthmus import At
from isthmus.programs.engine.request import reference
from isthmus.programs.language_model import task as shipped_task
from isthmus.torch import Task

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "torch_nano.py"
VOCABULARY, WIDTH, LAYERS, HEADS, CONTEXT = 50304, 768, 12, 12, 128


def nano(*, batch: int) -> Task:
    """The example, with so many sequences a batch."""
    shipped = shipped_task(batch=batch)
    example: Task = reference.load(f"{EXAMPLE}:task", "Loading the example")
    return replace(example, batch=shipped.batch, tokens_per_batch=shipped.tokens_per_batch)


class GPT(nn.Module):
    """GPT-2 of 124 million parameters, made of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.embedding(tokens) + self.position.weight[:length]
        return F.linear(self.layers(x, mask=mask, is_causal=True), self.embedding.weight)


def loss(model: Any, batch: Any) -> Any:
    """Cross-entropy of the next token."""
    tokens = batch["tokens"]
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def draw(at: At, batch: int = 1, context: int = CONTEXT) -> Any:
    """Sequences of random tokens."""
    return {"tokens": at.rng().integers(0, VOCABULARY, (batch, context + 1)).astype(np.int64)}


def gpt_124m(batch: int, context: int) -> Task:
    """`GPT_124M` on other batches."""
    draws = partial(draw, batch=batch, context=context)
    return replace(GPT_124M, batch=draws, tokens_per_batch=batch * context)


GPT_124M = Task(
    GPT,
    loss,
    draw,
    tokens_per_batch=CONTEXT,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=6e-4),
    merge={"embedding/*": "average", "**": "rda"},
    evaluation=1,
)
