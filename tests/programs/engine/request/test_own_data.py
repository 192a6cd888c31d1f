"""A machine's own data: in whose task they stand, and which tasks take none."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.request import new_spec, reference, spec
from isthmus.programs.engine.request.own_data import OwnData, on_own_data, own_data_faults
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.slot_tasks import SlotTasks
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.ids import Replica

TERMS = SiteTerms("0" * 32, 4000, 4000, is_told=False)


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    for name, word in (("ours", "abc "), ("theirs", "xyz ")):
        (tmp_path / f"{name}.txt").write_text(word * 1000)
    return str(tmp_path / "ours.txt"), str(tmp_path / "theirs.txt")


def spec_on(ours: str, theirs: str, own: OwnData | None) -> spec.Spec:
    request = prepare(run={"tokens": 20_000, "learners": 2}, task_settings={"data": [theirs], "batch": 4})
    data: dict[str, Any] = new_spec.of(request, zero_ns=0, cpu_seconds=0.0)
    return spec.read({**data, "here": {**data["here"], "own_data": None if own is None else asdict(own)}})


def test_learners_of_the_machine_train_on_its_data_and_all_else_is_the_runs(texts: tuple[str, str]) -> None:
    ours, theirs = texts
    on = spec_on(ours, theirs, OwnData((ours,), TERMS))
    learner, evaluator = Replica("learner", 1), Replica("evaluator", 0)
    assert on.job == spec_on(ours, theirs, None).job
    assert on.task_of(evaluator) == on.job.task.text
    keywords = reference.parse(on.task_of(learner), "Testing").keywords or {}
    former = reference.parse(on.job.task.text, "Testing").keywords or {}
    assert {**former, "data": keywords["data"]} == keywords
    assert list(keywords["data"]) == [ours]
    task, shared = (on.resolving(each)(on.job.task) for each in (learner, evaluator))
    assert isinstance(task, Task)
    assert (task.site, shared.site) == (TERMS, None)
    first = {name: next(iter(each.evaluation_batches(0))) for name, each in (("ours", task), ("theirs", shared))}
    assert {name: set(bytes(batch["tokens"].astype("u1"))) for name, batch in first.items()} == {
        "ours": set(b"abc "),
        "theirs": set(b"xyz "),
    }
    assert on.resolving(learner, lambda one: one.text)(Reference("other.py:task")) == "other.py:task"


def test_a_site_gives_no_host_the_task_of_the_run_on_files_that_the_run_names(texts: tuple[str, str]) -> None:
    ours, theirs = texts
    told = spec_on(ours, theirs, OwnData((ours,), TERMS))
    learner, evaluator = Replica("learner", 1), Replica("evaluator", 0)
    on = replace(told, here=replace(told.here, is_site=True))
    assert on.fault_of(learner) is None
    assert on.resolving(learner)(on.job.task).site == TERMS
    without = replace(on, here=replace(on.here, own_data=None))
    for one, replica in ((on, evaluator), (without, learner), (without, evaluator)):
        assert one.fault_of(replica) is not None
        with pytest.raises(ConfigError):
            one.resolving(replica)(one.job.task)
    assert on.resolving(evaluator, lambda one: one.text)(Reference("other.py:task")) == "other.py:task"


def test_held_out_sets_of_the_home_are_not_looked_for() -> None:
    text = reference.called(SHIPPED_TASK, {"data": ("/home/x",), "sets": {"code": "/home/code"}, "batch": 4})
    assert reference.parse(on_own_data(text, ("/a", "/b")), "Testing").keywords == {"data": ["/a", "/b"], "batch": 4}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/x/mine.py:task", "mine.py:task"),
        (reference.called(SHIPPED_TASK, {"router": "/x/router"}), "task.router"),
        (SlotTasks(SHIPPED_TASK, ["/x/mine.py:task"]).text, "mine.py:task"),
    ],
)
def test_tasks_that_cannot_take_them_are_refused(text: str, found: str) -> None:
    assert [fault.found for fault in own_data_faults(text, "beta")] == [found]


def test_the_shipped_tasks_take_them() -> None:
    assert not list(own_data_faults(reference.called(SHIPPED_TASK, {"batch": 4}), "beta"))
