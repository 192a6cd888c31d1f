"""Whether a request fits the islands of this machine, and the numbers of its processes with which an elastic island may
train: those over which its batch and leaves divide.

What this machine can know of its devices without a backend of jax is checked before anything is written: mesh, leaves
and batches have to divide over them, and there have to be enough for all islands.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from isthmus.ops.gang.mesh_sharding import AXES_DEFAULT, STAGE
from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import islands_of
from isthmus.programs.engine.request.faults import mesh_faults
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.request.spec import Here
from isthmus.programs.task import TaskLayout
from isthmus.runtime.errors import ConfigError, Fault

_CPU_COUNT: Final = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def sizes_here(request: Request) -> list[list[int]]:
    """The result of `sizes_on` for a run on this machine alone; ConfigError as there, and if the task does not fit its
    islands here."""
    processes = request.run.processes
    learners = request.job.learners + sum(processes) - len(processes)
    each = islands_of(Here("127.0.0.1", learners), environment.divided_here()).devices
    each = each or cpu_devices(os.environ)
    if not request.run.devices_min and each is not None:
        check_islands(request, [each * count for count in _counts(request)])
    return sizes_on(request, processes, [each or 1] * len(processes))


def cpu_devices(variables: Mapping[str, str]) -> int | None:
    """The devices of a process that computes on the CPU; None where jax is told to compute elsewhere."""
    if variables.get("JAX_PLATFORMS", "cpu").split(",")[0] not in ("", "cpu"):
        return None
    forced = _CPU_COUNT.findall(variables.get("XLA_FLAGS", ""))
    return int(variables.get("JAX_NUM_CPU_DEVICES") or (forced[-1] if forced else 1))


def check_islands(request: Request, devices: Sequence[int]) -> None:
    """ConfigError, with every fault, if mesh, leaves or batches do not fit islands of so many devices, by slot."""
    is_alike = not isinstance(request.task.tokens_per_batch, tuple)
    different = {(count, 0 if is_alike else slot): slot for slot, count in reversed(list(enumerate(devices)))}
    if faults := [
        fault
        for (count, _), slot in sorted(different.items(), key=lambda each: each[1])
        if count > 1 or (isinstance(request.task, TaskLayout) and request.task.axes != AXES_DEFAULT)
        for fault in _faults(request, count, slot)
    ]:
        raise ConfigError.of(faults)


def check_in_process(request: Request) -> Request:
    """This request, if it fits the devices of this process, which its learners share; ConfigError as `check_islands`.
    Starts a backend of jax."""
    if "jax" in sys.modules:  # A task that computes without has no devices.
        import jax

        learners = request.job.learners
        check_islands(request, [max(jax.local_device_count() // learners, 1)] * learners)
    return request


def _counts(request: Request) -> Iterator[int]:
    """The processes of each learner's island."""
    processes = request.run.processes
    return (processes[slot] if slot < len(processes) else 1 for slot in range(request.job.learners))


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
        task = request.task_of(slot)
        if count > 1 and counts == [count] and isinstance(task, TaskLayout) and STAGE in dict(task.axes):
            expected = f"stages that an island of fewer than {count} processes has devices for"
            do = "Leave run.devices_min out, or use fewer stages (mesh=, task.stages)."
            raise ConfigError(doing, expected, f"{dict(task.axes)[STAGE]} stages, {each} devices a process", do)
        sizes.append(counts if count > 1 else [])
    return sizes


def _faults(request: Request, devices: int, slot: int) -> list[Fault]:
    where = f"the island of learner {slot}, {devices} device{'' if devices == 1 else 's'}"
    return list(mesh_faults(request.task_of(slot), devices, request.job.seed, slot, where))
