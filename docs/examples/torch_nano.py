"""A small Llama in PyTorch, trained on bytes: the model as a script has it, and a task below it.

    isthmus train --task torch_nano.py:task --tokens 1000000

Names and shapes are those of the model that isthmus ships, so the two can be compared.
"""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from isthmus.torch import Task

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, SEQUENCES = 2, 64, 4, 172, 64, 8
TEXT = np.frombuffer(
    b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))), np.uint8
)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(WIDTH))
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Parameter(torch.randn(WIDTH, WIDTH) * WIDTH**-0.5))
        self.output = nn.Parameter(torch.randn(WIDTH, WIDTH) * (2 * LAYERS * WIDTH) ** -0.5)

    def forward(self, x):
        normed = norm(self.norm, x)
        heads = ((normed @ each).unflatten(-1, (HEADS, -1)) for each in (self.query, self.key, self.value))
        query, key, value = (each.transpose(-3, -2) for each in heads)
        mixed = F.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        return mixed.transpose(-3, -2).flatten(-2) @ self.output


class Feedforward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.gate = nn.Parameter(torch.randn(WIDTH, HIDDEN) * WIDTH**-0.5)
        self.up = nn.Parameter(torch.randn(WIDTH, HIDDEN) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(HIDDEN, WIDTH) * (2 * LAYERS * HIDDEN) ** -0.5)

    def forward(self, x):
        normed = norm(self.norm, x)
        return (F.silu(normed @ self.gate) * (normed @ self.up)) @ self.down


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feedforward = Attention(), Feedforward()

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.feedforward(x)


class Nano(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(256, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Parameter(torch.randn(WIDTH, 256) * 0.02)

    def forward(self, tokens):
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        return norm(self.norm, x) @ self.head


def norm(weight, x):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def rotate(x):
    length, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    cos, sin = (each.to(x) for each in (angles.cos(), angles.sin()))
    first, second = x.split(half, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def cross_entropy(model, batch):
    tokens = batch["tokens"].long()
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def draw(rng, split):
    sides = {"train": (0, len(TEXT) * 9 // 10), "evaluation": (len(TEXT) * 9 // 10, len(TEXT) - CONTEXT - 1)}
    starts = rng.integers(*sides[split], SEQUENCES)
    return {"tokens": np.stack([TEXT[start : start + CONTEXT + 1] for start in starts])}


# With the import, these lines make a task of the script.
task = Task(
    Nano,
    cross_entropy,
    lambda at: draw(at.rng(), at.split),
    tokens_per_batch=SEQUENCES * CONTEXT,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95)),
    rate=lambda progress: min(1.0, progress / 0.05) * (1.0 - 0.9 * progress),
    merge={"embedding": "average", "head": "average", "**": "rda"},
)
