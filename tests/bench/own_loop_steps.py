"""A training loop in PyTorch for benches, as its user has it: bare, or an island of a run.

    own_loop_steps.py FILE BATCH [bare]

It writes the instant at which each step ended into FILE, of an island with its slot behind the name, of a process of
torchrun with its rank, and trains without an end. At SIGUSR2 the loop raises.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import isthmus

VOCABULARY, WIDTH, LAYERS, HEADS, CONTEXT = 256, 128, 4, 4, 64
INSTANTS = 8
"""Written at once."""


class Model(nn.Module):
    """A small transformer of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.mask: torch.Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embedding(tokens) + self.position.weight
        return F.linear(self.layers(x, mask=self.mask, is_causal=True), self.embedding.weight)


def fail(*_: object) -> None:
    """What a user's loop raises."""
    raise RuntimeError("raised by a signal")


def main(path: Path, batch: int, *, is_bare: bool) -> None:
    """Train."""
    signal.signal(signal.SIGUSR2, fail)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (64, batch, CONTEXT + 1))
    with nullcontext() if is_bare else isthmus.island(model, optimizer) as island:
        file = (path if is_bare else path.with_name(f"{path.name}.{island.slot}")).open("a")
        ends = list[float]()
        while is_bare or not island.is_over:
            drawn = tokens[torch.randint(64, ())]
            loss = F.cross_entropy(model(drawn[:, :-1]).flatten(0, 1), drawn[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if not is_bare:
                island.step(loss, tokens=batch * CONTEXT)
            ends.append(time.monotonic())
            if len(ends) == INSTANTS:
                print(*ends, sep="\n", file=file, flush=True)
                ends.clear()


if __name__ == "__main__":
    named = Path(sys.argv[1])
    if (rank := os.environ.get("LOCAL_RANK")) is not None:
        named = named.with_name(f"{named.name}.{rank}")
    main(named, int(sys.argv[2]), is_bare="bare" in sys.argv[3:])
