"""Learners in PyTorch on a made device: what they wait for, and whether anything is used too soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.island.learner_conformance import LearnerConformance, Specimen
from tests.made_device import Steps, Table, Wait, measured
from tests.made_steps import MadeSteps
from tests.ops.bodies import Spec
from tests.torch_tasks.made_torch import MadeTorch, made_torch
from tests.torch_tasks.test_torch_learner import specimen_of
from tests.torch_tasks.torch_models import SHAPES, task_of

pytestmark = pytest.mark.torch

TABLE = Table()
STEPS = 24


@pytest.fixture
def mode() -> Iterator[MadeTorch]:
    with made_torch() as made:
        yield made


# -- the device itself -------------------------------------------------------------------------------------------------


def two_steps(mode: MadeTorch) -> tuple[Any, Any]:
    """The results of two steps of 88 ms each, which nobody has waited for."""
    mode.operation = TABLE.step
    value = mode.room((4,), torch.float32)
    first = value + 1
    return first, first + 1


def test_a_value_that_is_read_waits_for_all_that_was_queued_before(mode: MadeTorch) -> None:
    first, _ = two_steps(mode)
    first[0].item()
    assert mode.made.host.now == pytest.approx(2 * TABLE.step, rel=1e-3)
    assert [each.is_for_newest for each in mode.made.waits] == [True]


def test_a_copy_to_memory_that_is_not_pinned_waits_likewise_and_one_to_pinned_memory_does_not(mode: MadeTorch) -> None:
    first, _ = two_steps(mode)
    pinned = mode.pinned((4,), torch.float32)
    pinned.copy_(first, non_blocking=True)
    assert mode.made.host.now < 1e-3
    torch.empty(4).copy_(first, non_blocking=True)
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


# -- learners ----------------------------------------------------------------------------------------------------------


def steps_of(mode: MadeTorch, push: str = "float32", steps: int = STEPS, **more: Any) -> tuple[MadeSteps, Steps]:
    """A learner's steps of 88 ms; each of its two fragments counts as one of 62 MB."""
    task = task_of(**more)
    parts = partition([Spec(name, shape) for name, shape in SHAPES.items()], 2)
    learner = MadeSteps(task, parts, mode.made, push=push)
    learner.make(0)
    before = mode.operations
    learner.make(1)
    mode.operation = TABLE.step / (mode.operations - before)
    return learner, measured(mode.made, steps, lambda number: learner.make(number + 2))


def waits_of(found: Steps) -> list[Wait]:
    return [each for step in found.waits for each in step]


def test_no_step_waits_for_the_newest_one_and_each_for_the_one_before_by_a_mark(mode: MadeTorch) -> None:
    learner, found = steps_of(mode)
    assert not [each for each in waits_of(found) if each.is_for_newest or each.is_copy]
    steps = [row for row in learner.learner.host_waits.rows() if row[0] == "step"]
    assert [count for _, count, _ in steps] == [STEPS + 1]  # Each but the first, before which there was none.
    assert mode.made.faults == []
    assert found.seconds == pytest.approx(TABLE.step, rel=0.01)


class TestOnAMadeDevice(LearnerConformance):
    """Learners do the same there, and nothing is used too soon."""

    @pytest.fixture
    def specimen(self, mode: MadeTorch) -> Iterator[Specimen]:
        yield specimen_of(task_of())
        assert mode.made.faults == []
