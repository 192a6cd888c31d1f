"""Adapters of low rank for the model of torch_nano.py, whose own weights are frozen: only adapters are sent and kept.

    isthmus train --task torch_lora.py:task --tokens 1000000

A parameter that needs no gradient is frozen, so that a model of peft needs nothing more.
"""

import torch
import torch_nano
from torch import nn
from torch.nn.utils import parametrize

from isthmus.torch import Task

RANK, TARGETS, WIDTH = 4, ("query", "value"), torch_nano.WIDTH


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Parameter(torch.randn(WIDTH, RANK) * WIDTH**-0.5)
        self.up = nn.Parameter(torch.zeros(RANK, WIDTH))

    def forward(self, weight):
        return weight + self.down @ self.up


def build():
    model = torch_nano.Nano().requires_grad_(False)  # Weights of a file are loaded here.
    for layer in model.layers:
        for name in TARGETS:
            parametrize.register_parametrization(layer.attention, name, Adapter())
    return model


def optimizer(model):
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)


task = Task(
    build,
    torch_nano.cross_entropy,
    torch_nano.task.batch,
    tokens_per_batch=torch_nano.task.tokens_per_batch,
    optimizer=optimizer,
)
