"""The learner of a task in PyTorch: the suite for learners, under several optimizers, and what is torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island.learner_conformance import FIRST, LearnerConformance, Specimen, assert_equal, forms
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.torch_model import array_of, tensor_of
from tests.torch_tasks.torch_models import SHAPES, Net, batch, squares, task_of

pytestmark = pytest.mark.torch

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda module: torch.optim.AdamW(module.parameters(), lr=1e-2),
    "sgd": lambda module: torch.optim.SGD(module.parameters(), lr=1e-2),
    "momentum": lambda module: torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9, dampening=0.5),
    "nadam": lambda module: torch.optim.NAdam(module.parameters(), lr=1e-2),
    "adagrad": lambda module: torch.optim.Adagrad(module.parameters(), lr=1e-2, initial_accumulator_value=0.1),
    "rprop": lambda module: torch.optim.Rprop(module.parameters(), lr=1e-2),
    "adafactor": lambda module: torch.optim.Adafactor(module.parameters(), lr=1e-2),
}


def specimen_of(task: Any) -> Specimen:
    def make(fragments: Any, life: LearnerLife, alpha: float) -> Any:
        return task.learner(fragments, life=life, alpha=alpha)

    first = batch(At(0, 0, 0))
    spoilt = {name: np.full_like(array, np.nan) for name, array in first.items()}
    return Specimen(make, SHAPES, batch, spoilt, task.evaluator)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
class TestTorch(LearnerConformance):
    @pytest.fixture
    def specimen(self, optimizer: str) -> Specimen:
        return specimen_of(task_of(optimizer=OPTIMIZERS[optimizer], rate=lambda progress: 1.0 - progress))


def test_a_step_is_that_of_the_bare_loop() -> None:
    task = task_of()
    specimen = specimen_of(task)
    learner = specimen.learner(steps=0)
    torch.manual_seed(FIRST.seed)
    module = Net()
    optimizer = OPTIMIZERS["adamw"](module)
    expected = []
    for position in range(5):
        tensors = {name: torch.from_numpy(array) for name, array in batch(At(0, 0, position)).items()}
        loss = squares(module, tensors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert specimen.train(learner, 5) == expected
    tree = learner.tree(learner.copy())
    state = {name.replace(".", "/"): array_of(each) for name, each in module.state_dict().items()}
    assert_equal([tree[name] for name in SHAPES], [state[name] for name in SHAPES])


def drawn(learner: Any, steps: int = 3, begin: int = 0) -> list[float]:
    return [learner.step(batch(At(0, 0, 0)), 0.0)["loss"] for _ in range(begin, begin + steps)]


def test_dropout_draws_by_seed_slot_life_and_step_and_goes_on_where_a_life_was() -> None:
    specimen = specimen_of(task_of(partial(Net, dropout=0.5), rate=lambda progress: 0.0))
    lives = [LearnerLife(7, 0, 1), LearnerLife(7, 1, 1), LearnerLife(7, 0, 2)]
    found = [drawn(specimen.learner(life, steps=0)) for life in lives]
    assert len({each for losses in found for each in losses}) == 9
    learner = specimen.learner(steps=0)
    torch.manual_seed(1)  # What others of this process draw does not matter.
    assert drawn(learner) == found[0]
    later = specimen.learner(LearnerLife(7, 0, 5))
    assert later.take_own(learner.own(whole=True))
    assert drawn(later) == drawn(learner)


def test_the_rate_is_a_factor_of_each_groups_own() -> None:
    def groups(module: Any) -> Any:
        weights = [each for each in module.parameters() if each.dim() > 1]
        rest = [each for each in module.parameters() if each.dim() == 1]
        return torch.optim.SGD([{"params": weights, "lr": 0.5}, {"params": rest}], lr=0.25)

    learner = specimen_of(task_of(optimizer=groups, rate=lambda progress: progress)).learner(steps=0)
    before = learner.tree(learner.copy())
    learner.step(batch(At(0, 0, 0)), 0.0)
    after = learner.tree(learner.copy())
    assert_equal([before[name] for name in ("last/weight", "last/bias")], [after["last/weight"], after["last/bias"]])
    learner.step(batch(At(0, 0, 0)), 0.5)
    assert [group["lr"] for group in learner._moments.optimizer.param_groups] == [0.25, 0.125]


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3, dtype=torch.bfloat16)

    def forward(self, x: Any) -> Any:
        return self.line(x.to(torch.bfloat16)).float()


def test_leaves_of_bfloat16_are_exchanged_in_float32_and_kept_as_they_are() -> None:
    task = task_of(Half)
    parts = (Fragment(0, (Unit("line/bias", 0, 3, (3,)), Unit("line/weight", 0, 3, (3, 4)))),)
    learner = task.learner(parts, life=FIRST, alpha=0.0)
    learner.replace(0, np.full(15, 1.001, np.float32))
    assert set(learner.extract(0).tolist()) == {float(ml_dtypes.bfloat16(1.001))}
    learner.step(batch(At(0, 0, 0)), 0.0)
    other = task.learner(parts, life=LearnerLife(7, 0, 2), alpha=0.0)
    own = learner.own(whole=True)
    assert str(own[-1].dtype) == "bfloat16"
    assert other.take_own(own)
    assert_equal([other.extract(0)], [learner.extract(0)])
    assert [str(leaf.dtype) for leaf in learner.tree(learner.copy()).values()] == ["bfloat16"] * 2


def test_what_a_step_does_not_use_has_no_state_yet_and_gets_it_later() -> None:
    """Optimizers leave out parameters without a gradient."""

    class Bare(Net):
        def forward(self, x: Any) -> Any:
            return self.first(x)[:, :3]

    specimen = specimen_of(task_of(Bare))
    learner, other = specimen.learner(steps=2), specimen.learner(LearnerLife(7, 1, 1), steps=0)
    kept = list(learner.local())
    assert 0 < int(kept[0].sum()) < len(kept[0])
    assert other.take_local(kept)
    assert forms(other.local()) == forms(kept)
    assert_equal(list(other.local()), kept)


def test_local_parameters_and_what_belongs_to_them_are_not_lent() -> None:
    specimen = specimen_of(task_of(merge={"last/*": "local", "**": "rda"}))
    fragments = (Fragment(0, (Unit("first/weight", 0, 4, (4, 4)),)),)
    learner = specimen.make(fragments, FIRST, 0.0)
    learner.begin()
    specimen.train(learner, 1)
    assert "last/weight" not in learner.tree(learner.copy())
    assert len(list(learner.local())) > len(learner.lend())
    assert not any(leaf.shape == (3, 4) for leaf in learner.lend())
    assert any(leaf.shape == (3, 4) for leaf in learner.local())


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16", "bool", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_arrays_become_tensors_and_arrays_again(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(6)[: int(np.prod(shape))].reshape(shape)).astype(dtype)
    array.setflags(write=False)
    again = array_of(tensor_of(array))
    assert again.dtype == array.dtype
    assert again.flags.writeable
    np.testing.assert_array_equal(again, array)
