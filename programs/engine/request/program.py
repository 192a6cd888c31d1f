"""A program: a graph's builder by name, and the settings for its call: frozen data, as a job is.

Its builder is imported when the graph is built, on the submitting machine and on every host. Decides what a name stands
for, and what a builder may return; what makes a request of it is `request`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from isthmus.programs import DEFAULT, SHIPPED
from isthmus.programs.engine.request import reference
from isthmus.programs.job import Job
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.graph.template import Graph


@final
@dataclass(frozen=True, slots=True, init=False)
class Program:
    """A shipped program by name, or 'package.module:function' or 'file.py:function', with settings for its builder.

    A file's path is relative to the current folder at the time the Program is made. Preparing a request checks that the
    builder exists and takes the settings, with everything else.
    """

    reference: str
    settings: Mapping[str, Any]

    def __init__(self, reference_or_name: str = DEFAULT, /, **settings: Any) -> None:
        object.__setattr__(self, "reference", reference.absolute(reference_or_name))
        object.__setattr__(self, "settings", MappingProxyType(settings))

    @property
    def is_shipped(self) -> bool:
        """Whether it is part of the package."""
        return self.reference in SHIPPED

    @property
    def name(self) -> str:
        """A short name: a shipped program's own, or that of the module with the builder."""
        if self.is_shipped:
            return self.reference
        return reference.parse(self.reference, self._doing).stem

    @property
    def _doing(self) -> str:
        return f"Loading the program {self.reference!r}"

    def builder(self) -> Callable[..., Any]:
        """The function that builds the graph; ConfigError if there is no program or no function of this name."""
        text = SHIPPED.get(self.reference, self.reference)
        if ":" not in text:
            do = _of_script(text) or f"{nearest(text, SHIPPED)} Your own is named FILE.py:FUNCTION."
            raise ConfigError(self._doing, "a shipped program, or package.module:function", repr(text), do)
        builder = reference.load(text, self._doing)
        if not callable(builder):
            do = "Name the function that builds the graph."
            raise ConfigError(self._doing, "a function build(job, ...)", reference.kind(builder), do)
        function: Callable[..., Any] = builder
        return function

    def schema(self) -> Schema:
        """The builder's keywords as settings: its parameters after the job."""
        return Schema.of("program", self.builder(), skip=1)

    def build(self, job: Job) -> Graph:
        """The graph of a job; ConfigError if the builder fails or returns something else.

        RequestErrors of a builder outside the package get the line that raised them.
        """
        builder = self.builder()
        doing = f"Building the graph of {self.reference!r}"
        if self.is_shipped:
            graph = builder(job, **job.settings)
        else:
            with reference.explained(doing, "a graph", reference.file_of(builder)):
                graph = builder(job, **job.settings)
        if not isinstance(graph, Graph):
            raise ConfigError(doing, "a Graph", reference.kind(graph), "Return the graph that the function has built.")
        return graph


def _of_script(text: str) -> str:
    """What to do with a Python file where a program is expected; "" for another text."""
    path = Path(text)
    if path.suffix != ".py" or not path.is_file():
        return ""
    tasks = [f"--task {text}:{name}" for name in reference.tasks_in(path)]
    named = " or ".join(tasks) or f"--task {text}:NAME"
    return f"A script with a training loop is started by --loop {text}, a task in it by {named}."


def decoupled_diloco(**settings: Any) -> Program:
    """Decoupled DiLoCo (arXiv 2604.21428): learners that never wait, and a syncer that merges what has arrived.

    `settings` are the keys of section `program.`: fragments, interval, quorum, push, and the others that
    `isthmus.programs.decoupled` describes.
    """
    return Program("decoupled-diloco", **settings)


def streaming_diloco(**settings: Any) -> Program:
    """Streaming DiLoCo (arXiv 2501.18512): one fragment after another, and learners that wait for each in its turn."""
    return Program("streaming-diloco", **settings)


def diloco(**settings: Any) -> Program:
    """DiLoCo (arXiv 2311.08105): inner steps alone, then all learners wait for the mean of their outer gradients."""
    return Program("diloco", **settings)


def data_parallel(**settings: Any) -> Program:
    """Data-parallel training: learners average their gradients at every step, and wait for each other."""
    return Program("data-parallel", **settings)


def elastic_data_parallel(**settings: Any) -> Program:
    """Data-parallel training that goes on with the learners that are left."""
    return Program("elastic-data-parallel", **settings)
