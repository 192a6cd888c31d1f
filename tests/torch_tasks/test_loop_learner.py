"""The learner of a user's own loop, which makes the steps: the suite for learners, and what it keeps of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.contract import LoopLearning
from isthmus.ops.island.learner_conformance import FIRST, LearnerConformance, Specimen
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.torch_loop import LoopEvaluation, LoopLearner
from isthmus.ops.island.torch_model import Model, OptimizerState
from tests.torch_tasks.torch_models import SHAPES, Net, batch, squares, task_of

pytestmark = pytest.mark.torch

RULES = (("**", "rda"),)


class Looped:
    """A learner, and the loop that makes its steps: it is called as any other learner."""

    def __init__(self, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> None:
        torch.manual_seed(life.seed)
        self.module = Net()
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2)
        model = Model(self.module, RULES, torch.device("cpu"))
        self.learner = LoopLearner(model, OptimizerState(self.optimizer, model), fragments, life=life, alpha=alpha)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def step(self, arrays: Any, progress: float) -> Mapping[str, Any]:
        self.learner.open_step(progress)
        loss = squares(self.module, {name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.learner.record(8, {"loss": loss})
        assert self.learner.made_tokens() == 8
        return self.learner.step(None, progress)


class TestLoop(LearnerConformance):
    @pytest.fixture
    def specimen(self) -> Specimen:
        spoilt = {name: np.full_like(array, np.nan) for name, array in batch(At(0, 0, 0)).items()}
        return Specimen(Looped, SHAPES, batch, spoilt, task_of().evaluator)

    def test_merged_leaves_are_zeros_before_it_begins(self, specimen: Specimen) -> None:
        learner = specimen.learner()
        for value, leaf in zip(specimen.values(learner), specimen.values(specimen.learner(steps=0)), strict=True):
            np.testing.assert_array_equal(value, leaf)  # They are the user's, until they are replaced.


def test_what_it_finds_out_of_an_optimizer_leaves_no_trace() -> None:
    torch.manual_seed(0)
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    squares(module, {name: torch.from_numpy(array) for name, array in batch(At(0, 0, 0)).items()}).backward()
    optimizer.step()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    gradients = [parameter.grad for parameter in module.parameters()]
    states = [{name: value.clone() for name, value in state.items()} for state in optimizer.state.values()]
    OptimizerState(optimizer, Model(module, RULES, torch.device("cpu")))
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    assert [parameter.grad for parameter in module.parameters()] == gradients
    assert optimizer.param_groups[0]["lr"] == 0.1
    for one, other in zip(states, optimizer.state.values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_users_moments_are_kept_at_the_beginning_and_forgotten_when_it_begins_anew() -> None:
    looped = Looped((), FIRST, 0.0)
    assert isinstance(looped.learner, LoopLearning)
    squares(looped.module, {name: torch.from_numpy(each) for name, each in batch(At(0, 0, 0)).items()}).backward()
    looped.optimizer.step()
    looped.restart()
    assert looped.optimizer.state
    looped.step(batch(At(0, 0, 1)), 0.0)
    looped.restart()
    assert not looped.optimizer.state


def test_what_a_loop_keeps_comes_back_with_the_rates_of_its_optimizer() -> None:
    def learner() -> tuple[Looped, Any]:
        looped = Looped((), FIRST, 0.0)
        return looped, torch.optim.lr_scheduler.StepLR(looped.optimizer, 2, 0.5)

    one, scheduler = learner()
    one.keep([scheduler])
    for number in range(5):
        one.step(batch(At(0, 0, number)), 0.0)
        scheduler.step()
    leaves = list(one.local())
    other, later = learner()
    assert other.take_local(leaves)
    with pytest.raises(ValueError, match="1 were kept before"):
        other.keep([])
    other.keep([later])
    assert later.last_epoch == 5
    assert other.optimizer.param_groups[0]["lr"] == one.optimizer.param_groups[0]["lr"] == 1e-2 / 4
    assert not other.take_local(leaves[:-1])


def test_beside_a_learner_an_evaluation_leaves_module_modes_and_random_numbers_as_they_are() -> None:
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    model = Model(module, RULES, torch.device("cpu"))
    settled: list[bool] = []

    def evaluate(module: Any) -> float:
        assert float(module[0].weight.detach().sum()) == 24.0
        module(torch.ones(8, 4))  # In training: statistics change, and numbers are drawn.
        module.eval()
        return 1.5

    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}
    numbers = torch.get_rng_state()
    tensors = {path: np.full(tuple(leaf.shape), 2.0, np.float32) for path, leaf in model.merged.items()}
    evaluation = LoopEvaluation(model, evaluate, settle=lambda: settled.append(True), is_beside=True)
    assert evaluation.metrics(tensors) == {"loss": 1.5}
    for name, leaf in module.state_dict().items():
        assert torch.equal(leaf, before[name]), name
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(part.training for part in module.modules())
    assert settled
