"""Loops in real processes that train what they have announced, and what comes of it where they train something else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.supervision.incidents import BodyRaised, Restarted
from tests.effort import long
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, Run

pytestmark = [pytest.mark.torch, pytest.mark.process]

SCRIPT = """
import json, sys, time
import torch
import isthmus

how = sys.argv[1]
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Tanh())
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 1)
        if how == "shares":  # Every other row: it does not fill what it spans.
            self.rows = torch.nn.Parameter(self.backbone[0].weight.data[::2])

    def forward(self, x):
        more = self.rows.sum() if how == "shares" else 0.0
        return self.head(self.norm(self.backbone(x))) + more

model = Net()
if how in ("announced", "unfreezes"):
    model.backbone.requires_grad_(False)
matrices = [each for each in model.parameters() if each.ndim == 2]
vectors = [each for each in model.parameters() if each.ndim != 2]
optimizers = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(vectors, lr=0.01)]
scheduler = torch.optim.lr_scheduler.StepLR(optimizers[1], 10, 0.9)
merge = {"backbone/**": "average", "**": "rda"} if how == "announced" else {"**": "rda"}

with isthmus.island(model, optimizers, merge=merge) as island:
    begun = island.position
    if how != "nan":
        island.keep(scheduler)
    print("BEGINS", json.dumps([begun, [len(each.state) for each in optimizers], scheduler.last_epoch]), flush=True)
    draw = torch.Generator().manual_seed(island.seed + begun)
    later = 20  # Steps that nobody counts.
    while later:
        x = torch.randn(64, 32, generator=draw)
        time.sleep(0.004)
        if island.position == 60:
            if how == "unfreezes":
                model.backbone.requires_grad_(True)
            elif how == "replaces a module":
                model.head = torch.nn.Linear(8, 1)
            elif how == "replaces a buffer":
                model.norm.running_mean = torch.zeros(8)
            elif how == "makes an optimizer anew":
                optimizers[1] = torch.optim.AdamW(vectors, lr=0.01)
        if how == "announced":
            model.backbone.requires_grad_(island.position > 20)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        if how == "nan" and island.slot == 1 and island.position == 10:
            loss = loss * float("nan")
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        scheduler.step()
        island.step(loss, tokens=64)
        later -= island.is_over
total = float(sum(leaf.double().abs().sum() for leaf in model.state_dict().values() if leaf.is_floating_point()))
print("END", json.dumps([island.slot, total]), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin(how: str, *more: str, tokens: int = FOREVER) -> Run:
        runs.append(Run(tmp_path, "--loop", "train.py", *more, tokens=tokens, after=("--", how)))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def said(run: Run, slot: int, word: str) -> list[Any]:
    """What the lives of a slot have said after a word."""
    lines = (run.folder / "logs" / f"learner-{slot}.log").read_text().splitlines()
    return [json.loads(line.removeprefix(f"{word} ")) for line in lines if line.startswith(f"{word} ")]


@pytest.mark.parametrize(
    ("how", "leaf"),
    [
        ("unfreezes", "backbone/0/weight"),
        long("replaces a module", "head/weight"),
        long("replaces a buffer", "norm/running_mean"),
        long("makes an optimizer anew", "backbone/0/bias"),
    ],
)
def test_a_change_in_the_midst_ends_the_run_with_one_message_by_name(
    start: Callable[..., Run], how: str, leaf: str
) -> None:
    run = start(how)
    out, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 1, (out, error, run.story())
    raised = [each.error for each in run.incidents() if isinstance(each, BodyRaised)]
    assert raised
    for each in raised:
        assert (each.exception, each.is_refusal, each.file) == ("ConfigError", True, str(run.here / "train.py"))
        assert repr(leaf) in each.message
    assert not [each for each in run.incidents() if isinstance(each, Restarted)]  # Nothing is tried again.
    assert (out + error).count(raised[0].message) == 1
    summary = run.summary()
    assert summary["outcome"] == "failed"
    assert raised[0].message in summary["error"]
    assert [said(run, slot, "END") for slot in (0, 1)] == [[], []]


def test_what_is_announced_is_unfrozen_in_the_midst_and_two_optimizers_outlive_a_kill(
    start: Callable[..., Run],
) -> None:
    run = start("announced")
    run.wait_for(lambda: (run.folder / "local" / "learner-1").exists())
    run.wait_for_merges(10)
    run.wait_for(lambda: run.steps().get("learner/1", 0) > 40)
    run.wait_for_merges(10)
    run.kill("learner/1")
    run.wait_for(lambda: len(said(run, 1, "BEGINS")) == 2)
    run.wait_for_merges(10)
    summary = run.stop()
    (_, before, _), (position, states, epoch) = said(run, 1, "BEGINS")
    assert before == [0, 0]
    assert position > 0
    assert states == [2, 4]  # Of all matrices, and of all vectors, those of the backbone among them.
    assert epoch > 0
    (one,), (other,) = said(run, 0, "END"), said(run, 1, "END")
    assert (one[0], other[0]) == (0, 1)
    assert one[1] == other[1]  # Though both have trained on behind the end.
    assert summary["error"] is None
    assert summary["losses_not_finite"] == 0


@pytest.mark.long
def test_leaves_that_do_not_take_the_last_model_fail_the_run(start: Callable[..., Run]) -> None:
    run = start("shares", tokens=64 * 300)
    out, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 1, (out, error, run.story())
    summary = run.summary()
    assert summary["outcome"] == "failed"
    assert "'backbone/0/weight'" in summary["error"] or "'rows'" in summary["error"]
    assert [said(run, slot, "END") for slot in (0, 1)] == [[], []]  # What would save a model is not reached.
    assert (run.folder / "snapshots" / "final").is_dir()


@pytest.mark.long
def test_losses_that_are_not_finite_are_told_in_the_one_line_of_quiet(start: Callable[..., Run]) -> None:
    run = start("nan", "--quiet", tokens=64 * 600)
    out, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 0, (out, error, run.story())
    summary = run.summary()
    count = summary["losses_not_finite"]
    assert count > 0
    assert [row["losses_not_finite"] for row in summary["per_learner"]] == [0, count]
    assert count < summary["per_learner"][1]["steps"] - 10, "it goes on from the global model, and stays sound"
    assert len(out.splitlines()) == 1
    assert str(count) in out
