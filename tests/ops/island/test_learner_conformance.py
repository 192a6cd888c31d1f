"""The learners in jax, of the simulator, and of the example in NumPy, by the suite for learners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.island.contract import evaluation_of
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.learner_conformance import LearnerConformance, Specimen
from isthmus.programs.engine.request import reference
from isthmus.programs.wings.simulation.toy_task import TOY
from tests.ops.bodies import SmallTask

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "numpy_task.py"
SMALL = SmallTask()
SHAPES: dict[str, tuple[int, ...]] = {"w": (4, 3), "inner/b": (3,), "inner/s": ()}


class TestJax(LearnerConformance):
    @pytest.fixture
    def specimen(self) -> Specimen:
        batch = SMALL.batch(At(0, 0, 0))
        return Specimen(
            lambda fragments, life, alpha: Learner(SMALL, fragments, life=life, alpha=alpha),
            SHAPES,
            SMALL.batch,
            {name: np.full_like(array, np.nan) for name, array in batch.items()},
            lambda seed: evaluation_of(SMALL, seed),
        )


class TestToy(LearnerConformance):
    @pytest.fixture
    def specimen(self) -> Specimen:
        def make(fragments: Any, life: Any, alpha: float) -> Any:
            return TOY.learner(fragments, life=life, alpha=alpha)

        shapes = {tensor.name: tensor.shape for tensor in TOY.layout}
        return Specimen(make, shapes, TOY.batch, {"noise": np.full(4, np.nan, np.float32)}, TOY.evaluator)


class TestExample(LearnerConformance):
    @pytest.fixture
    def specimen(self) -> Specimen:
        task = reference.load(f"{EXAMPLE}:task", "Loading the example")

        def make(fragments: Any, life: Any, alpha: float) -> Any:
            return task.learner(fragments, life=life, alpha=alpha)

        first = task.batch(At(0, 0, 0))
        spoilt = {name: np.full_like(array, np.nan) for name, array in first.items()}
        return Specimen(make, {leaf.name: leaf.shape for leaf in task.leaves(0)}, task.batch, spoilt, task.evaluator)
