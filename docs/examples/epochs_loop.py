"""A PyTorch loop over epochs, with workers, and an evaluation and a checkpoint at the end of each: it outlives kills.

    isthmus train --loop epochs_loop.py --learners 2 --tokens 1000000 -- --epochs 3

The lines that isthmus needs are those with its name in them. The run ends when its tokens are trained, or when all of
its scripts have made their epochs.
"""

import argparse
import itertools

import torch
from torch.utils.data import DataLoader, TensorDataset

import isthmus

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=8_000)
parser.add_argument("--workers", type=int, default=2)
options = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2_000)


def samples(count, seed):
    x = torch.randn(count, 32, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Place:
    """The epoch, and the batch in it, where this script is: kept, it is where the next life of the island goes on."""

    epoch = batch = 0

    def state_dict(self):
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state):
        self.epoch, self.batch = state["epoch"], state["batch"]


def loader(data, epoch):
    """The batches of an epoch, in an order that follows from its number."""
    order = torch.Generator().manual_seed(epoch)
    return DataLoader(data, batch_size=32, shuffle=True, generator=order, num_workers=options.workers)


@torch.no_grad()
def evaluate(held_out):
    model.eval()
    loss = sum(torch.nn.functional.mse_loss(model(x), y).item() for x, y in loader(held_out, 0))
    model.train()
    return loss


place, held_out = Place(), samples(2_000, seed=1)
with isthmus.island(model, optimizer) as island:
    island.keep(scheduler, place)
    print(f"slot {island.slot} begins at epoch {place.epoch}, batch {place.batch}", flush=True)
    data = samples(options.samples, seed=2 + island.slot)  # Each island has its own.
    while place.epoch < options.epochs and not island.is_over:
        for x, y in island(itertools.islice(loader(data, place.epoch), place.batch, None)):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            place.batch += 1
            island.step(loss, tokens=len(x))
        if not island.is_over:
            print(f"slot {island.slot}, epoch {place.epoch}: {evaluate(held_out):.3f}", flush=True)
            torch.save(model.state_dict(), f"epoch-{place.epoch}-slot-{island.slot}.pt")
            place.epoch, place.batch = place.epoch + 1, 0

print(f"slot {island.slot} at its end: {evaluate(held_out):.3f}", flush=True)
torch.save(model.state_dict(), f"epochs_loop-{island.slot}.pt")
