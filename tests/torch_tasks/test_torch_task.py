"""Requests of tasks in PyTorch: the layout, what is refused, and what two tasks differ in."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.task_checks import first_step_warnings, has_gradients, layout_of
from isthmus.programs.engine.request.task_in_hand import differences
from isthmus.runtime.errors import ConfigError
from tests.patience import PATIENCE
from tests.torch_tasks.torch_models import EXAMPLE, SHAPES, Net, batch, squares, task_of

pytestmark = pytest.mark.torch


def test_a_layout_has_each_weight_once_and_statistics_as_means() -> None:
    specs = {spec.name: spec for spec in layout_of(task_of(), 0)}
    assert {name: spec.shape for name, spec in specs.items()} == SHAPES
    assert {name for name, spec in specs.items() if spec.merge == "mean"} == {"norm/running_mean", "norm/running_var"}
    kinds = {leaf.name: leaf.kind for leaf in task_of().leaves(0)}
    assert {name for name, kind in kinds.items() if kind == "local"} == {"norm/num_batches_tracked", "fixed"}
    assert not has_gradients(task_of(), list(specs.values()))


def test_rules_hold_for_parameters_and_local_for_buffers_too() -> None:
    task = task_of(merge={"last/**": "average", "norm/running_*": "local", "**": "rda"})
    specs = {spec.name: spec.merge for spec in layout_of(task, 0)}
    assert specs["last/weight"] == "average"
    assert specs["first/weight"] == "rda"
    assert "norm/running_mean" not in specs


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own, as it is imported.
def test_names_are_those_of_the_module_that_was_compiled() -> None:
    assert layout_of(task_of(lambda: torch.compile(Net())), 0) == layout_of(task_of(), 0)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Unused(Net):
    def forward(self, x: Any) -> Any:
        return self.first(x)[:, :3]


def of_others(module: Any) -> Any:
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


REFUSED: dict[str, Any] = {
    "no module": {"build": lambda: 3},
    "error in build": {"build": lambda: 1 / 0},
    "frozen altogether": {"build": Frozen},
    "loss is a vector": {"loss": lambda module, given: (module(given["x"]) - given["y"]).mean(1)},
    "loss is a number": {"loss": lambda module, given: 1.0},
    "loss without gradient": {"loss": lambda module, given: squares(module, given).detach()},
    "loss not finite": {"loss": lambda module, given: squares(module, given) * math.nan},
    "error in loss": {"loss": lambda module, given: module(given["z"])},
    "no optimizer": {"optimizer": lambda module: None},
    "an optimizer of others": {"optimizer": of_others},
    "a rate that is no number": {"rate": lambda progress: None},
    "a rule that matches nothing": {"merge": {"lost/**": "rda", "**": "rda"}},
    "all local": {"merge": {"**": "local"}},
    "double precision": {"build": lambda: Net().double()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_train_is_refused_with_one_message(name: str) -> None:
    task = task_of(**REFUSED[name])
    with pytest.raises(ConfigError) as raised:
        layout_of(task, 0), first_step_warnings(task, 0, computes=True)
    assert len(raised.value.faults) >= 1
    if name.startswith("error in"):
        assert re.search(r"test_torch_task\.py:\d+", str(raised.value))


@pytest.mark.parametrize(
    "more", [{"build": Net()}, {"optimizer": None}, {"rate": 3}, {"tokens_per_batch": 0}, {"merge": {"**": "sum"}}]
)
def test_arguments_that_are_none_are_refused_at_once(more: Any) -> None:
    with pytest.raises(ConfigError):
        task_of(**more)


def test_a_parameter_without_a_gradient_is_a_warning() -> None:
    (warning,) = first_step_warnings(task_of(Unused), 0, computes=True)
    assert "'last/weight'" in warning.found
    assert first_step_warnings(task_of(), 0, computes=True) == ()


def test_tasks_that_compute_the_same_are_the_same() -> None:
    task = task_of()
    assert list(differences(task, task_of(), 0)) == []
    others = {
        "optimizer": lambda module: torch.optim.AdamW(module.parameters(), lr=2e-2),
        "loss": lambda module, given: 2 * squares(module, given),
        "rate": lambda progress: 1.0,
        "batch": lambda at: {name: array * np.float32(2) for name, array in batch(at).items()},
    }
    for name, value in others.items():
        assert name in list(differences(task, replace(task, **{name: value}), 0))


def test_memory_is_told_of_parameters_gradients_and_moments() -> None:
    values = sum(math.prod(shape) for name, shape in SHAPES.items() if "running" not in name)
    assert 16 * values <= task_of().learner_bytes() <= 16 * values + 256


@pytest.mark.process
def test_a_request_is_prepared_without_jax(tmp_path: Path) -> None:
    code = f"""
import sys
from isthmus.programs.engine.request.request import prepare
run = {{"tokens": 100_000, "learners": 2}}
request = prepare("decoupled-diloco", {f"{EXAMPLE}:task"!r}, run=run, run_dir={str(tmp_path / "run")!r})
assert len(request.job.layout) == 21, request.job.layout
assert "jax" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


def test_programs_that_average_gradients_refuse_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        prepare("data-parallel", task_of(), run={"tokens": 10_000, "learners": 2}, run_dir=tmp_path / "run")


def test_lines_added_to_the_example_are_few() -> None:
    """The import, and what follows the comment."""
    text = EXAMPLE.read_text()
    added = text[text.index("# With the import") :].splitlines()[1:]
    assert 1 + len(added) <= 10


@pytest.mark.parametrize(("variable", "threads"), [("2", 2), ("1", 1), ("2,1", 3), ("", 3)])
def test_an_evaluation_has_the_threads_that_its_host_was_given(
    variable: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where torch was loaded before, with another number."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    torch.set_num_threads(3)
    try:
        task_of().evaluator(0)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
