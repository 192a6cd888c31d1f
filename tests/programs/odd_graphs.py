"""Graphs that a user might write: bodies that are told nothing of the end, or do not care, and roles of any name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from isthmus import Batches, Graph, InnerStep
from isthmus.programs.job import Job
from isthmus.runtime.clock import milliseconds
from isthmus.runtime.graph.template import Every, Latest, Queue

TOKENS = 64


class Deaf:
    """Trains for ever: it reports how much, and has no port by which it could hear of the end."""

    outputs = ("progress",)

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, batch: Any) -> Any:
        self.tokens += TOKENS
        return {"progress": {"tokens": self.tokens}}


class DeafModel(Deaf):
    """The same, with a model that an evaluator can take the mean of."""

    outputs = ("progress", "parameters")

    def __call__(self, batch: Any) -> Any:
        report = super().__call__(batch)
        return {**report, "parameters": {"w": np.full((32, 1), 1.0, np.float32), "b": np.zeros(1, np.float32)}}


class Promises(Deaf):
    """The same, with a final model that never comes."""

    outputs = ("progress", "final")


class DeafToAll(Deaf):
    """The same, on the batches of all learners."""

    collects = ("batch",)


class DeafModelToAll(DeafModel):
    """The same, with a model."""

    collects = ("batch",)


class Obeys(Deaf):
    """Ends when it is told to, and says so."""

    is_finished = False

    def __call__(self, batch: Any, control: Any = None) -> Any:
        self.is_finished = control is not None and control["stop"]
        report = super().__call__(batch)["progress"]
        return {"progress": {**report, "phase": "final" if self.is_finished else "stepping"}}


class Watches:
    """Whatever comes: a role of its own, with nothing to say."""

    outputs = ("seen",)
    collects = ("report",)

    def __call__(self, report: Any = None) -> Any:
        return None


def _graph(job: Job, body: Any, *, role: str = "learner", replicas: tuple[int, int] = (1, 64)) -> Graph:
    graph = Graph("odd")
    learner = graph.role(role, replicas=replicas)
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node("train", body)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.train(
        reports=step["progress"],
        mean_of=step["parameters"] if "parameters" in step.outputs else None,
        model=step["final"] if "final" in step.outputs else None,
        control=[step["control"]] if step.input("control") else [],
    )
    return graph


def deaf(job: Job) -> Graph:
    return _graph(job, Deaf)


def deaf_model(job: Job) -> Graph:
    return _graph(job, DeafModel)


def one_deaf_model(job: Job) -> Graph:
    return _graph(job, DeafModel, replicas=(1, 1))


def promises(job: Job) -> Graph:
    return _graph(job, Promises)


def obeys(job: Job) -> Graph:
    return _graph(job, Obeys)


def without_learners(job: Job) -> Graph:
    return _graph(job, Deaf, role="pupil", replicas=(2, 5))


def or_none(job: Job) -> Graph:
    return _graph(job, DeafModel, role="pupil", replicas=(0, 3))


def watched(job: Job, *, replicas: int = 1) -> Graph:
    """InnerStep, whose reports go to a role of the program's own, too, by a Queue and by Latest."""
    graph = Graph("watched")
    learner = graph.role("learner", replicas=(1, replicas))
    watch = graph.role("watcher", replicas=(1, 1))
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node("inner-step", partial(InnerStep, job.task, emit_every=5))
    queue = watch.node("queue", Watches)
    latest = watch.node("latest", Watches, fires=Every(milliseconds(50)))
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(step["progress"], queue["report"], Latest(), to=watch.all)
    graph.edge(step["progress"], latest["report"], Latest(), to=watch.all)
    graph.train(reports=step["report"], mean_of=step["parameters"], control=step["control"])
    return graph


def two_that_report(job: Job) -> Graph:
    graph = _graph(job, Deaf)
    other = graph.role("other", replicas=(1, 1))
    again = other.node("again", DeafToAll)
    graph.edge(graph.nodes[0]["batch"], again["batch"], Latest(), to=other.all)
    graph.train(reports=again["progress"])
    return graph


def mean_of_others(job: Job) -> Graph:
    graph = _graph(job, Deaf)
    other = graph.role("other", replicas=(1, 1))
    again = other.node("again", DeafModelToAll)
    graph.edge(graph.nodes[0]["batch"], again["batch"], Latest(), to=other.all)
    graph.train(mean_of=again["parameters"])
    return graph


def with_own_control(job: Job) -> Graph:
    graph = _graph(job, Obeys)
    graph.edge(graph.nodes[0]["batch"], graph.nodes[1]["control"], Latest())
    return graph


def with_own_recorder(job: Job) -> Graph:
    graph = _graph(job, Deaf)
    graph.role("recorder", replicas=(1, 1)).node("record", Watches, fires=Every(milliseconds(50)))
    return graph


def with_own_evaluator(job: Job) -> Graph:
    graph = _graph(job, DeafModel)
    graph.role("evaluator", replicas=(1, 1)).node("judge", Watches, fires=Every(milliseconds(50)))
    return graph


class Teacher:
    """Sends a value of 8 kB a firing."""

    outputs = ("lesson",)

    def __call__(self) -> Any:
        return {"lesson": np.zeros(1000)}


class Student:
    """Trains on each lesson, and reports nothing but that."""

    outputs = ("progress",)

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, lesson: Any) -> Any:
        self.tokens += TOKENS
        return {"progress": {"tokens": self.tokens}}


def school(job: Job) -> Graph:
    """A student that waits for its teacher, without a role of learners."""
    graph = Graph("school")
    desk, bench = graph.role("desk", replicas=(1, 1)), graph.role("bench", replicas=(1, 1))
    teach, study = desk.node("teach", Teacher), bench.node("study", Student)
    graph.edge(teach["lesson"], study["lesson"], Queue(2), to=bench.all)
    graph.train(reports=study["progress"])
    return graph
