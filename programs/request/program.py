"""The program of a run: a graph's builder by name, and the settings for its call.

A Program is frozen data, as a job is: its builder is imported when the graph is built, on the submitting machine and on
every host. Here is also the list of the programs that come with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

from isthmus.programs.request import reference
from isthmus.programs.request.settings import Schema
from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.graph.template import Graph, Job

SHIPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "decoupled-diloco": "isthmus.programs.decoupled:build",
        "streaming-diloco": "isthmus.programs.streaming_diloco:build",
        "diloco": "isthmus.programs.diloco:build",
        "data-parallel": "isthmus.programs.data_parallel:build",
        "elastic-data-parallel": "isthmus.programs.elastic_data_parallel:build",
    }
)
"""The programs of the package, by name, with the references of their builders."""

DEFAULT: Final = "decoupled-diloco"


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
            do = f"{nearest(text, SHIPPED)} Your own is named FILE.py:FUNCTION."
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


def decoupled_diloco(**settings: Any) -> Program:
    """Decoupled DiLoCo (arXiv 2604.21428): learners that never wait, and a syncer that merges what has arrived.

    `settings` are the keys of section `program.`: interval=24, fragments=8, quorum=1, and the others that
    `isthmus.programs.decoupled` describes.
    """
    return Program("decoupled-diloco", **settings)
