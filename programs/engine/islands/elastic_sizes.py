"""The numbers of its processes with which an elastic island may train: those over which its batch and leaves divide."""

from __future__ import annotations

import os
from collections.abc import Sequence

from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import islands_of
from isthmus.programs.engine.request.faults import mesh_faults
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.request.spec import Here
from isthmus.runtime.errors import ConfigError, Fault


def sizes_here(request: Request) -> list[list[int]]:
    """The result of `sizes_on` for a run on this machine alone; ConfigError as there."""
    if not request.run.devices_min:
        return []
    learners = request.job.learners + sum(request.run.processes) - len(request.run.processes)
    each = islands_of(Here("127.0.0.1", learners), environment.find()).devices
    each = each or int(os.environ.get("JAX_NUM_CPU_DEVICES") or 1)
    return sizes_on(request, request.run.processes, [each] * len(request.run.processes))


def sizes_on(request: Request, processes: Sequence[int], devices: Sequence[int]) -> list[list[int]]:
    """The numbers of processes with which each slot's island may train; `devices` are those of each of its processes.

    None for an island of one process, or if run.devices_min is not set. ConfigError if no number is possible.
    """
    least = request.run.devices_min
    if not least:
        return []
    doing, sizes = "Reading run.devices_min", []
    if max(processes, default=1) < 2:
        do = "Say which islands have several, by run.processes or the cluster file, or leave run.devices_min out."
        raise ConfigError(doing, "an island of several processes", "none", do)
    for slot, (count, each) in enumerate(zip(processes, devices, strict=True)):
        most = count * each
        if count > 1 and least > most:
            do = "Lower it."
            raise ConfigError(doing, f"at most the {most} devices of the island of learner {slot}", str(least), do)
        counts = [n for n in range(1, count + 1) if n * each >= least and not _faults(request, n * each, slot)]
        if count > 1 and count not in counts:
            raise ConfigError.of(_faults(request, most, slot))
        sizes.append(counts if count > 1 else [])
    return sizes


def _faults(request: Request, devices: int, slot: int) -> list[Fault]:
    where = f"the island of learner {slot}, {devices} devices"
    return list(mesh_faults(request.task, devices, request.job.seed, slot, where))
