"""Islands of two ranks whose devices are apart: what they exchange, and what they wait for."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from isthmus.ops.island import torch_device, torch_shards
from isthmus.ops.island.learner_conformance import FIRST, LearnerConformance, Specimen, assert_equal
from isthmus.ops.island.torch_loop import LoopLearner
from isthmus.ops.island.torch_model import own_part
from tests.made_device import H200_LIKE, MadeDevice, Wait
from tests.patience import PATIENCE
from tests.torch_tasks.made_torch import MadeTorch
from tests.torch_tasks.rank_peer import TOKENS, Peer, RankLoop
from tests.torch_tasks.test_rank_learner import specimen_of
from tests.torch_tasks.torch_models import SHAPES, batch, task_of

pytestmark = [pytest.mark.torch, pytest.mark.process]

FRAGMENTS = Specimen(RankLoop, SHAPES, batch, None, task_of().evaluator).fragments
STEPS = 6


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = Peer(tmp_path_factory.mktemp("ranks"), is_apart=True)
    yield peer
    peer.close()


class TestRanksApart(LearnerConformance):
    """As on a CPU: parts of shards cross in threads."""

    @pytest.fixture(params=["ddp", "fsdp"])
    def specimen(self, peer: Peer, request: pytest.FixtureRequest) -> Specimen:
        return specimen_of(peer, request.param)

    def test_merged_leaves_are_zeros_before_it_begins(self, specimen: Specimen) -> None:
        assert_equal(specimen.values(specimen.learner()), specimen.values(specimen.learner(steps=0)))


class Deferred:
    """What a thread of a rank would do, until it is asked for, at the time of a host of its own."""

    def __init__(self, made: MadeDevice) -> None:
        self._made, self._jobs = made, list[Callable[[], None]]()

    def __call__(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)

    def do(self) -> None:
        while self._jobs:
            with self._made.as_host("shards"):
                self._jobs.pop(0)()

    def close(self) -> None:
        assert not self._jobs


class Found(NamedTuple):
    """What a rank has waited for on a made device."""

    waits: list[Wait]
    counts: dict[str, int]
    faults: list[str]
    pairs: list[tuple[Any, Any]]
    """What was captured, beside what a CPU reads; of rank 0."""


def steps_of(rank: int, store: str) -> Found:
    """Some steps of a rank of FSDP2, of which the first ones follow a capture each."""
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    loop = RankLoop("fsdp", FIRST)
    made = MadeDevice()
    mode, work = MadeTorch(made), Deferred(made)
    shards = [own_part(leaf) for leaf in loop.model.merged.values()]
    there = LoopLearner(loop.model, loop.moments, FRAGMENTS, life=FIRST, alpha=0.0)
    expected = [np.array(there.extract(p)) for p in range(len(FRAGMENTS))]
    reached = patch.dict(torch_device._REACHED, {torch.device("cpu"): torch_device.Queued(mode)})
    with reached, patch.object(torch_shards, "OwnThread", lambda: work), mode:
        mode.adopt(shards)
        learner = LoopLearner(loop.model, loop.moments, FRAGMENTS, life=FIRST, alpha=0.0)
        captured: list[Any] = []
        for number in range(STEPS):
            made.launch(H200_LIKE.step, writes=mode._of(shards))
            loop.ranks.count(TOKENS, 0.5)
            learner.step(None, 0.0)
            if number < len(FRAGMENTS):
                captured.append(learner.extract(number))
            else:
                work.do()
                for shard in shards:  # What was captured stays what it was.
                    shard.add_(1.0)
        pairs = [(np.array(each), want) for each, want in zip(captured, expected, strict=True)]
        counts = {what: count for what, count, _ in learner.host_waits.rows()}
        loop.ranks.close()
    waits = [each for each in made.waits if each.host == "learner"]
    return Found(waits, counts, made.faults, pairs if rank == 0 else [])


def tell_steps(connection: Any, rank: int, store: str) -> None:
    """The same of a process."""
    torch.set_num_threads(1)
    connection.send(steps_of(rank, store))


def test_no_rank_waits_for_the_newest_step_to_let_its_shard_leave(tmp_path: Path) -> None:
    context, ranks = multiprocessing.get_context("spawn"), list[Any]()
    try:
        for rank in range(2):
            here, there = multiprocessing.Pipe()
            told = (there, rank, str(tmp_path / "store"))
            ranks.append((context.Process(target=tell_steps, args=told, daemon=True), here))
            ranks[-1][0].start()
            there.close()  # So that one that fails is not waited for.
        assert all(connection.poll(PATIENCE) for _, connection in ranks)
        found: list[Found] = [connection.recv() for _, connection in ranks]
    finally:
        for process, _ in ranks:
            process.kill()
            process.join()
    for each in found:
        assert not [wait for wait in each.waits if wait.is_for_newest or wait.is_copy]
        assert each.counts.pop("step") == STEPS - 1
        assert each.counts.keys() <= {"answer"}  # In the thread that sends.
        assert each.faults == []
    assert len(found[0].pairs) == len(FRAGMENTS)
    for values, expected in found[0].pairs:
        np.testing.assert_array_equal(values, expected)
