"""What people do in a loop: each row of docs/reference/loops.md trains on two islands, of which one is killed, or is
refused before the start."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.programs.island import _loop_model
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.loops import jax_rows, runs, torch_rows
from tests.torch_tasks.loops.ground import groups_of

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "loops.md"
ROWS = {"torch": torch_rows.ROWS, "jax": jax_rows.ROWS}
GROUPS = [(framework, group) for framework, rows in ROWS.items() for group in groups_of(rows)]
LEARNED = 2.2
"""Untrained models have a held-out loss of 2.5, and the best one has 1.7."""
APART = 0.15
"""Losses of two islands that differ in what each keeps for itself, such as an average of its own steps."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], runs.IslandsEnd]:
    """The end of the run in which a group of rows is trained side by side; each is started once."""
    ends = dict[tuple[str, str], runs.IslandsEnd]()

    def end_of(framework: str, group: str) -> runs.IslandsEnd:
        if (framework, group) not in ends:
            names, folder = groups_of(ROWS[framework])[group], tmp_path_factory.mktemp("loops")
            ends[framework, group] = runs.islands(framework, names, 0, folder)
        return ends[framework, group]

    return end_of


@pytest.mark.process
@pytest.mark.parametrize(("framework", "name"), [(each, name) for each, rows in ROWS.items() for name in rows])
def test_a_row_trains_on_two_islands_of_which_one_was_killed(
    framework: str, name: str, ended: Callable[[str, str], runs.IslandsEnd]
) -> None:
    end = ended(framework, ROWS[framework][name].group)
    one, other = end.ends
    assert one.losses[name] < LEARNED
    assert abs(one.losses[name] - other.losses[name]) < APART


@pytest.mark.process
@pytest.mark.parametrize(("framework", "group"), GROUPS)
def test_the_killed_island_went_on_in_its_slot_and_both_have_one_model(
    framework: str, group: str, ended: Callable[[str, str], runs.IslandsEnd]
) -> None:
    end = ended(framework, group)
    first, second = end.begins
    assert (first, second > 0) == (0, True)
    assert [row["restarts"] for row in end.summary["per_learner"]] == [0, 1]
    assert (end.summary["losses_not_finite"] > 0) == (group == "not finite")
    plain = next(iter(ROWS[framework]))
    one, other = end.ends
    assert one.losses[plain] == other.losses[plain]


class NeedsClosure(torch.optim.SGD):
    """As sharpness-aware optimizers of packages have it."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def of(make: Callable[[Any], Any]) -> Any:
    model = torch_rows.Net()
    return _loop_model(model, make(model.parameters()), (("**", "rda"),))


def test_an_optimizer_whose_step_needs_a_closure_is_taken() -> None:
    assert of(lambda parameters: NeedsClosure(parameters, lr=0.1))


@pytest.mark.parametrize("form", ["alone", "in a list"])
def test_lbfgs_is_refused_by_name(form: str) -> None:
    def make(parameters: Any) -> Any:
        optimizer = torch.optim.LBFGS(parameters)
        return optimizer if form == "alone" else [optimizer]

    with pytest.raises(ConfigError) as caught:
        of(make)
    assert "LBFGS" in caught.value.faults[0].found


def test_an_optimizer_whose_step_raises_is_refused_with_what_it_raised() -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("not in train mode")

    with pytest.raises(ConfigError) as caught:
        of(lambda parameters: Odd(parameters, lr=0.1))
    assert "Odd" in caught.value.faults[0].found
    assert "ValueError: not in train mode" in caught.value.faults[0].found


def test_a_lazy_module_is_refused_by_the_leaf_that_has_no_shape() -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    with pytest.raises(ConfigError) as caught:
        _loop_model(model, torch.optim.SGD(model.parameters(), lr=0.1), (("**", "rda"),))
    assert "'0/weight'" in caught.value.faults[0].expected


REFUSED = ["`LBFGS`", "lazy modules without a shape"]


def test_the_table_has_these_rows_and_no_others() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (works|refused) \|", PAGE.read_text(), re.MULTILINE)
    assert [title for title, how in rows if how == "works"] == [
        row.title for each in ROWS.values() for row in each.values()
    ]
    assert [title for title, how in rows if how == "refused"] == REFUSED
