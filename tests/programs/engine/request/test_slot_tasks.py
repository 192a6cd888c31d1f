"""Slots that train different tasks: who imports which, what all must have alike, and what a request says of them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.cluster.handover import digest
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.request import new_spec, reference, spec
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.engine.request.slot_tasks import SlotTasks, references_of, task_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.ids import Replica, follower

TASK = """
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jnp.zeros((4, SIZE)), "b": jnp.zeros(SIZE)}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] + params["b"]) ** 2)
def batch(at): return {"x": at.rng().normal(size=(8, 4)).astype(np.float32)}

task = Task(init, loss, batch, tokens_per_batch=TOKENS, optimizer=optax.sgd(0.1), merge=MERGE)
"""
OTHER = {"SIZE": "2", "TOKENS": "8", "MERGE": '{"**": "rda"}'}
NAMES = ("one", "two", "wide", "ruled", "many", "by_slot")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tasks")
    changes: dict[str, dict[str, str]] = {
        "one": {},
        "two": {},
        "wide": {"SIZE": "3"},
        "ruled": {"MERGE": '{"b": "mean", "**": "rda"}'},
        "many": {"TOKENS": "(8, 16)"},
    }
    for name, change in changes.items():
        text = TASK
        for word, value in {**OTHER, **change}.items():
            text = text.replace(word, value)
        (made / f"{name}.py").write_text(text)
    (made / "by_slot.py").write_text('def task(slot): return "two.py:task" if slot % 2 else "one.py:task"\n')
    return made


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(reference, "_loaded", {})
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


def request_of(*tasks: str, run: dict[str, Any] | None = None, **more: Any) -> Request:
    return prepare(task=list(tasks), run={"tokens": 10_000, "learners": 2, **(run or {})}, **more)


def test_one_reference_names_them_all() -> None:
    tasks = SlotTasks("/a (b)/one.py:task", ["/x/two.py:make(lr = 0.1)"], {"b.c": "three.py:task"})
    assert SlotTasks.read(tasks.text) == tasks
    assert references_of(tasks.text) == ("/a (b)/one.py:task", "/x/two.py:make(lr = 0.1)", "three.py:task")
    assert references_of("one.py:task") == ("one.py:task",)
    assert reference.absolute(tasks.text, Path("/elsewhere")) == tasks.text
    assert reference.split(tasks.text)[0] == SlotTasks.__module__


def test_each_host_has_the_task_of_its_slot_and_the_evaluator_the_homes() -> None:
    text = SlotTasks.by_slot(["one.py:t", "two.py:t", "three.py:t", "three.py:t"]).text
    learners = [task_of(text, Replica("learner", slot), "") for slot in range(5)]
    assert learners == ["one.py:t", "two.py:t", "three.py:t", "three.py:t", "three.py:t"]
    assert task_of(text, follower(Replica("learner", 1), 2), "") == "two.py:t"
    assert task_of(text, Replica("evaluator", 0), "") == "one.py:t"
    on = SlotTasks("one.py:t", machines={"beta": "two.py:t"}).text
    assert [task_of(on, Replica("learner", 0), machine) for machine in ("alpha", "beta")] == ["one.py:t", "two.py:t"]
    assert task_of(on, Replica("evaluator", 0), "beta") == "one.py:t"


def test_a_request_of_several_tasks(folder: Path) -> None:
    request = request_of("one.py:task", "two.py:task")
    assert list(request.tasks) == [f"{folder}/one.py:task", f"{folder}/two.py:task"]
    assert request.task is request.task_of(0)
    assert request.task_of(1) is request.task_of(7) is not request.task
    config = tomllib.loads(request.config_text)
    again = prepare(task=config["run"]["task"], run={"tokens": 10_000, "learners": 2})
    assert again.fingerprint == request.fingerprint
    assert list(again.tasks) == list(request.tasks)
    run_spec = spec.read(new_spec.of(request, zero_ns=0, cpu_seconds=0.0))
    assert run_spec.task_of(Replica("learner", 1)) == f"{folder}/two.py:task"
    named = run_spec.resolving(Replica("learner", 1), lambda one: one.text)
    assert [named(each) for each in (run_spec.job.task, Reference("x.py:t"))] == [f"{folder}/two.py:task", "x.py:t"]
    with pytest.raises(ConfigError, match="expected one task for all learners"):
        request.in_one_process()


def test_the_fingerprint_covers_the_task_of_each_slot() -> None:
    prints = [
        request_of(*names).fingerprint
        for names in (
            ("one.py:task",),
            ("one.py:task", "two.py:task"),
            ("one.py:task", "two.py:task", "one.py:task"),
        )
    ]
    prints.append(request_of("one.py:task", machine_tasks={"beta": "two.py:task"}).fingerprint)
    assert len(set(prints)) == len(prints)


def test_a_function_of_the_slot_names_them(folder: Path) -> None:
    request = prepare(task="by_slot.py:task", run={"tokens": 10_000, "learners": 2})
    assert [request.task_of(slot) is request.task for slot in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("other", "expected", "found"),
    [
        ("wide.py:task", "'b' as float32[2], merged by 'rda'", "'b' as float32[3], merged by 'rda'"),
        ("ruled.py:task", "'b' as float32[2], merged by 'rda'", "'b' as float32[2], merged by 'mean'"),
        ("many.py:task", "tokens_per_batch = 8", "(8, 16)"),
    ],
)
def test_a_task_that_is_not_alike_is_refused_with_the_first_leaf(other: str, expected: str, found: str) -> None:
    with pytest.raises(ConfigError) as error:
        request_of("one.py:task", other)
    (fault,) = error.value.faults
    assert (fault.expected, fault.found) == (expected, found)
    assert other in fault.action


def test_wrong_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)none\.py.*nothing there|none\.py"):
        request_of("one.py:task", "none.py:task")
    with pytest.raises(ConfigError, match="expected a Task"):
        request_of("one.py:task", "two.py:batch")
    with pytest.raises(ConfigError, match="expected a Task, found a function of the slot"):
        request_of("by_slot.py:task", "one.py:task")


def test_a_machine_permits_and_compares_every_one(folder: Path) -> None:
    text = SlotTasks(f"{folder}/one.py:task", machines={"beta": f"{folder}/two.py:task"}).text
    config = MachineConfig(modules=(f"{folder}/one.py",))
    assert [fault.found for fault in config.faults("decoupled-diloco", text, "beta")] == [repr(f"{folder}/two.py:task")]
    before = digest("decoupled-diloco", text)
    source = (folder / "two.py").read_text()
    (folder / "two.py").write_text(source + "# another\n")
    assert digest("decoupled-diloco", text) != before
    (folder / "two.py").write_text(source)


CLUSTER = """
[run]
learners = 2
tokens = 10_000
task = "one.py:task"
[[machine]]
name = "alpha"
address = "tcp://127.0.0.1:7400"
islands = 1
[[machine]]
name = "beta"
address = "tcp://127.0.0.1:7401"
islands = 1
"""


def test_machines_of_a_cluster_have_tasks(folder: Path, typed: Callable[..., Any]) -> None:
    (folder / "cluster.toml").write_text(CLUSTER + 'task = "wide.py:task"\n')
    result = typed(folder, "graph", "--cluster", "cluster.toml")
    assert result.exit_code == 2
    assert "wide.py:task' with the run's: expected 'b' as float32[2]" in result.stderr


def test_the_command_takes_one_for_each_slot(folder: Path, typed: Callable[..., Any]) -> None:
    (folder / "listed.toml").write_text('[run]\ntask = ["one.py:task", "ruled.py:task"]\n')
    for words in (["--task", "one.py:task", "--task", "ruled.py:task"], ["--config", "listed.toml"]):
        result = typed(folder, "train", *words)
        assert result.exit_code == 2
        assert "'b' as float32[2], merged by 'mean'" in result.stderr
    assert not (folder / "runs").exists()
