"""Islands of several ranks that torchrun starts, and that join a home by themselves: in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.programs.loop_script import INVITE
from isthmus.runtime.supervision.incidents import Joined
from tests.patience import PATIENCE
from tests.programs.engine.results.event_lines import incidents_in
from tests.torch_tasks.test_joining_loops import Home
from tests.torch_tasks.test_own_loop_examples import EXAMPLES

pytestmark = [pytest.mark.torch, pytest.mark.process]

SCRIPT = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import isthmus

kind, home = sys.argv[1], json.loads(sys.argv[2])
rank = 0
if kind != "sole":
    dist.init_process_group("gloo")
    rank = dist.get_rank()

def evaluate(module):
    with torch.no_grad():
        return {"loss": ((module(torch.ones(64, 32)) - 32.0) ** 2).mean(), "rank": rank}

torch.manual_seed(0)
wide = 9 if kind == "other" else 7
model = wrapped = torch.nn.Sequential(torch.nn.Linear(32, wide), torch.nn.BatchNorm1d(wide), torch.nn.Linear(wide, 1))
if kind == "fsdp":
    fully_shard(model[0])
    fully_shard(model)
if kind in ("ddp", "other"):
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
with isthmus.island(wrapped, optimizer, **home, evaluate=evaluate if kind == "fsdp" else None) as island:
    begun = island.position
    island.keep(scheduler)
    print(f"rank {rank}, process {os.getpid()}, begins in slot {island.slot} at {begun} with {len(optimizer.state)} "
          f"moments, rate {scheduler.last_epoch}, seed {island.seed}\\n", end="", flush=True)
    draw = torch.Generator().manual_seed((island.seed + begun + rank) % 2**63)
    for x in island(iter(lambda: torch.randn(64, 32, generator=draw), None)):
        time.sleep(0.004)
        loss = ((wrapped(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        island.step(loss, tokens=64)
    was_over = island.is_over
values = [leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf for leaf in model.state_dict().values()]
digest = hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in values if leaf.is_floating_point())).hexdigest()
print(f"END {json.dumps([was_over, digest, 'jax' in sys.modules, rank, island.slot])}\\n", end="", flush=True)
if kind != "sole":
    dist.destroy_process_group()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
BEGINS = re.compile(
    r"rank (\d), process (\d+), begins in slot (\d+) at (\d+) with (\d+) moments, rate (\d+), seed (\d+)"
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path, SCRIPT)
    yield made
    made.close()


def begins(home: Home, name: str, rank: int) -> list[list[int]]:
    """By life, the process, slot, position, moments, rate and seed that a rank has said."""
    found = BEGINS.findall(home.text_of(name).read_text())
    return [list(map(int, each[1:])) for each in found if int(each[0]) == rank]


def ends(home: Home, name: str) -> list[list[Any]]:
    """What the ranks of an island have said behind their `with`; they have ended."""
    assert home.loops[name].wait(PATIENCE) == 0
    lines = home.text_of(name).read_text().splitlines()
    return [json.loads(line.removeprefix("END ")) for line in lines if line.startswith("END ")]


def test_ranks_of_torchrun_bring_the_model_join_die_and_come_back_beside_one_process(home: Home) -> None:
    daemon = home.open()
    home.loop("fsdp", "fsdp", launcher=TORCHRUN)
    home.wait_for(lambda: begins(home, "fsdp", 0) and begins(home, "fsdp", 1))
    assert begins(home, "fsdp", 0)[0][1:] == begins(home, "fsdp", 1)[0][1:]  # Seed and slot come before the run.
    home.wait_for_vote(0)
    home.loop("sole", "sole")
    home.wait_for_vote(1)
    home.loop("ddp", "ddp", launcher=TORCHRUN)
    home.wait_for_vote(2)
    state = home.folder / "state" / "isthmus" / "runs" / "ddp"
    home.wait_for(lambda: list(state.glob("*/local/learner-2")))
    os.kill(begins(home, "ddp", 1)[0][0], signal.SIGKILL)
    assert home.loops["ddp"].wait(PATIENCE) == 1
    home.loop("ddp", "ddp", launcher=TORCHRUN)  # Its name is free again once the daemon before it has left.
    home.wait_for(lambda: len(begins(home, "ddp", 0)) == len(begins(home, "ddp", 1)) == 2)
    _, slot, position, moments, rate, _ = begins(home, "ddp", 1)[1]
    assert begins(home, "ddp", 0)[1][1:] == begins(home, "ddp", 1)[1][1:]
    assert (slot, position > 0, moments, rate > 0) == (2, True, 6, True)
    home.wait_for_vote(2)
    home.loop("other", "other", launcher=TORCHRUN)
    assert home.loops["other"].wait(PATIENCE) == 1
    assert "Joining with this model: expected the run's leaf" in home.text_of("other").read_text()
    home.wait_for_vote(0)
    assert home.call("stop", "run").returncode == 0
    found = [end for name in ("fsdp", "sole", "ddp") for end in ends(home, name)]
    assert sorted((rank, slot) for *_, rank, slot in found) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    assert len({digest for _, digest, *_ in found}) == 1
    assert {(was_over, has_jax) for was_over, _, has_jax, *_ in found} == {(True, False)}
    assert daemon.wait(PATIENCE) == 0
    summary = home.summary("run")
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]
    assert 0 < summary["eval_loss_final"] < summary["eval_loss_initial"]
    lines = [json.loads(line) for line in (home.folder / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert {line["metrics"]["rank"] for line in lines} == {0.0}
    assert len([each for each in incidents_in(home.folder / "run", "") if isinstance(each, Joined)]) == 4
    home.wait_for(lambda: not home.processes())


def test_torchrun_starts_the_example_of_fsdp_as_an_island_of_a_home(home: Home) -> None:
    daemon = home.open(keys=True, tokens=40_000)
    assert home.call("invite", "beta", "--cluster", "home.toml").returncode == 0
    invitation = {INVITE: (home.folder / "beta.invite").read_text()}
    home.start("example", [*TORCHRUN, str(EXAMPLES / "fsdp_loop.py"), "--rate", "0.01"], invitation)
    assert home.loops["example"].wait(PATIENCE) == 0, home.text_of("example").read_text()
    assert daemon.wait(PATIENCE) == 0
    assert home.summary("run")["outcome"] == "done"
    state = torch.load(home.folder / "fsdp_loop.pt", weights_only=True)
    assert {name: tuple(leaf.shape) for name, leaf in state.items()}["0.weight"] == (64, 32)
