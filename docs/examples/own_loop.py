"""A training loop in PyTorch that is a learner.

    isthmus train --loop own_loop.py --learners 2 --tokens 400000 -- --rate 0.01

The lines that isthmus needs are those with its name in them; without them it is the script of one process.
"""

import argparse

import torch

import isthmus

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.003)
options = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)


def batches(seed):
    """Batches without end: sums of 32 numbers."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(64, 32, generator=draw)
        yield x, x.sum(1, keepdim=True)


with isthmus.island(model, optimizer) as island:
    for x, y in island(batches(island.seed + island.position)):
        for group in optimizer.param_groups:
            group["lr"] = options.rate * (1.0 - 0.9 * island.progress)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        island.step(loss, tokens=len(x))

if island.slot == 0:
    torch.save(model.state_dict(), "own_loop.pt")
