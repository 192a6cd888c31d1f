"""A training script of nanoGPT's shape as the learner of a run; six of its lines name isthmus or the island.

    isthmus train --loop nanogpt_loop.py --learners 2 --tokens 2000000 -- --max-iters 2000

It accumulates gradients, uses autocast and a GradScaler, clips, follows a rate by iteration, evaluates by itself and
writes its own checkpoints. Under torchrun, without those six lines, it trains by DDP.
"""

import argparse
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import isthmus

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path(__file__).parent, help="a folder, of which every .py is read")
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--max-iters", type=int, default=2000)
parser.add_argument("--eval-interval", type=int, default=250)
parser.add_argument("--eval-iters", type=int, default=10)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
parser.add_argument("--resume", action="store_true", help="from the checkpoint in --out")
options = parser.parse_args()
context, width, layers, heads, vocabulary = 64, 64, 2, 4, 256
warmup, rate_min = options.max_iters // 20, options.rate / 10

# -- the process -------------------------------------------------------------------------------------------------------

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    torch.distributed.init_process_group()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    master_process, seed_offset = rank == 0, rank
    options.accumulation //= world
else:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    master_process, seed_offset, world = True, 0, 1
device_type = "cuda" if "cuda" in device else "cpu"
autocast = nullcontext()
if options.dtype != "float32":
    autocast = torch.amp.autocast(device_type, getattr(torch, options.dtype))
tokens_per_iter = options.accumulation * world * options.batch * context

# -- the data ----------------------------------------------------------------------------------------------------------

text = b"".join(path.read_bytes() for path in sorted(options.data.glob("*.py")))
whole = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
cut = int(0.9 * len(whole))
parts = {"train": whole[:cut], "val": whole[cut:]}


def get_batch(split):
    """Bytes, and those that follow each of them."""
    data = parts[split]
    begins = torch.randint(len(data) - context, (options.batch,))
    x = torch.stack([data[begin : begin + context] for begin in begins])
    y = torch.stack([data[begin + 1 : begin + 1 + context] for begin in begins])
    return x.to(device), y.to(device)


# -- the model ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention, and a network of two layers."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        count, length, _ = x.shape
        split = self.attention(self.norm_1(x)).view(count, length, 3, heads, width // heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(count, length, width)
        x = x + self.projection(y)
        return x + self.network(self.norm_2(x))


class GPT(nn.Module):
    """A small one, whose embedding is tied."""

    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x, y):
        h = self.embedding(x) + self.position.weight[: x.shape[1]]
        return F.cross_entropy(self.head(self.norm(self.blocks(h))).flatten(0, 1), y.flatten())


torch.manual_seed(1337)
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1)
scaler = torch.amp.GradScaler(device_type, enabled=options.dtype == "float16")
iter_num, best_loss = 0, math.inf
if options.resume:
    checkpoint = torch.load(options.out / "ckpt.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_loss = checkpoint["iter_num"], checkpoint["best_loss"]
raw_model = model
if ddp:
    model = nn.parallel.DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss():
    """The mean loss of some batches of each part."""
    model.eval()
    losses = {}
    for split in parts:
        drawn = [model(*get_batch(split)).item() for _ in range(options.eval_iters)]
        losses[split] = sum(drawn) / len(drawn)
    model.train()
    return losses


def get_rate(iteration):
    """Warmup, then a cosine."""
    if iteration < warmup:
        return options.rate * (iteration + 1) / (warmup + 1)
    ratio = min(1.0, (iteration - warmup) / (options.max_iters - warmup))
    return rate_min + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (options.rate - rate_min)


# -- the loop ----------------------------------------------------------------------------------------------------------

with isthmus.island(raw_model, optimizer) as island:
    island.keep(scaler)
    iter_num, seed_offset, master_process = island.position, island.seed, island.slot == 0
    torch.manual_seed(1337 + iter_num + seed_offset)
    x, y = get_batch("train")
    begun = time.monotonic()
    while not island.is_over:
        for group in optimizer.param_groups:
            group["lr"] = get_rate(iter_num)
        if iter_num and iter_num % options.eval_interval == 0 and master_process:
            losses = estimate_loss()
            print(f"step {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}", flush=True)
            if losses["val"] < best_loss:
                best_loss = losses["val"]
                options.out.mkdir(exist_ok=True)
                state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "iter_num": iter_num, "best_loss": best_loss}, options.out / "ckpt.pt")
        for micro_step in range(options.accumulation):
            if ddp:
                model.require_backward_grad_sync = micro_step == options.accumulation - 1
            with autocast:
                loss = model(x, y) / options.accumulation
            x, y = get_batch("train")
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        island.step(loss * options.accumulation, tokens=tokens_per_iter)
        if iter_num % 100 == 0 and master_process:
            print(f"iter {iter_num}: loss {loss.item() * options.accumulation:.4f}, {time.monotonic() - begun:.1f} s")
        iter_num += 1
        if iter_num > options.max_iters:
            break

if ddp:
    torch.distributed.destroy_process_group()
