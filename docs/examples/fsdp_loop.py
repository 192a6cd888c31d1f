"""A training loop in PyTorch with FSDP2, whose ranks are one learner.

    isthmus train --loop fsdp_loop.py --ranks 2 --learners 2 --tokens 400000

The lines that isthmus needs are those with its name in them; without them it is a script for
`torchrun --nproc-per-node 2 fsdp_loop.py`.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import isthmus

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.003)
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(device)
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
first, seed = 0, 0

with isthmus.island(model, optimizer) as island:
    first, seed = island.position, island.seed
    draw = torch.Generator().manual_seed((seed + first * ranks + rank) % 2**63)
    for step in island(range(first, options.steps)):
        x = torch.randn(64, 32, generator=draw).to(device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        island.step(loss, tokens=len(x))

state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if rank == 0 and island.slot == 0:
    torch.save(state, "fsdp_loop.pt")
dist.destroy_process_group()
