"""Whole runs of the toy in virtual time, and the figures that a run leaves in `summary.json`.

The hosts, cores, wire and supervision are those of a real run; the caller sets the duration of a step, and the events
of each learner. Nothing is checked here beyond what a run checks itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from isthmus.programs.recorder.roles import least_replicas, resolving
from isthmus.programs.recorder.summary import fragment_sizes, roster_counts, summarise
from isthmus.programs.request.program import Program
from isthmus.programs.request.reference import resolve
from isthmus.programs.simulation import toy_task
from isthmus.programs.simulation.universe import FOLDER
from isthmus.programs.simulation.virtual_run import Pace
from isthmus.runtime.errors import RunError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.host.contract import Span, Trace
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim import Climate, Fault, Universe
from isthmus.runtime.sim.universe import BOOT_SECONDS


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a run, as in `summary.json`, its spans, and how often each kind of fault happened."""

    summary: dict[str, Any]
    spans: list[Span]
    faults: dict[str, int]


def measured(
    program: Program,
    *,
    learners: int,
    steps: int,
    pace: Pace,
    faults: Iterable[Fault] = (),
    boot_seconds: float = BOOT_SECONDS,
    seed: int = 0,
    seconds_max: float = 36_000.0,
) -> Measured:
    """Train the toy for `steps` a learner, on average; the summary's `outcome` is how it ended.

    RunError if a body fails, TimeoutError if it does not end.
    """
    graph = toy_task.graph_of(program, learners=learners, steps=steps, seed=seed)
    counts, trace = roster_counts(graph, learners), Trace()

    universe = Universe(
        lower(graph),
        counts,
        seed=seed,
        resolve=resolving(FOLDER, resolve),
        duration=pace.duration,
        jitter=pace.jitter,
        climate=Climate(latency=pace.delay_ms / 1e3, jitter=pace.jitter * pace.delay_ms / 1e3),
        faults=faults,
        least=least_replicas(graph),
        trace=trace,
        boot_seconds=boot_seconds,
    )
    try:
        universe.run(lambda: universe.outcome is not None, seconds_max=seconds_max)
        recorder = universe.last(Replica("recorder", 0))
        if universe.outcome is None or recorder is None:
            raise RunError("the simulated run ended without a word of its recorder")
        summary = summarise(
            recorder.host.published["record"],
            trace.spans,
            program=program.name,
            outcome=universe.outcome,
            learners=learners,
            shards=counts.get("syncer", 0),
            fragment_sizes=fragment_sizes(graph),
            ended=universe.clock.now(),
            cpu_seconds=0.0,
            bytes_sent_by_shards=0,
            tokens_per_batch=toy_task.TOY.tokens_per_batch,
        )
        return Measured(summary, list(trace.spans), dict(universe.injector.counts))
    finally:
        universe.close()
