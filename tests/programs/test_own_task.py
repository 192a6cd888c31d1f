"""A task that brings its learner: everything that depends on its framework is asked of the task."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus import At, decoupled_diloco, load, train
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.parameter_trees import named_leaves, structure_of
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.engine.request.environment import compute_on_cpu
from isthmus.programs.engine.request.faults import mesh_faults
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.task_in_hand import differences
from isthmus.programs.task import ModelLeaf, OwnTask
from isthmus.programs.wings.simulation.toy_task import LAYOUT, ToyEvaluation, ToyLearner
from isthmus.runtime.errors import ConfigError, Fault


@dataclass(frozen=True, slots=True)
class Plain(OwnTask):
    """Least squares in NumPy, as the simulator has it; `asked` has what was asked of it."""

    asked: list[str] = field(default_factory=list, compare=False, hash=False)
    rate: float = 0.1

    def batch(self, at: At) -> Any:
        return {"noise": np.float32(0.05) * at.rng().standard_normal(4, np.float32)}

    def prepare(self) -> None:
        self.asked.append("prepare")

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> ToyLearner:
        return ToyLearner(LAYOUT, tuple(fragments), life.seed, np.float32(alpha))

    def evaluator(self, seed: int) -> ToyEvaluation:
        return ToyEvaluation(LAYOUT)

    def leaves(self, seed: int) -> list[ModelLeaf]:
        return [ModelLeaf(each.name, each.shape, each.dtype, each.merge or "rda") for each in LAYOUT]

    def check_first_step(self, batch: Any, seed: int, *, computes: bool) -> tuple[Fault, ...]:
        assert set(batch) == {"noise"}
        self.asked.append(f"check, computes={computes}")
        return (Fault("Looking at it", "this", "that", "Do something."),)

    def learner_bytes(self) -> int:
        return 1234

    def digests(self, seed: int) -> Mapping[str, Any]:
        return {"rate": self.rate}

    def model(self, tensors: Mapping[str, Any], seed: int) -> Any:
        return ["the model", dict(tensors)]


def plain(**more: Any) -> Plain:
    return Plain(tokens_per_batch=8, merge={"embedding": "average", "**": "rda"}, **more)


def test_it_trains_and_its_model_is_what_it_makes_of_the_leaves(tmp_path: Path) -> None:
    task = plain()
    result = train(
        decoupled_diloco(interval=4, fragments=2),
        task,
        tokens=2_000,
        learners=2,
        run_dir=tmp_path / "run",
        transport="inproc",
        quiet=True,
    )
    name, tensors = result.parameters
    assert name == "the model"
    assert {each.name: each.shape for each in LAYOUT} == {key: np.shape(value) for key, value in tensors.items()}
    assert result.summary["eval_loss_final"] < result.summary["eval_loss_initial"]
    again = load(tmp_path / "run", task)[1]
    assert all((again[key] == tensors[key]).all() for key in tensors)
    assert "check, computes=True" in task.asked


def test_the_request_has_its_layout_its_warnings_and_no_gradients(tmp_path: Path) -> None:
    request = prepare("decoupled-diloco", plain(), run={"tokens": 10_000, "learners": 2}, run_dir=tmp_path / "run")
    assert {tensor.name: tensor.merge for tensor in request.job.layout} == {
        each.name: each.merge or "rda" for each in LAYOUT
    }
    assert not request.job.has_gradients
    assert request.warnings[0].action == "Looking at it"
    with pytest.raises(ConfigError):
        prepare("data-parallel", plain(), run={"tokens": 10_000, "learners": 2}, run_dir=tmp_path / "run")
    several = {"tokens": 10_000, "learners": 2, "processes": [2, 1]}
    with pytest.raises(ConfigError):
        prepare("decoupled-diloco", plain(), run=several, run_dir=tmp_path / "run")


def test_an_island_of_several_devices_does_not_fit_it() -> None:
    assert list(mesh_faults(plain(), 1, 0, 0, "an island")) == []
    assert len(list(mesh_faults(plain(), 4, 0, 0, "an island"))) == 1


def test_two_of_them_differ_in_what_they_say_that_they_compute() -> None:
    assert list(differences(plain(), plain(), 0)) == []
    assert list(differences(plain(), plain(rate=0.2), 0)) == ["rate"]


def test_trees_are_walked_without_jax_as_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax  # noqa: F401

    trees = [{"b": 1, "a": [2, None, (3,)]}, 4, {}, [{"z": 5}, {"y": 6}]]
    expected = [named_leaves(tree, "batch") for tree in trees]
    monkeypatch.delitem(sys.modules, "jax")
    assert [named_leaves(tree, "batch") for tree in trees] == expected
    assert structure_of({"a": [1, 2]}) == structure_of({"a": [3, 4]})
    assert structure_of({"a": [1, 2]}) != structure_of({"a": (1, 2)})
    assert structure_of({"a": None}) != structure_of({"a": 1})


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_it_is_said_what_to_install() -> None:
    with pytest.raises(ConfigError) as raised:
        importlib.import_module("isthmus.torch")
    assert "[torch]" in raised.value.faults[0].remedy


JAX = """
class config:
    options = {}
    def update(name, value):
        config.options[name] = value
"""


def test_jax_that_is_imported_later_computes_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jax.py").write_text(JAX)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax")
    before = [*sys.meta_path]
    compute_on_cpu()
    assert "jax" not in sys.modules
    importlib.import_module("colorsys")
    assert importlib.import_module("jax").config.options == {"jax_platforms": "cpu"}
    assert sys.meta_path == before
