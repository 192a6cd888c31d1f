"""Learners in PyTorch on a made device: what they wait for, and whether anything is used too soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.island import torch_device
from isthmus.ops.island.learner_conformance import LearnerConformance, Specimen, assert_equal
from isthmus.ops.island.torch_device import Queued
from isthmus.ops.island.torch_loop import LoopEvaluation
from tests.made_device import MadeDevice, Steps, Table, Wait, measured
from tests.made_steps import MadeSteps
from tests.ops.bodies import Spec
from tests.patience import PATIENCE
from tests.torch_tasks.made_torch import MadeTorch, made_torch
from tests.torch_tasks.test_loop_learner import Looped
from tests.torch_tasks.test_torch_learner import specimen_of
from tests.torch_tasks.torch_models import SHAPES, batch, task_of

pytestmark = pytest.mark.torch

TABLE = Table()
STEPS = 12


@pytest.fixture
def mode() -> Iterator[MadeTorch]:
    with made_torch() as made:
        yield made


# -- the device itself -------------------------------------------------------------------------------------------------


def two_steps(mode: MadeTorch) -> tuple[Any, Any]:
    """The results of two steps of 88 ms each, which nobody has waited for."""
    mode.product = TABLE.step
    value = mode.room((4, 4), torch.float32)
    first = value @ value
    return first, first @ value


def test_a_value_that_is_read_waits_for_all_that_was_queued_before(mode: MadeTorch) -> None:
    first, _ = two_steps(mode)
    first[0, 0].item()
    assert mode.made.host.now == pytest.approx(2 * TABLE.step, rel=1e-3)
    assert [each.is_for_newest for each in mode.made.waits] == [True]


def test_a_copy_to_memory_that_is_not_pinned_waits_likewise_and_one_to_pinned_memory_does_not(mode: MadeTorch) -> None:
    first, _ = two_steps(mode)
    pinned = mode.pinned((4, 4), torch.float32)
    pinned.copy_(first, non_blocking=True)
    assert mode.made.host.now < 1e-3
    torch.empty((4, 4)).copy_(first, non_blocking=True)
    assert mode.made.host.now == pytest.approx(2 * TABLE.step, rel=1e-3)


def test_what_is_copied_is_there_once_a_host_has_waited_for_it(mode: MadeTorch) -> None:
    source, pinned = mode.room((4,), torch.float32), mode.pinned((4,), torch.float32)
    source.fill_(3.0)
    pinned.copy_(source, non_blocking=True)
    assert torch.isnan(pinned).all()
    mode.wait(mode.mark(mode.computing()))
    assert pinned.tolist() == [3.0] * 4


def test_what_is_used_on_another_queue_without_an_order_is_a_fault(mode: MadeTorch) -> None:
    source, pinned, other = mode.room((4,), torch.float32), mode.pinned((4,), torch.float32), mode.queue()
    source.fill_(3.0)
    with mode.on(other):
        pinned.copy_(source, non_blocking=True)
    source.fill_(4.0)
    assert len(mode.made.faults) == 2  # It was read too soon, and then written too soon.


def test_memory_that_another_queue_may_use_when_it_is_given_back_is_a_fault_unless_it_is_kept(mode: MadeTorch) -> None:
    other = mode.queue()
    for is_kept in (True, False):
        source, pinned = mode.room((4,), torch.float32), mode.pinned((4,), torch.float32)
        mode.order(other, mode.mark(mode.computing()))
        with mode.on(other):
            pinned.copy_(source, non_blocking=True)
        if is_kept:
            mode.keep(source, other)
        del source
        assert len(mode.made.faults) == (not is_kept)


def test_of_what_arrives_no_more_is_on_its_way_than_was_expected(mode: MadeTorch) -> None:
    device: Any = torch_device.reach(torch.device("cpu"))
    leaf, values = mode.room((1000,), torch.float32), torch.ones(1000)
    two_steps(mode)
    for _ in range(2):
        leaf.copy_(device.arrive(values))
    device._arriving_max = 0
    assert device.waits.rows() == []
    device.expect(9000)
    for _ in range(2):
        leaf.copy_(device.arrive(values))
    assert [(what, count) for what, count, _ in device.waits.rows()] == [("arrivals", 1)]
    assert mode.made.host.now == pytest.approx(2 * TABLE.step, rel=1e-3)
    assert mode.made.faults == []


# -- learners ----------------------------------------------------------------------------------------------------------


class Deep(nn.Sequential):
    """Some layers of the same size, in whole blocks of codes."""

    def __init__(self) -> None:
        layers = [nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(7)]
        super().__init__(nn.Linear(4, 64, bias=False), *layers, nn.Linear(64, 3))


def steps_of(
    mode: MadeTorch, push: str = "float32", steps: int = STEPS, fragments: int = 8, **terms: Any
) -> tuple[MadeSteps, Steps]:
    """A learner's steps of 88 ms; its fragments count as large as those of a model of 124 million parameters."""
    task = task_of(Deep)
    specs = [Spec(leaf.name, leaf.shape) for leaf in task.leaves(0)]
    parts = partition(specs, fragments)
    mode.scale = 124e6 / sum(part.size for part in parts)
    learner = MadeSteps(task, parts, mode.made, push=push, **terms)
    mode.let_take(TABLE.step, learner.make)
    mode.made.copied["to host"] = 0
    return learner, measured(mode.made, steps, lambda number: learner.make(number + 2))


def waits_of(found: Steps) -> list[Wait]:
    return [each for step in found.waits for each in step]


def test_no_step_waits_for_the_newest_one_and_each_for_the_one_before_by_a_mark(mode: MadeTorch) -> None:
    learner, found = steps_of(mode)
    assert not [each for each in waits_of(found) if each.is_for_newest or each.is_copy]
    counts = {what: count for what, count, _ in learner.learner.host_waits.rows()}
    assert counts["step"] == STEPS + 1  # Each but the first, before which there was none.
    assert counts["answer"] == len(learner.fragments) + len(learner.answers)  # With the first versions.
    assert mode.made.faults == []
    assert found.seconds == pytest.approx(TABLE.step, rel=0.01)
    assert {what for what, _, _ in learner.reports[-1]["host_waits"]} == set(counts) == {"step", "answer", "scalars"}


class TestOnAMadeDevice(LearnerConformance):
    """Learners do the same there, and nothing is used too soon."""

    @pytest.fixture
    def specimen(self, mode: MadeTorch) -> Iterator[Specimen]:
        yield specimen_of(task_of())
        assert mode.made.faults == []


@pytest.mark.parametrize("push", ["float32", "int4"])
def test_answers_are_those_of_a_cpu(push: str) -> None:
    with made_torch() as mode:
        there, _ = steps_of(mode, push, 6)
        assert mode.made.faults == []
    here, _ = steps_of(MadeTorch(MadeDevice()), push, 6)  # A device that nobody reaches.
    assert len(here.answers) == len(there.answers) > 2
    for one, other in zip(here.answers, there.answers, strict=True):
        np.testing.assert_allclose(one.pop("norms"), other.pop("norms"), rtol=1e-6)
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_of_four_bits_an_eighth_of_a_fragment_is_copied_to_the_host(mode: MadeTorch) -> None:
    copied = []
    for push in ("float32", "int4"):
        steps_of(mode, push, 4)
        copied.append(mode.made.copied["to host"])
    assert mode.made.faults == []
    assert copied[1] == pytest.approx(copied[0] / 8, rel=0.1)


def test_a_copy_of_all_leaves_waits_for_no_step_after_it(mode: MadeTorch) -> None:
    specimen = specimen_of(task_of())
    learner = specimen.learner(steps=1)
    mode.let_take(TABLE.step, lambda number: specimen.train(learner, 1, number) and None)
    expected = learner.tree(learner.copy())
    copied = learner.copy()
    learner.step(batch(At(0, 0, 3)), 0.0)
    before = len(mode.made.waits)
    found = learner.tree(copied)
    assert_equal(list(found.values()), list(expected.values()))
    assert not [each for each in mode.made.waits[before:] if each.is_for_newest or each.is_copy]
    assert mode.made.faults == []


def test_a_users_own_loop_waits_for_the_step_before_alone_and_what_it_evaluates_is_given_back(mode: MadeTorch) -> None:
    specimen = Specimen(Looped, SHAPES, batch, None, task_of().evaluator)
    learner = specimen.learner(steps=0)
    mode.adopt([each for state in learner.optimizer.state.values() for each in state.values()])
    mode.let_take(TABLE.step, lambda number: specimen.train(learner, 1, number) and None)
    before, counted = len(mode.made.waits), dict(_counts(learner))
    losses = [learner.step(batch(At(0, 0, number)), 0.0)["loss"] for number in range(6)]
    waits = mode.made.waits[before:]
    assert len(waits) == 5  # The step before the first one is done: its loss was read.
    assert not [each for each in waits if each.is_for_newest or each.is_copy]
    assert [name for name, count in _counts(learner).items() if count > counted.get(name, 0)] == ["step"]
    assert losses[0].is_ready()
    assert not losses[-1].is_ready()
    assert np.isfinite(float(np.asarray(losses[-1])))
    held = specimen.values(learner)
    model = learner.learner._model
    judge = LoopEvaluation(model, lambda module: next(module.parameters()).detach().sum(), settle=int, is_beside=True)
    given = {path: np.full(tuple(leaf.shape), 2.0, np.float32) for path, leaf in model.merged.items()}
    assert judge.metrics(given)["loss"] == 2.0 * next(learner.module.parameters()).numel()
    assert _counts(learner)["evaluation"] == 1
    assert_equal(specimen.values(learner), held)
    assert mode.made.faults == []


def _counts(learner: Any) -> dict[str, int]:
    return {what: count for what, count, _ in learner.host_waits.rows()}


def test_work_that_is_carried_over_an_adoption_on_the_device_is_what_the_host_computes() -> None:
    found = []
    for is_there in (True, False):
        with made_torch() if is_there else nullcontext():
            learner = specimen_of(task_of()).learner(steps=1)
            since = learner.extract(0)
            learner.step(batch(At(0, 0, 1)), 0.0)
            now, new = np.array(learner.extract(0)), np.arange(1000, dtype=np.float32)[: np.asarray(since).size]
            if not learner.carry(0, new, since):
                assert not is_there
                learner.replace(0, new + (now - since))
            found.append(np.array(learner.extract(0)))
    assert_equal([found[0]], [found[1]])


def test_threads_of_a_process_let_values_arrive_by_one_device_at_once() -> None:
    class Driver:
        """One that is slow to be reached, so that threads meet."""

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: nullcontext()

        def is_reached(self, mark: Any) -> bool:
            return False

        def wait(self, mark: Any) -> None:
            time.sleep(0)

        def room(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype)

        pinned = room

        def now(self) -> int:
            return 0

    device = Queued(Driver())
    values = torch.zeros(1 << 12)
    device._arriving_max = 3 * values.numel() * values.element_size()
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(lambda: [device.arrive(values) for _ in range(200)]) for _ in range(4)]:
            each.result(PATIENCE)
