"""The learner of an island of two ranks, with DDP and with FSDP2: the suite for learners, and what crosses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Partial

from isthmus.ops.data.batches import At
from isthmus.ops.island.learner_conformance import FIRST, LearnerConformance, Specimen, assert_equal
from isthmus.ops.island.torch_ranks import fault_of_ranks
from tests.torch_tasks.rank_peer import Peer
from tests.torch_tasks.test_loop_learner import Looped
from tests.torch_tasks.torch_models import SHAPES, batch, task_of

pytestmark = [pytest.mark.torch, pytest.mark.process]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = Peer(tmp_path_factory.mktemp("ranks"))
    yield peer
    peer.close()


def specimen_of(peer: Peer, way: str) -> Specimen:
    spoilt = {name: np.full_like(array, np.nan) for name, array in batch(At(0, 0, 0)).items()}
    return Specimen(partial(peer.learner, way), SHAPES, batch, spoilt, task_of().evaluator)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
class TestRanks(LearnerConformance):
    @pytest.fixture
    def specimen(self, peer: Peer, kind: str) -> Specimen:
        return specimen_of(peer, kind)

    def test_merged_leaves_are_zeros_before_it_begins(self, specimen: Specimen) -> None:
        assert_equal(specimen.values(specimen.learner()), specimen.values(specimen.learner(steps=0)))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_ranks_with_one_batch_are_one_process_with_it(peer: Peer, way: str) -> None:
    ranked, alone = specimen_of(peer, way).learner(steps=3), specimen_of(peer, way)
    sole = Looped(alone.fragments, FIRST, 0.0)
    alone.train(sole, 3)
    for one, other in zip(alone.values(ranked), alone.values(sole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    kept = list(ranked.local())
    assert [leaf.shape for leaf in kept[:-1]] == [leaf.shape for leaf in list(sole.learner.local())[:-1]]
    assert sole.learner.take_local(kept)  # One process can go on where two ranks were.


def test_scalars_are_the_mean_of_all_ranks_a_boundary_later(peer: Peer) -> None:
    specimen = specimen_of(peer, "ddp")
    learner = specimen.learner(steps=0)
    first = learner.step(batch(At(0, 0, 0)), 0.0)["loss"]
    own = float(np.asarray(first))
    first.mean = None
    learner.step(batch(At(0, 0, 1)), 0.0)
    assert first.mean == pytest.approx(own)


def test_what_ranks_cannot_exchange_is_named(peer: Peer) -> None:
    module = torch.nn.Linear(4, 1)
    assert not fault_of_ranks(module)
    mesh = DeviceMesh("cpu", [0, 1], _init_backend=False)
    partial_sum = DTensor.from_local(torch.zeros(1), mesh, [Partial()], run_check=False)
    module.bias = torch.nn.Parameter(partial_sum)
    assert fault_of_ranks(module) == "'bias' with P(sum)"
