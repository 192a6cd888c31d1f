"""Small tasks in PyTorch, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from isthmus.ops.data.batches import At
from isthmus.torch import Task

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "torch_nano.py"


class Net(nn.Module):
    """Two layers with batch normalisation between them; `twice` and `first` are one weight."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.twice.weight = self.first.weight
        self.norm, self.drop, self.last = nn.BatchNorm1d(4), nn.Dropout(dropout), nn.Linear(4, 3)
        self.register_buffer("fixed", torch.arange(3.0), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(torch.tanh(self.norm(self.twice(torch.tanh(self.first(x))))))) + 0.01 * self.fixed


SHAPES: dict[str, tuple[int, ...]] = {
    "first/weight": (4, 4),
    "first/bias": (4,),
    "norm/weight": (4,),
    "norm/bias": (4,),
    "last/weight": (3, 4),
    "last/bias": (3,),
    "norm/running_mean": (4,),
    "norm/running_var": (4,),
}


def squares(module: Any, batch: Any) -> Any:
    return ((module(batch["x"]) - batch["y"]) ** 2).mean()


def batch(at: At) -> Any:
    x = at.rng().normal(size=(8, 4)).astype(np.float32)
    return {"x": x, "y": np.stack([x.sum(1)] * 3, 1)}


def adam(module: Any) -> Any:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def task_of(
    build: Callable[[], Any] = Net, loss: Any = squares, optimizer: Callable[[Any], Any] = adam, **more: Any
) -> Task:
    return Task(build, loss, batch, **{"tokens_per_batch": 8, "optimizer": optimizer, "evaluation": 2, **more})
