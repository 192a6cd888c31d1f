"""What a loop may pass as its optimizers and modules: all states are kept, and each parameter is in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isthmus.programs.island import _loop_model
from isthmus.programs.module_island import ModuleModel
from isthmus.runtime.errors import ConfigError

pytestmark = pytest.mark.torch
RULES = (("**", "rda"),)


class Both:
    """What steps two optimizers, and is none of torch's."""

    def __init__(self, *inner: Any) -> None:
        self.inner = list(inner)

    def step(self) -> None:
        for each in self.inner:
            each.step()


class Chained(torch.optim.Optimizer):
    """One of torch's around two others, whose own state is empty."""

    def __init__(self, one: Any, other: Any) -> None:
        super().__init__([*one.param_groups, *other.param_groups], {})
        self.one, self.other = one, other

    def step(self, closure: Any = None) -> None:
        self.one.step()
        self.other.step()


class Wrapped(torch.optim.Optimizer):
    """As accelerate wraps an optimizer: another object with its groups and its state."""

    def __init__(self, inner: Any) -> None:
        self.optimizer = inner

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    step = property(lambda self: self.optimizer.step)


class Plain:
    """A user's own, without a class of torch's."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups, self.state = [{"params": list(parameters), "lr": 0.1}], dict[Any, Any]()

    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            kept = self.state.setdefault(parameter, {"sum": torch.zeros_like(parameter)})
            kept["sum"] += parameter.grad
            parameter.data -= self.param_groups[0]["lr"] * kept["sum"]


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))


def parts(module: Any) -> tuple[Any, Any]:
    matrices = [each for each in module.parameters() if each.ndim == 2]
    vectors = [each for each in module.parameters() if each.ndim < 2]
    return torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(vectors)


FORMS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "one": (lambda module: torch.optim.AdamW(module.parameters()), 12),
    "a list": (lambda module: list(parts(module)), 8),
    "a dict": (lambda module: dict(zip(("matrices", "vectors"), parts(module), strict=True)), 8),
    "an object around two": (lambda module: Both(*parts(module)), 8),
    "one of torch's around two": (lambda module: Chained(*parts(module)), 8),
    "a wrapper": (lambda module: Wrapped(torch.optim.AdamW(module.parameters())), 12),
    "one of the user's": (lambda module: Plain(module.parameters()), 4),
}


@pytest.mark.parametrize("form", FORMS)
def test_states_of_all_optimizers_are_kept(form: str) -> None:
    module = net()
    make, states = FORMS[form]
    optimizer = make(module)
    model = _loop_model(module, optimizer, RULES)
    assert isinstance(model, ModuleModel)
    module(torch.ones(3, 8)).sum().backward()
    for each in optimizer.values() if isinstance(optimizer, dict) else optimizer if form == "a list" else [optimizer]:
        each.step()
    arrays = list(model._moments.arrays())
    flags = [each for each in arrays if each.dtype == "uint8"]
    assert all(each.all() for each in flags)
    assert len(arrays) - len(flags) == states  # Of each parameter a moment, or two and how many steps.
    assert sum(bool(abs(each).sum()) for each in arrays) == len(arrays)


def test_a_parameter_in_two_optimizers_is_refused_by_name() -> None:
    module = net()
    with pytest.raises(ConfigError, match="0/bias in SGD and AdamW"):
        _loop_model(module, [torch.optim.SGD(module.parameters()), parts(module)[1]], RULES)


@pytest.mark.parametrize("given", [None, 3, [], {}, [None], Both(), "adamw"])
def test_what_is_no_optimizer_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        _loop_model(net(), given, RULES)


def test_a_list_or_dict_of_modules_is_one_model() -> None:
    body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    named = _loop_model({"body": body, "head": head}, optimizer, RULES)
    listed = _loop_model([body, head], optimizer, RULES)
    names = [leaf.name for leaf in named.leaves()]
    assert names == ["body/weight", "body/bias", "head/weight", "head/bias"]
    assert [leaf.name for leaf in listed.leaves()] == ["0/weight", "0/bias", "1/weight", "1/bias"]
    assert named.state["body"] is body


@pytest.mark.parametrize("name", ["bfloat16", "a.b"])
def test_modules_under_a_name_that_torch_does_not_take_are_refused_by_it(name: Any) -> None:
    body = torch.nn.Linear(8, 8)
    with pytest.raises(ConfigError) as caught:
        _loop_model({name: body}, torch.optim.SGD(body.parameters(), lr=0.1), RULES)
    assert str(name) in caught.value.faults[0].found


def test_gradients_that_an_optimizer_wants_sparse_are_sparse_as_its_state_is_made() -> None:
    module = torch.nn.Embedding(8, 4, sparse=True)
    model = _loop_model(module, torch.optim.SparseAdam(module.parameters()), RULES)
    assert isinstance(model, ModuleModel)
    assert [each.shape for each in model._moments.arrays()] == [(1,), (8, 4), (8, 4), ()]
    assert module.weight.grad is None
