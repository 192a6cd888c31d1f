"""Islands of several processes that cannot be are refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.programs.engine.request.faults import process_faults
from isthmus.programs.engine.request.followers import followed
from isthmus.programs.engine.request.program import Program
from isthmus.programs.job import Job, TensorSpec
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Reference

JOB = Job("", Reference("a:b"), (TensorSpec("w", (8, 8), "float32"),), 64, 10_000, 2)


@pytest.mark.parametrize(
    ("program", "processes", "found"),
    [
        ("decoupled-diloco", (2, 1), []),
        ("streaming-diloco", (2,), []),
        ("data-parallel", (2,), ["others"]),
        ("data-parallel", (1, 1), []),
        ("decoupled-diloco", (0, 65), ["0", "65"]),
        ("decoupled-diloco", (2, 2, 2), ["3"]),
    ],
)
def test_only_what_can_be_followed_may_have_several(program: str, processes: tuple[int, ...], found: list[Any]) -> None:
    settings = {} if program == "data-parallel" else {"fragments": 1}
    plans = lower(Program(program, **settings).build(JOB).freeze())
    assert [fault.found for fault in process_faults(plans, [object()], processes, 2)] == found


def test_a_task_with_a_learner_of_its_own_has_one_process() -> None:
    plans = lower(Program("decoupled-diloco", fragments=1).build(JOB).freeze())
    task = SimpleNamespace(prepare=list, learner=list, evaluator=list)
    (fault,) = process_faults(plans, [object(), task], (2,), 2)
    assert fault.found == "one with a learner of its own"
    assert list(process_faults(plans, [task], (1, 1), 2)) == []


def test_who_gives_all_parameters_is_not_followed() -> None:
    """No process of an island has all of them."""
    plan = lower(Program("decoupled-diloco", fragments=1).build(JOB).freeze())["learner"]
    step = followed(plan)
    assert step is not None
    edge = next(edge for edge in plan.edges.values() if edge.source == step.index)
    assert followed(replace(plan, edges={**plan.edges, edge.index: replace(edge, source_port="parameters")})) is None
