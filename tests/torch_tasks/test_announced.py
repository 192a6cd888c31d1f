"""What a loop has announced of its module and its optimizers, and which change of it ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from isthmus.ops.island.announced import Unannounced
from isthmus.ops.island.torch_announced import AnnouncedModule, patterns_of, shared_memory
from isthmus.ops.island.torch_model import Model, OptimizerState
from isthmus.programs.module_island import ModuleModel
from isthmus.runtime.errors import ConfigError

pytestmark = pytest.mark.torch

RULES = (("probe/**", "local"), ("**", "rda"))


class Net(torch.nn.Module):
    """A frozen backbone of two layers, a norm, a trained head, and a probe that stays with its island."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 1)
        self.probe = torch.nn.Linear(3, 1)
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.backbone(x)))


class Loop:
    """A loop: its module, optimizers, and what it has announced."""

    def __init__(self, rules: tuple[tuple[str, str], ...] = RULES, *, count: int = 1) -> None:
        torch.manual_seed(0)
        self.net = Net()
        parameters = list(self.net.parameters())
        shares = [parameters] if count == 1 else [parameters[:6], parameters[6:]]
        self.optimizers = [torch.optim.AdamW(each, lr=0.1) for each in shares]
        self.model = Model(self.net, rules, torch.device("cpu"), names_take_part=True)
        self.announced = AnnouncedModule(self.model, OptimizerState(self.optimizers, self.model))
        self.announced.watch()

    def step(self, optimizers: Any = None) -> Unannounced | None:
        """Make a step; the change that is found after it."""
        self.net(torch.randn(8, 4)).square().mean().backward()
        for each in self.optimizers if optimizers is None else optimizers:
            each.step()
            each.zero_grad()
        change = self.announced.after_step()
        self.announced.after_boundary()
        return change


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.announced.unwatch()


def unfreeze(loop: Loop) -> None:
    loop.net.backbone.requires_grad_(True)


def freeze(loop: Loop) -> None:
    loop.net.head.requires_grad_(False)


def replace_a_module(loop: Loop) -> None:
    loop.net.head = torch.nn.Linear(3, 1)


def replace_a_tensor(loop: Loop) -> None:
    loop.net.head.bias = torch.nn.Parameter(torch.zeros(1))


def replace_a_buffer(loop: Loop) -> None:
    loop.net.norm.running_mean = torch.zeros(3)


def take_away(loop: Loop) -> None:
    loop.net.head.bias = None


def add_a_module(loop: Loop) -> None:
    loop.net.more = torch.nn.Linear(1, 1)


def add_a_frozen_module(loop: Loop) -> None:
    loop.net.teacher = torch.nn.Linear(1, 1).requires_grad_(False)


def add_a_buffer(loop: Loop) -> None:
    loop.net.norm.register_buffer("scale", torch.ones(3))


def convert(loop: Loop) -> None:
    loop.net.head.to(torch.float64)


def write_frozen(loop: Loop) -> None:
    with torch.no_grad():
        loop.net.backbone[1].bias.add_(1.0)


def add_a_group(loop: Loop) -> None:
    loop.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def drop_a_parameter(loop: Loop) -> None:
    group = loop.optimizers[0].param_groups[0]
    group["params"] = [each for each in group["params"] if each is not loop.net.head.bias]


BACKBONE = ("backbone/0/weight", "backbone/0/bias", "backbone/1/weight", "backbone/1/bias")
HEAD = ("head/weight", "head/bias")
CHANGES: dict[str, tuple[Callable[[Loop], None], str, tuple[str, ...]]] = {
    "unfrozen": (unfreeze, "requires-grad", BACKBONE),
    "frozen": (freeze, "requires-grad", HEAD),
    "another module": (replace_a_module, "place", HEAD),
    "another tensor": (replace_a_tensor, "place", ("head/bias",)),
    "another buffer": (replace_a_buffer, "place", ("norm/running_mean",)),
    "taken away": (take_away, "place", ("head/bias",)),
    "a module more": (add_a_module, "place", ("more/weight", "more/bias")),
    "a frozen module more": (add_a_frozen_module, "place", ("teacher/weight", "teacher/bias")),
    "a buffer more": (add_a_buffer, "place", ("norm/scale",)),
    "another dtype": (convert, "form", ("head/weight",)),
    "frozen values": (write_frozen, "values", ("backbone/1/bias",)),
    "a group more": (add_a_group, "groups", ()),
    "a parameter less": (drop_a_parameter, "groups", ("head/bias",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_the_midst_is_found_at_its_boundary_with_its_leaves(loop: Loop, name: str) -> None:
    change, kind, leaves = CHANGES[name]
    for _ in range(6):  # Not a step at which frozen leaves are read.
        assert loop.step() is None
    change(loop)
    found = loop.announced.after_step()
    assert found is not None
    assert (found.kind, found.leaves) == (kind, leaves)


def test_an_optimizer_made_anew_is_found_by_its_step(loop: Loop) -> None:
    assert loop.step() is None
    anew = torch.optim.AdamW(loop.net.parameters(), lr=0.1)
    assert loop.step() is None  # It has not stepped.
    found = loop.step([anew])
    assert found is not None
    assert (found.kind, found.leaves) == ("optimizer", (*BACKBONE, "norm/weight", "norm/bias", *HEAD))
    assert loop.step() is None
    loop.announced.unwatch()
    assert loop.step([anew]) is None  # Behind the with it may do as it likes.


def test_an_optimizer_of_what_stays_here_or_is_not_the_modules_is_none_of_ours(loop: Loop) -> None:
    own, other = torch.nn.Linear(2, 1), torch.optim.SGD(loop.net.probe.parameters(), lr=0.1)
    assert loop.step([*loop.optimizers, other, torch.optim.SGD(own.parameters(), lr=0.1)]) is None


class Wrapping(torch.optim.Optimizer):
    """An optimizer that has another one make its steps, as those do that average or perturb."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_that_wraps_another_one_is_one_optimizer() -> None:
    loop = Loop()
    loop.announced.unwatch()
    outer = Wrapping(loop.optimizers[0])
    for passed in (outer, outer.inner):
        announced = AnnouncedModule(loop.model, OptimizerState(passed, loop.model))
        announced.watch()
        outer.step()
        announced.unwatch()
        assert announced.after_step() is None


def test_several_optimizers_step_each_their_part() -> None:
    loop = Loop(count=2)
    assert [loop.step(), loop.step()] == [None, None]
    loop.optimizers[1].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    found = loop.announced.after_step()
    assert found is not None
    assert found.kind == "groups"
    loop.announced.unwatch()


def test_what_a_rule_names_takes_part_and_is_frozen_and_trained_as_its_loop_likes() -> None:
    loop = Loop((("backbone/**", "average"), ("head/*", "rda"), *RULES))
    assert {path: loop.model.kinds[path] for path in BACKBONE} == dict.fromkeys(BACKBONE, "average")
    assert not loop.model.frozen
    for change in (unfreeze, freeze):
        change(loop)
        assert loop.step() is None
    assert all(loop.optimizers[0].state[each] for each in loop.net.backbone.parameters())
    loop.announced.unwatch()


def test_moments_of_what_is_not_trained_yet_have_a_form() -> None:
    named, other = Loop((("backbone/**", "rda"), *RULES)), Loop()
    one, two = (len(OptimizerState(each.optimizers, each.model).forms()) for each in (named, other))
    assert one - two == 3 * len(BACKBONE)  # AdamW's count and two moments.
    for each in (named, other):
        each.announced.unwatch()


@pytest.mark.parametrize(
    ("change", "rules", "named"),
    [
        (unfreeze, RULES, {"backbone/**": "rda", "probe/**": "local", "**": "rda"}),
        (freeze, RULES, {"head/**": "rda", "probe/**": "local", "**": "rda"}),
        (unfreeze, (("**", "average"),), {"backbone/**": "average", "**": "average"}),
    ],
)
def test_the_way_to_announce_what_is_frozen_for_a_while_is_in_the_message_and_works(
    change: Callable[[Loop], None], rules: tuple[tuple[str, str], ...], named: dict[str, str]
) -> None:
    loop = Loop(rules)
    change(loop)
    found = loop.announced.after_step()
    assert found is not None
    told = eval(found.do[found.do.index("merge={") + len("merge=") : found.do.index("}") + 1])  # Python, to be copied.
    assert list(told.items()) == list(named.items())
    loop.announced.unwatch()
    other = Loop(tuple(told.items()))
    change(other)
    assert other.step() is None
    other.announced.unwatch()


def test_frozen_by_a_rule_is_trained_by_another_rule_alone() -> None:
    loop = Loop((("head/**", "frozen"), *RULES))
    loop.net.head.requires_grad_(True)
    found = loop.announced.after_step()
    assert found is not None
    assert found.leaves == HEAD
    assert "merge={" not in found.do
    loop.announced.unwatch()


def test_a_local_leaf_that_is_replaced_is_followed_where_it_fits(loop: Loop) -> None:
    for value in (1.0, 2.0):
        loop.net.cache = torch.full((2,), value)
        assert loop.step() is None
        assert loop.model.local["cache"] is loop.net.cache is loop.model.leaves["cache"]
    kept = loop.net.cache
    loop.net.cache = torch.zeros(5)
    assert loop.step() is None
    assert loop.model.local["cache"] is kept
    loop.net.cache = None
    assert loop.step() is None
    loop.net.register_buffer("more", torch.zeros(2), persistent=False)  # It would be local.
    assert loop.step() is None
    loop.net.head.bias = torch.nn.Parameter(torch.zeros(1))
    assert loop.announced.after_step() is not None


def test_frozen_values_that_are_written_as_they_were_are_none_of_ours(loop: Loop) -> None:
    with torch.no_grad():
        leaf = loop.net.backbone[0].weight
        kept = leaf.clone()
        leaf.zero_()
        leaf.copy_(kept)
    assert loop.step() is None


def test_frozen_values_that_autograd_does_not_count_are_found_at_powers_of_four_and_at_the_end(loop: Loop) -> None:
    for _ in range(4):
        assert loop.step() is None
    loop.net.backbone[0].bias.data.add_(1.0)
    changes = [loop.step() for _ in range(12)]
    assert [None if each is None else each.leaves for each in changes] == [*[None] * 11, ("backbone/0/bias",)]
    last = loop.announced.frozen.change()
    assert last is not None
    assert last.leaves == ("backbone/0/bias",)


def test_assigned_data_of_the_same_form_are_values(loop: Loop) -> None:
    loop.net.head.weight.data = torch.zeros(1, 3)
    assert loop.step() is None


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        (["head"], ["head"]),
        (["a/b/c", "a/b/d"], ["a/b/**"]),
        (["a/b", "a/c/d"], ["a/**"]),
        (["a/b", "a/c", "d"], ["a/**", "d"]),
    ],
)
def test_patterns_are_few(paths: list[str], patterns: list[str]) -> None:
    assert patterns_of(paths) == patterns


def test_leaves_in_one_memory_are_named_and_views_beside_each_other_are_not() -> None:
    whole = torch.zeros(4, 6)
    beside = {"a": whole[:2], "b": whole[2:], "none": torch.zeros(0)}
    assert shared_memory(beside) is None
    assert shared_memory({"a": whole[:, :3], "b": whole[:, 3:]}) is None
    assert shared_memory({**beside, "c": whole[1]}) == ("c", "a")
    assert shared_memory({"a": whole, "t": whole.t()}) == ("t", "a")


def test_a_module_whose_leaves_share_memory_is_refused() -> None:
    module = torch.nn.Linear(4, 4, bias=False)
    module.again = torch.nn.Parameter(module.weight.data)
    with pytest.raises(ConfigError) as caught:
        ModuleModel(module, torch.optim.SGD(module.parameters(), lr=0.1), RULES[1:])
    assert "'again'" in caught.value.faults[0].expected + caught.value.faults[0].found


@pytest.mark.parametrize("optimizers", [[], "twice"])
def test_a_list_without_an_optimizer_or_with_one_twice_is_refused(optimizers: Any) -> None:
    module = torch.nn.Linear(4, 4)
    one = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(ConfigError):
        ModuleModel(module, [one, one] if optimizers == "twice" else optimizers, RULES[1:])
