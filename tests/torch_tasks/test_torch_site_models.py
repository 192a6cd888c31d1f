"""The models that a learner in PyTorch leaves for its site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from isthmus.ops.data.batches import At
from isthmus.ops.data.site_folders import GLOBAL, OWN, folder_of
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.system.disk import DISK
from tests.ops.bodies import Context, Spec, update
from tests.ops.learner.test_inner_step import drive
from tests.torch_tasks.torch_models import task_of

pytestmark = pytest.mark.torch
SITE = SiteTerms("0" * 32, bytes=40_000, tokens=10_000, keeps_own=True)


def test_both_models_are_left_and_the_own_one_is_that_before_the_last_adoption(tmp_path: Path) -> None:
    task = replace(task_of(), site=SITE)
    parts = partition([Spec(leaf.name, leaf.shape) for leaf in task.leaves(0) if leaf.kind != "local"], 2)
    context = Context()
    context.disk, context.folder = DISK, tmp_path  # type: ignore[attr-defined]
    body = InnerStep(task, fragments=parts, report_every=2, run=RunTerms(tokens=1000))
    body.open(context)
    for count, value in ((0, 0.1), (1, 0.2)):
        drive(body, update={("syncer/0", part.index): update(part, count, value) for part in parts})
        drive(body, batch=task.batch(At(0, 0, count)))
    before = [np.array(body._learner.extract(part.index), np.float32) for part in parts]
    drive(body, update={("syncer/0", part.index): update(part, 2, 0.5, kind="final") for part in parts})
    body.close()
    for part, values in zip(parts, before, strict=True):
        own, of_all = (
            load_file(folder_of(tmp_path, 0) / name / f"fragment-{part.index}.safetensors") for name in (OWN, GLOBAL)
        )
        np.testing.assert_array_equal(np.concatenate([own[unit.name].ravel() for unit in part.units]), values)
        assert all(np.all(each == 0.5) for each in of_all.values())
        assert not np.all(values == 0.5)


def test_the_bits_of_a_run_are_the_same_with_and_without(world: Worlds) -> None:
    losses = [
        world.run(task=replace(task_of(), **terms), learners=2, steps=60, jitter=0.0).eval_loss
        for terms in ({}, {"site": SITE})
    ]
    assert losses[0] == losses[1]
