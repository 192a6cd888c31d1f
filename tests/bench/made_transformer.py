"""A transformer of 12 narrow layers in PyTorch, whose steps have as many operations as those of a wide one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from isthmus import At
from isthmus.torch import Task

VOCABULARY, WIDTH, LAYERS, HEADS, CONTEXT = 64, 32, 12, 4, 16


class Transformer(nn.Module):
    """Made of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.mask: torch.Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position.weight
        return F.linear(self.layers(x, mask=self.mask, is_causal=True), self.embedding.weight)


def loss(model: Any, batch: Any) -> Any:
    """Cross-entropy of the next token."""
    tokens = batch["tokens"]
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def draw(at: At) -> Any:
    """One sequence, of random tokens."""
    return {"tokens": at.rng().integers(0, VOCABULARY, (1, CONTEXT + 1)).astype(np.int64)}


TASK = Task(
    Transformer,
    loss,
    draw,
    tokens_per_batch=CONTEXT,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True),
    evaluation=1,
)
