"""The training loop of `own_loop_steps.py` as a replica of torchft's DiLoCo.

    python -m tests.bench.peers.torchft_loop FILE REPLICA BATCH LIGHTHOUSE SECONDS

It writes the instant at which each step ended into FILE. Four fragments, a layer each, every 24 steps, as the island of
the other loop has; a synchronization may take two steps. SECONDS bound every wait for another replica.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

from tests.bench.own_loop_steps import CONTEXT, INSTANTS, LAYERS, VOCABULARY, Model

INTERVAL, DELAY = 24, 2


def main(path: Path, replica: str, batch: int, lighthouse: str, seconds: float) -> None:
    """Train."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ends_of = {0: [model.embedding, model.position], LAYERS - 1: [model.layers.norm]}
    fragments = [
        nn.ModuleList([layer, *ends_of.get(number, [])])  # type: ignore[list-item]
        for number, layer in enumerate(model.layers.layers)
    ]
    outers = [torch.optim.SGD(each.parameters(), lr=0.7, momentum=0.9, nesterov=True) for each in fragments]
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    bound = timedelta(seconds=seconds)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=bound),
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]),
            optimizer.load_state_dict(state["optimizer"]),
            [outer.load_state_dict(each) for outer, each in zip(outers, state["outers"], strict=True)],
        ),
        state_dict=lambda: {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "outers": [each.state_dict() for each in outers],
        },
        min_replica_size=1,
        use_async_quorum=False,
        timeout=bound,
        quorum_timeout=bound * 10,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
        replica_id=replica,
    )
    tokens = torch.randint(VOCABULARY, (64, batch, CONTEXT + 1))
    file, ends = path.open("a"), list[float]()
    with DiLoCo(
        manager, fragments, optimizer, outers, sync_every=INTERVAL, pin_memory=False, fragment_sync_delay=DELAY
    ):
        while True:
            drawn = tokens[torch.randint(64, ())]
            loss = F.cross_entropy(model(drawn[:, :-1]).flatten(0, 1), drawn[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.monotonic())
            if len(ends) == INSTANTS:
                print(*ends, sep="\n", file=file, flush=True)
                ends.clear()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
