"""The fingerprint changes with everything that hosts must agree on, and with nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus import Program
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.fingerprint import fingerprint, sources
from isthmus.programs.job import Job, TensorSpec
from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Latest, Queue, Reference
from tests.runtime.graph.example_bodies import collecting

RING = """
from isthmus.runtime.graph.template import Graph, Latest, Queue

def step(own, neighbour=None):
    return own

def build(job, *, capacity: int = 2):
    graph = Graph("ring")
    learner = graph.role("learner", replicas=(2, 8))
    node = learner.node("step", step)
    graph.edge(node["result"], node["own"], Queue(capacity=capacity, initial=({"b": {1, 2, 3}, "a": "text"},)))
    graph.edge(node["result"], node["neighbour"], Latest(), to=learner.next)
    return graph
"""

JOB = Job(
    program="ring.py:build",
    task=Reference("mine.py:task"),
    layout=(TensorSpec("w", (4, 2), "float32"),),
    tokens_per_batch=8,
    tokens=1000,
    settings={"capacity": 2},
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with ring.py; imports are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(reference, "_loaded", {})
    (tmp_path / "ring.py").write_text(RING)
    yield tmp_path
    sys.modules.pop("ring", None)


def of_ring(job: Job = JOB) -> str:
    program = Program(job.program)
    return fingerprint(program.build(job).freeze(), job, program.builder())


@pytest.mark.process
def test_processes_agree_whatever_their_hash_seed_and_folder(folder: Path) -> None:
    code = (
        "from isthmus import Program\n"
        "from isthmus.programs.engine.request.fingerprint import fingerprint\n"
        "from isthmus.programs.job import Job, TensorSpec\n"
        "from isthmus.runtime.graph.template import Reference\n"
        f"job = {JOB!r}\n"
        "program = Program(job.program)\n"
        "print(fingerprint(program.build(job).freeze(), job, program.builder()))\n"
    )
    other = folder / "other"
    other.mkdir()
    shutil.copy(folder / "ring.py", other)
    found = set()
    for seed, where in (("0", folder), ("1", folder), ("12345", other)):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=where, env=environment)
        found.add(done.stdout.strip())
    assert found == {of_ring()}


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"tokens": 1001},
        {"learners": 5},
        {"slots_max": 17},
        {"tokens_per_batch": 9},
        {"task": Reference("mine.py:other")},
        {"settings": {"capacity": 3}},
        {"layout": (TensorSpec("w", (2, 4), "float32"),)},
        {"layout": (TensorSpec("w", (4, 2), "float32", merge="average"),)},
    ],
)
def test_every_part_of_the_job_counts(folder: Path, changed: dict[str, Any]) -> None:
    assert of_ring(replace(JOB, **changed)) != of_ring()


def test_the_folder_of_a_file_does_not_count(folder: Path) -> None:
    moved = replace(JOB, program=f"{folder}/ring.py:build", task=Reference("/somewhere/else/mine.py:task"))
    assert of_ring(moved) == of_ring()


def test_the_source_of_the_program_counts(folder: Path) -> None:
    before = of_ring()
    (folder / "ring.py").write_text(RING + "\n# Another line.\n")
    assert of_ring() != before
    (folder / "ring.py").write_text(RING)
    assert of_ring() == before


@collecting("own")
def first(own: Any) -> Any:
    return own


@collecting("own")
def second(own: Any) -> Any:
    return own


class Body:
    outputs = ("result",)

    def __init__(self, *arguments: Any, **keywords: Any) -> None: ...

    def __call__(self, own: Any, other: Any = None) -> Any: ...


def of_graph(
    name: str = "g",
    role: str = "learner",
    replicas: tuple[int, int] = (1, 4),
    node: str = "n",
    body: Any = first,
    policy: Any = Queue(capacity=2, initial=(1,)),  # noqa: B008
    to_next: bool = False,
    arguments: tuple[Any, ...] = (),
    **options: Any,
) -> str:
    graph = Graph(name)
    owner = graph.role(role, replicas=replicas)
    vertex = owner.node(node, partial(body, *arguments), **options)
    graph.edge(vertex["result"], vertex["own"], policy, to=owner.next if to_next else None)
    return fingerprint(graph.freeze(), JOB, first)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "h"},
        {"role": "worker"},
        {"replicas": (1, 5)},
        {"node": "m"},
        {"body": second},
        {"policy": Queue(capacity=3, initial=(1,))},
        {"policy": Queue(capacity=2, initial=(2,))},
        {"policy": Queue(capacity=2, initial=(True,))},
        {"policy": Queue(capacity=2, initial=(1.0,))},
        {"policy": Queue(capacity=2, initial=("1",))},
        {"policy": Latest()},
        {"policy": Latest("key")},
        {"to_next": True},
        {"fires": AnyOf("own")},
        {"fires": Every(1)},  # type: ignore[arg-type]
        {"never_waits": True},
        {"body_may_wait": True},
    ],
)
def test_every_part_of_the_graph_counts(changed: dict[str, Any]) -> None:
    assert of_graph(**changed) != of_graph()


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


ALIKE: list[tuple[Any, Any]] = [
    ({1, 2, "x"}, {"x", 2, 1}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Point(1), Point(1)),
    (Plain([1]), Plain([1])),
    (np.arange(3), np.arange(3)),
    (np.float32(2), np.float32(2)),
    (partial(first, own=1), partial(first, own=1)),
    (Reference("/a/mine.py:task"), Reference("/b/mine.py:task")),
]
DIFFERENT: list[tuple[Any, Any]] = [
    ((1, 2), [1, 2]),
    (1, 1.0),
    (0.1, 0.1 + 2**-53),
    (b"a", "a"),
    (Point(1), Point(2)),
    (Plain(1), Plain(2)),
    (np.arange(3), np.arange(3.0)),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (partial(first, own=1), partial(first, own=2)),
    (first, second),
    (Point, Plain),
    (Reference("a"), "a"),
    (None, "None"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_arguments_that_are_alike(one: Any, other: Any) -> None:
    assert of_graph(body=Body, arguments=(one,)) == of_graph(body=Body, arguments=(other,))
    assert of_graph(body=partial(Body, argument=one)) == of_graph(body=partial(Body, argument=other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_arguments_that_are_different(one: Any, other: Any) -> None:
    assert of_graph(body=Body, arguments=(one,)) != of_graph(body=Body, arguments=(other,))


def test_arguments_that_hold_themselves_are_refused() -> None:
    knot = Plain(None)
    knot.value = [knot]
    with pytest.raises(GraphError, match="node 'n': expected arguments that are data"):
        of_graph(body=Body, arguments=(knot,))


def test_sources_are_those_of_all_operators_where_one_is_used() -> None:
    from isthmus.ops.data.batches_node import Batches

    assert list(sources([first])) == [first.__module__]
    assert {"isthmus.ops.data.batches_node", "isthmus.ops.kernels.averaging", "isthmus.ops.learner.inner_step"} <= set(
        sources([Batches])
    )
    namespace: dict[str, Any] = {}
    exec("def typed(own): pass", namespace)
    assert sources([namespace["typed"]]) == {}
