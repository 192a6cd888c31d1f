"""Work that is carried over an adoption, by learners of a module: all of it comes into the model."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import Program
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.torch_tasks.torch_models import task_of

pytestmark = pytest.mark.torch


def test_nothing_that_a_module_trains_is_overwritten(world: Worlds) -> None:
    program = Program("decoupled-diloco", carry=True, fragments=2, interval=8, outer_lr=0.7, outer_momentum=0.3)
    summary = world.run(program, task=task_of(), learners=2, steps=32, jitter=0.0).summary
    assert (summary["tokens_overlapped"], summary["merged_share"]) == (0, 1.0)
    assert np.isfinite(summary["eval_loss_final"])
