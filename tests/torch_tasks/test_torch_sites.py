"""A site whose learners are in PyTorch: the same evaluation, and the same bits with and without it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.programs.family import recorded
from tests.torch_tasks.torch_models import Net, task_of

pytestmark = pytest.mark.torch
SITE = SiteTerms("00112233445566778899aabbccddeeff", bytes=40_000, tokens=10_000)


def test_a_learner_in_pytorch_evaluates_both_models_and_its_bits_stay(world: Worlds) -> None:
    made = []
    for terms in ({}, {"site": SITE}):
        task = replace(task_of(partial(Net, dropout=0.2)), evaluation=1, **terms)
        with recorded() as record:
            made.append((world.run(task=task, learners=2, steps=120, jitter=0.0), record))
    (without, one), (with_site, other) = made
    assert one.updates == other.updates
    assert one.answers == other.answers
    assert without.eval_loss == with_site.eval_loss
    (site,) = with_site.summary["sites"]
    assert site["is_final"]
    assert site["global_last"] == pytest.approx(with_site.eval_loss)
    assert site["own_last"] not in (None, site["global_last"])
    assert {point["kind"] for point in site["history"]} == {"initial", "during", "final"}
