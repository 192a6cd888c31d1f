"""A loop with accelerate that is a learner: accumulation, clipping, mixed precision, a schedule, and its own states.

    isthmus train --loop accelerate_loop.py --learners 2 --tokens 200000 -- --precision bf16

The lines that isthmus needs are those with its name, or the island's, in them.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_cosine_schedule_with_warmup

import isthmus
import isthmus.torch

parser = argparse.ArgumentParser()
parser.add_argument("--precision", default="no")
parser.add_argument("--epochs", type=int, default=1000)
parser.add_argument("--save-every", type=int, default=200)
options = parser.parse_args()

accelerator = Accelerator(cpu=True, mixed_precision=options.precision, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(4_032, 32)
data = TensorDataset(x, x.sum(1, keepdim=True))
order = torch.Generator()
loader = DataLoader(data, batch_size=64, shuffle=True, generator=order)
steps = options.epochs * -(-len(loader) // 2)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=20, num_training_steps=steps)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

scheduler = isthmus.torch.LedSchedule(scheduler)
with isthmus.island(model, optimizer) as island:
    island.keep(scheduler)
    accelerator.register_for_checkpointing(scheduler)
    order.manual_seed(island.seed + island.position)  # Each life of each island draws its own order.
    losses, samples, made = [], 0, 0
    for x, y in island(loader, epochs=options.epochs):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step(island.progress)
            optimizer.zero_grad()
        losses.append(loss.detach())
        samples += len(x)
        if accelerator.sync_gradients:
            island.step(torch.stack(losses).mean(), tokens=samples)
            losses, samples, made = [], 0, made + 1
            if island.slot == 0 and made % options.save_every == 0:
                accelerator.save_state("accelerate_state")

loss = accelerator.gather(torch.nn.functional.mse_loss(model(x), y).detach()).mean()
accelerator.print(f"slot {island.slot}: {loss:.4f}, at a rate of {optimizer.param_groups[0]['lr']:.1e}")
