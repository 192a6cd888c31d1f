"""What a daemon and its hosts are told of a run: the job in full, as JSON in the run folder.

Every host builds the graph itself from it and compares the fingerprint: no code travels, only references to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from isthmus.programs.fingerprint import fingerprint
from isthmus.programs.program import Program
from isthmus.programs.recording import RUN_FOLDER, with_recorder
from isthmus.programs.request import Request
from isthmus.programs.summary import roster_counts
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph import Graph, Job, Node, Reference, TensorSpec
from isthmus.runtime.store import write_json

SPEC: Final = "spec.json"


@dataclass(frozen=True, slots=True)
class Spec:
    """A run as its processes know it. `roles` gives the replicas of each role, `computing` the roles whose hosts import
    jax and the task, `zero_ns` the instant of the machine's
    monotonic clock that all its times count from, `cpu_seconds` what the command had used by then."""

    run: str
    job: Job
    fingerprint: str
    roles: Mapping[str, int]
    computing: tuple[str, ...]
    zero_ns: int
    cpu_seconds: float

    def graph(self) -> Graph:
        """The graph, built here; ConfigError if it is not the one that was submitted."""
        program = Program(self.job.program, **self.job.settings)
        graph = program.build(self.job)
        with_recorder(graph, self.job)
        found = fingerprint(graph, self.job, program.builder())
        if found != self.fingerprint:
            do = "Use one version of the program and of isthmus everywhere, and do not edit them while a run starts."
            raise ConfigError(f"Building the graph of {self.job.program!r}", self.fingerprint, found, do)
        return graph


def submit(request: Request, *, zero_ns: int, cpu_seconds: float) -> Spec:
    """Write a request's spec into its run folder."""
    counts = roster_counts(request.graph, request.job.learners)
    computing = _computing(request.graph)
    spec = Spec(request.run_dir.name, request.job, request.fingerprint, counts, computing, zero_ns, cpu_seconds)
    job = request.job
    write_json(
        request.run_dir / SPEC,
        {
            "run": spec.run,
            "fingerprint": spec.fingerprint,
            "roles": dict(counts),
            "computing": list(computing),
            "zero_ns": zero_ns,
            "cpu_seconds": cpu_seconds,
            "job": {
                "program": job.program,
                "task": job.task.text,
                "layout": [[tensor.name, list(tensor.shape), tensor.dtype, tensor.averaged] for tensor in job.layout],
                "tokens_per_batch": job.tokens_per_batch,
                "tokens": job.tokens,
                "learners": job.learners,
                "slots_max": job.slots_max,
                "seed": job.seed,
                "settings": dict(job.settings),
            },
        },
    )
    return spec


def load(folder: Path) -> Spec:
    """The spec in a run folder."""
    told: dict[str, Any] = json.loads((folder / SPEC).read_text())
    job = told.pop("job")
    layout = tuple(
        TensorSpec(name, tuple(shape), dtype, averaged) for name, shape, dtype, averaged in job.pop("layout")
    )
    settings = MappingProxyType(job.pop("settings"))
    computing = tuple(told.pop("computing"))
    job = Job(layout=layout, task=Reference(job.pop("task")), settings=settings, **job)
    return Spec(job=job, computing=computing, **told)


def _computing(graph: Graph) -> tuple[str, ...]:
    """The roles of which some node is given something to import: the task."""
    return tuple(sorted({node.role for node in graph.nodes if _imports(node)}))


def _imports(node: Node) -> bool:
    given = [*node.arguments, *node.keywords.values()]
    return any(isinstance(value, Reference) and value != RUN_FOLDER for value in given)
