"""Learners in jax on a made device: what they wait for, and what waits for them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from isthmus.ops.island import jax_learner
from isthmus.ops.island.jax_device import HOST, Dispatching, reach
from tests.made_device import MadeDevice, Steps, measured
from tests.made_steps import MadeSteps
from tests.ops.island.made_jax import DeepTask, MadeJax

STEPS = 12


class Pending:
    """An array that is not computed yet."""

    is_awaited = False

    def is_ready(self) -> bool:
        return False

    def block_until_ready(self) -> None:
        self.is_awaited = True


def steps_of(device: Any, push: str, monkeypatch: pytest.MonkeyPatch, made: MadeDevice) -> tuple[MadeSteps, Steps]:
    task = DeepTask()
    parts = task.fragments()
    monkeypatch.setattr(jax_learner, "reach", lambda devices: device)
    learner = MadeSteps(task, parts, made, push=push)
    if isinstance(device, MadeJax):
        device.scale = 124e6 / sum(part.size for part in parts)
        device.step = learner.learner._functions.step
        made.copied["to host"] = 0
    return learner, measured(made, STEPS, learner.make)


@pytest.mark.slow
def test_no_step_waits_for_the_newest_one_and_each_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    for push in ("float32", "int4"):
        device = MadeJax()
        learner, found = steps_of(device, push, monkeypatch, device.made)
        waits = [each for step in found.waits for each in step]
        assert not [each for each in waits if each.is_for_newest or each.is_copy]
        counts = {what: count for what, count, _ in device.waits.rows()}
        assert counts["step"] == STEPS - 1  # Each but the first, before which there was none.
        assert found.seconds < 1.015 * device.made.table.step
        assert {what for what, _, _ in learner.reports[-1]["host_waits"]} <= set(counts)
        copied.append(device.made.copied["to host"])
    assert copied[1] == pytest.approx(copied[0] / 8, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("allocates_ahead", [False, True])
def test_the_device_waits_for_the_copy_of_what_is_adopted_and_for_nothing_else(
    allocates_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = MadeJax(allocates_ahead=allocates_ahead)
    _, found = steps_of(device, "float32", monkeypatch, device.made)
    copy = 4 * 124e6 / 8 / device.made.table.bytes_second
    assert found.idle == pytest.approx(0.0 if allocates_ahead else copy / 3, rel=0.02, abs=1e-9)
    assert not [each for step in found.waits for each in step if each.is_for_newest or each.is_copy]


@pytest.mark.slow
def test_answers_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = MadeJax()
    there, _ = steps_of(device, "float32", monkeypatch, device.made)
    here, _ = steps_of(HOST, "float32", monkeypatch, MadeDevice())
    assert len(here.answers) == len(there.answers) > 2
    for one, other in zip(here.answers, there.answers, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_a_cpu_is_waited_for_by_nobody_and_what_leaves_another_device_is_an_array_to_numpy_and_to_jax() -> None:
    assert reach(jax.local_devices()) is HOST
    device = Dispatching()
    array = device.run(jax.numpy.arange, 3.0)
    leaving = device.leave(array, "answer")
    array.block_until_ready()
    assert leaving.is_ready()
    device.wait(array, "step")
    assert device.waits.rows() == []  # What is there is not waited for.
    pending = Pending()
    device.wait(pending, "step")
    assert pending.is_awaited
    for _ in range(2):
        assert np.asarray(leaving, np.float64).tolist() == [0.0, 1.0, 2.0]
    assert device.there(leaving) is device.there(array) is HOST.there(array) is array
    assert np.array(device.read(array)).tolist() == [0.0, 1.0, 2.0]
    assert [(what, count) for what, count, _ in device.waits.rows()] == [("step", 1), ("answer", 1), ("leaves", 1)]
    assert HOST.waits.rows() == []
