"""Islands of several ranks, with DDP and FSDP2, in real runs: beside an island of one process, killed, and asked."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.loop_script import LoopScript
from isthmus.programs.loop_task import asked_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.supervision.incidents import BodyRaised, LoopLeft
from tests.programs.engine.run.process_run import FOREVER, Run
from tests.torch_tasks.test_own_loops import ends, said
from tests.torch_tasks.test_torch_runs import reports

pytestmark = [pytest.mark.torch, pytest.mark.process]

SCRIPT = """
import hashlib, json, os, signal, subprocess, sys, time
from collections import Counter
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import isthmus

KINDS = {"learner/0": "sole", "learner/1": "ddp", "learner/2": "fsdp"}
how = sys.argv[1]
kind = KINDS.get(json.loads(os.environ["ISTHMUS_ISLAND"]).get("replica"), "sole") if how == "mixed" else "fsdp"
kind = "plain" if how == "parts" else kind  # Ranks that wait for each other nowhere else.
if kind != "sole" and "RANK" not in os.environ:  # As a launcher of the user's own starts ranks.
    store = os.path.abspath(f"store-{os.getpid()}")
    os.environ.update(WORLD_SIZE="2", STORE=store)
    subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1"})
    os.environ["RANK"] = "0"
if kind != "sole":
    meeting = "file://" + os.environ["STORE"] if "STORE" in os.environ else "env://"
    dist.init_process_group("gloo", meeting, rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank() if kind != "sole" else 0
messages = Counter()

def counted(name, of):
    def call(tensor, *more, **keywords):
        messages[name, tensor.numel() * tensor.element_size()] += 1
        return of(tensor, *more, **keywords)
    return call

def evaluate(module):
    x = torch.ones(64, 32)
    with torch.no_grad():
        return {"loss": ((module(x) - 32.0) ** 2).mean(), "first": rank}

torch.manual_seed(0)
model = wrapped = torch.nn.Sequential(torch.nn.Linear(32, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
if kind == "fsdp":
    fully_shard(model[0])
    fully_shard(model)
if kind == "ddp":
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
quiet = Counter()
with isthmus.island(wrapped, optimizer, evaluate=evaluate if how == "leaves" else None) as island:
    begun = island.position
    island.keep(scheduler)
    print(f"rank {rank} of {kind}, process {os.getpid()}, begins at {begun} with {len(optimizer.state)} moments, "
          f"rate {scheduler.last_epoch}, seed {island.seed}\\n", end="", flush=True)
    draw = torch.Generator().manual_seed((island.seed + begun + rank) % 2**63)
    for x in island(iter(lambda: torch.randn(64, 32, generator=draw), None)):
        time.sleep(0.004)
        loss = ((wrapped(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        broadcast, all_reduce = dist.broadcast, dist.all_reduce
        dist.broadcast, dist.all_reduce = counted("order", broadcast), counted("sum", all_reduce)
        island.step(loss, tokens=64)
        dist.broadcast, dist.all_reduce = broadcast, all_reduce
        quiet[tuple(sorted(messages.items()))] += 1
        if begun and len(messages) == messages.total() == 2:
            open(f"quiet-{island.slot}-{rank}", "w").close()
        messages.clear()
        if how == "leaves" and island.slot == 1 and rank == 1 and island.position == 40:
            os.kill(os.getpid(), signal.SIGTERM)
        if how == "parts" and not begun and rank == 1 and island.position == 20:
            if island.slot == 1:
                break
            raise ValueError("a mistake of mine")
    was_over = island.is_over
values = [leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf for leaf in model.state_dict().values()]
digest = hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in values if leaf.is_floating_point())).hexdigest()
least = min(quiet, key=lambda each: sum(count for _, count in each), default=())
print(f"END {json.dumps([was_over, digest, 'jax' in sys.modules, rank, island.slot, least])}\\n", end="", flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin(how: str, *, tokens: int, learners: int = 2) -> Run:
        ranks = () if how == "mixed" else ("--ranks", "2")
        options = ("--loop", "train.py", *ranks)
        runs.append(Run(tmp_path, *options, learners=learners, tokens=tokens, after=("--", how)))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


BEGINS = re.compile(r"rank (\d) of (\w+), process (\d+), begins at (\d+) with (\d+) moments, rate (\d+), seed (\d+)")


def begins(run: Run, slot: int, rank: int) -> list[list[str]]:
    """By life, what a rank has said at its `with`: its kind, process, position, moments and rate."""
    found = BEGINS.findall(said(run, slot)) if (run.folder / "logs" / f"learner-{slot}.log").exists() else []
    return [list(each[1:]) for each in found if int(each[0]) == rank]


def test_ddp_fsdp_and_one_process_train_one_model_and_a_killed_rank_comes_back_with_its_moments(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start("mixed", tokens=FOREVER, learners=3)
    run.wait_for(lambda: all((run.folder / "local" / f"learner-{slot}").exists() for slot in range(3)))
    run.wait_for_merges(10)
    for slot in (1, 2):
        ((_, process, *first),) = begins(run, slot, 1)
        assert first[:3] == ["0", "0", "0"]
        os.kill(int(process), signal.SIGKILL)
    for slot in (1, 2):
        run.wait_for(lambda: len(begins(run, slot, 0)) == len(begins(run, slot, 1)) == 2)  # noqa: B023
        kind, _, position, moments, rate, seed = begins(run, slot, 1)[1]
        assert begins(run, slot, 0)[1][2:] == [position, moments, rate, seed]  # What rank 0 has found all ranks know.
        assert (int(position) > 0, moments, int(rate) > 0) == (True, "6", True), kind
    run.wait_for(lambda: len(list(tmp_path.glob("quiet-[12]-[01]"))) == 4)
    run.command.send_signal(signal.SIGINT)
    run.command.communicate()
    found = [end for slot in range(3) for end in ends(run, slot)]
    assert sorted((rank, slot) for *_, rank, slot, _ in found) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
    assert len({digest for _, digest, *_ in found}) == 1
    assert {(was_over, has_jax) for was_over, _, has_jax, *_ in found} == {(True, False)}
    # Where nothing is exchanged: the sum of four numbers, and one order.
    assert [least for *_, slot, least in found if slot] == [[[["order", 256], 1], [["sum", 32], 1]]] * 4
    tokens = [line["tokens"] / line["step"] for slot in range(3) for line in reports(run, slot)[-1:]]
    assert tokens == [64.0, 128.0, 128.0]


def test_a_rank_that_raises_or_leaves_alone_ends_its_island_which_begins_again(start: Callable[..., Run]) -> None:
    run = start("parts", tokens=FOREVER)
    run.wait_for(lambda: [len(begins(run, slot, rank)) for slot in (0, 1) for rank in (0, 1)] == [2] * 4)
    assert "ValueError: a mistake of mine" in said(run, 0)
    for slot, said_by_rank_0 in enumerate(
        ["a rank of this island is gone", "one rank of this island has left its loop"]
    ):
        (raised,) = [each for each in run.incidents(f"learner/{slot}#1") if isinstance(each, BodyRaised)]
        assert said_by_rank_0 in raised.error.message
    run.command.send_signal(signal.SIGINT)
    run.command.communicate()


def test_ranks_evaluate_together_and_leave_at_a_notice_to_one_of_them(start: Callable[..., Run]) -> None:
    run = start("leaves", tokens=128 * 400)
    summary = run.finish("done")
    assert run.incidents("learner/1#1")[-1] == LoopLeft()
    assert [[end[0] for end in ends(run, slot)] for slot in (0, 1)] == [[True, True], [True, True]]
    assert all(account["lost"] == 0 for account in summary["fragment_accounts"])  # Its last answers count.
    assert summary["eval_loss_final"] > 0
    lines = [json.loads(line) for line in (run.folder / "evaluations.jsonl").read_text().splitlines()]
    assert {line["metrics"]["first"] for line in lines} == {0.0}
    assert len({digest for _, digest, *_ in ends(run, 0)}) == 1
    assert "END" not in (run.folder / "logs" / "evaluator-0.log").read_text()


# -- what is asked -----------------------------------------------------------------------------------------------------


def asked(folder: Path, text: str) -> Any:
    (folder / "train.py").write_text(text)
    return asked_of(LoopScript(str(folder / "train.py"), ("fsdp",), str(folder), ranks=2))


def test_ranks_are_asked_together(tmp_path: Path) -> None:
    found = asked(tmp_path, SCRIPT)
    assert [(leaf.name, leaf.shape, leaf.kind) for leaf in found.leaves[:2]] == [
        ("0/weight", (7, 32), "rda"),
        ("0/bias", (7,), "rda"),
    ]
    assert (found.tokens, found.tokens_most) == (128, 1024)
    sharded = 4 * (7 * 32 + 7 + 7 + 7 + 7 + 1)
    steps = 2 * 4 * 6
    buffers = 2 * (4 * (7 + 7) + 8)
    assert found.learner_bytes == 4 * sharded + steps + buffers


WRONG = {
    "no group": (
        "import torch, isthmus\nmodel = torch.nn.Linear(4, 1)\n"
        "isthmus.island(model, torch.optim.SGD(model.parameters(), lr=0.1))",
        "none",
    ),
    "another module": (
        SCRIPT.replace("torch.nn.Linear(7, 1)", "torch.nn.Linear(7, 1 + rank)"),
        "others in some of them",
    ),
    "tokens": (SCRIPT.replace("tokens=64", "tokens=0"), "0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_ranks_is_said(name: str, tmp_path: Path) -> None:
    text, found = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        asked(tmp_path, text)
    assert [fault.found for fault in caught.value.faults] == [found]
