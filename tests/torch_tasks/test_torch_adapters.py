"""Adapters in PyTorch: parameters that need no gradient are frozen, in plain modules and in those of peft."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.frozen_leaves import FrozenLeafError, check, digests_of
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.engine.request.task_checks import layout_of
from tests.torch_tasks.torch_models import EXAMPLE, Net, batch, task_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def adapter() -> Net:
    """All frozen but the last layer."""
    net = Net().requires_grad_(False)
    net.last.requires_grad_(True)
    return net


def test_only_what_needs_a_gradient_is_exchanged_and_kept() -> None:
    task = task_of(adapter, merge={"norm/*": "local", "**": "rda"})
    leaves = {leaf.name: leaf.kind for leaf in task.leaves(0)}
    assert leaves["first/weight"] == "frozen"
    assert leaves["norm/weight"] == "local"
    assert [spec.name for spec in layout_of(task, 0)] == ["last/weight", "last/bias"]
    learner = task.learner(partition(layout_of(task, 0), 1), life=LearnerLife(0, 0, 1), alpha=0.0)
    learner.begin()
    for position in range(3):
        learner.step(batch(At(0, 0, position)), 0.0)
    assert learner.frozen() == task.frozen(0) == task.evaluator(0).frozen()
    assert dict(learner.frozen()).keys() == {"first/weight", "first/bias"}
    kept = sum(np.asarray(each).nbytes for each in learner.local())
    assert kept < 4 * 3 * (15 + 8) + 200  # Moments of the last layer, what is local of the norm, counts and flags.
    check(task.frozen(0), learner)
    with pytest.raises(FrozenLeafError, match="'first/bias'"):
        check((("first/bias", "0"), *learner.frozen()[1:]), learner)


def test_digests_are_those_of_the_values() -> None:
    torch.manual_seed(0)
    named = {name.replace(".", "/"): each for name, each in adapter().named_parameters()}
    assert task_of(adapter).frozen(0) == digests_of(
        {name: each.numpy() for name, each in named.items() if not each.requires_grad}
    )


def test_a_rule_freezes_a_parameter() -> None:
    task = task_of(merge={"first/*": "frozen", "**": "rda"})
    learner = task.learner(partition(layout_of(task, 0), 1), life=LearnerLife(0, 0, 1), alpha=0.0)
    learner.begin()
    before = learner.frozen()
    learner.step(batch(At(0, 0, 0)), 0.0)
    assert [name for name, _ in before] == ["first/bias", "first/weight"]
    assert learner.frozen() == before


@pytest.mark.parametrize("name", ["torch_lora", "jax_lora"])
def test_the_examples_send_their_adapters_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = isthmus.train(
        isthmus.decoupled_diloco(interval=4, fragments=1, push="float32"),
        f"{EXAMPLE.with_name(f'{name}.py')}:task",
        tokens=60_000,
        learners=2,
        run_dir=tmp_path / "run",
        transport="inproc",
        quiet=True,
    )
    spec = json.loads((tmp_path / "run" / "spec.json").read_text())
    size = sum(int(np.prod(shape)) for _, shape, *_ in spec["job"]["layout"])
    assert size == 2 * 2 * 2 * 64 * 4  # Layers, targets, down and up.
    edges = {(edge["source"], edge["target"]): edge for edge in result.summary["edges"]}
    answers = edges["fragment-send.answer", "merge.answer"]
    assert 0 < answers["bytes"] < 1.2 * answers["items"] * 4 * size
    assert result.summary["eval_loss_final"] < result.summary["eval_loss_initial"] - 0.1
    assert isthmus.load(tmp_path / "run") is not None


def test_a_model_of_peft() -> None:
    peft = pytest.importorskip("peft")

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.last(torch.tanh(self.first(x)))

    def build() -> Any:
        return peft.get_peft_model(Block(), peft.LoraConfig(r=2, target_modules=["first"]))

    task = task_of(build)
    names = [spec.name for spec in layout_of(task, 0)]
    assert len(names) == 2
    assert all("lora" in name for name in names)
    learner = task.learner(partition(layout_of(task, 0), 1), life=LearnerLife(0, 0, 1), alpha=0.0)
    learner.begin()
    losses = [float(np.asarray(learner.step(batch(At(0, 0, 0)), 0.0)["loss"])) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert learner.frozen() == task.frozen(0)
