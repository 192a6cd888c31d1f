"""Runs worker processes that compile, one island after the other, and receives their progress.

This process starts no backend of jax and imports none; a worker's output beside its answers is kept in case it dies.

Figures of whole islands, kept by `isthmus compile` for the placement of a run like the one that was compiled.

Their key is all that they depend on: the sources of isthmus, of program and task, their settings, the batch of the
slot, the kind of the devices and how many an island has.

The description of an island that was compiled for, in words.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.ops.data.positions import of_slot
from isthmus.programs.engine.cluster.handover import digest
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.cluster.placing import CompiledNeeds, Find
from isthmus.programs.engine.islands.kept_programs import CompiledProgram
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import scaled, seconds, size, whole
from isthmus.programs.wings.compile.figures import (
    BATCH,
    CHECKPOINT,
    DEVICES,
    CountedIsland,
    IslandFigures,
    Target,
    summed,
)
from isthmus.runtime.errors import ConfigError, Fault, RunError
from isthmus.runtime.system.children import Child
from isthmus.runtime.system.files import cache_folder, read_bytes, write_bytes
from isthmus.runtime.system.processes import environment, status_name
from isthmus.runtime.system.waiting import readable

WORKER: Final = "isthmus.programs.wings.compile.worker"
HERE: Final = "isthmus.programs.wings.compile.here"
_ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",
    # A compiler without a device writes programs to jax's own cache that it cannot read back.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    # A machine that has no TPU, and is not to look for one in the network.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    # Other processes may load libtpu here: it locks a file that guards a chip, and there is no chip.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_PROGRESS_SECONDS: Final = 1.0
"""Interval of progress reports."""
_LAST_BYTES: Final = 4000
"""Bytes of a dead worker's output that an error shows."""

Hear = Callable[[str, str, float], None]
"""Called with the island's name, the function being compiled, and the seconds spent on the island."""


def check_compiler(doing: str) -> None:
    """ConfigError unless the compiler of TPUs is installed."""
    if find_spec("libtpu") is None:
        do = (
            "Install it beside isthmus: python -m pip install 'isthmus[tpu]', in a clone '.[tpu]'. It is Google's, "
            "under the terms of its Cloud Platform, and 700 MB."
        )
        raise ConfigError(doing, "libtpu, the compiler of TPUs, which needs no TPU", "none in this environment", do)


def compiled_for(
    target: Target, slot: int, run_spec: Mapping[str, Any], on_progress: Hear, *, fit: bool
) -> CountedIsland:
    """The figures of a run with this spec on an island, for this slot's learner; with `fit`, also the largest batch.

    ConfigError if the request is wrong; RunError if the worker dies, or fails.
    """
    kept = cache_folder("ahead")
    where = {"target": target.name, "slot": slot, "kept": None if kept is None else str(kept)}
    request = {"spec": run_spec, **where, "fit": fit}
    answer = _answered(
        WORKER,
        f"compiling for {target.name}",
        request,
        _ENVIRONMENT,
        lambda name, since: on_progress(target.name, name, since),
    )
    if "faults" in answer:
        there = f" (an island {target.name})"
        faults = (Fault(*fault) for fault in answer["faults"])
        raise ConfigError.of(fault._replace(action=fault.action + there) for fault in faults)
    return summed(target, slot, msgspec.convert(answer["answer"], IslandFigures))


def compiled_here(run_spec: Mapping[str, Any], on_progress: Callable[[str, float], None]) -> list[CompiledProgram]:
    """What the learners of a run with this spec call on an island of this machine, compiled, or read where it was kept.

    ConfigError if the request is wrong, or no island is free; RunError if the worker dies, or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = {"spec": run_spec, "folder": folder}
        answer = _answered(HERE, "compiling here", request, environment(computes=True), on_progress)
    if "faults" in answer:
        raise ConfigError.of(Fault(*fault) for fault in answer["faults"])
    return [CompiledProgram(*each) for each in answer["answer"]["programs"]]


def _answered(
    module: str,
    doing: str,
    request: Mapping[str, Any],
    variables: Mapping[str, str],
    on_progress: Callable[[str, float], None],
) -> dict[str, Any]:
    """The answer of a worker, or the faults of the request; RunError where it has neither."""
    with tempfile.TemporaryFile() as noise:
        worker = Child(module, output=noise, variables={**os.environ, **variables})
        try:
            answer = _heard(worker, request, on_progress)
        finally:
            worker.end()
        noise.seek(max(noise.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
        last = noise.read().decode(errors="replace")
    if "answer" not in answer and "faults" not in answer:
        how = answer.get("error") or f"its process ended with {status_name(worker.status or 0)}\n{last}"
        raise RunError(f"{doing} failed: {how.rstrip()}")
    return answer


def _heard(worker: Child, request: Mapping[str, Any], on_progress: Callable[[str, float], None]) -> dict[str, Any]:
    """The last message of a worker; none if it has ended without one."""
    with suppress(OSError):  # It has ended, which its line tells.
        worker.line.send(request)
    begun, doing = time.monotonic(), ""
    while not worker.line.is_over:
        on_progress(doing, time.monotonic() - begun)
        readable([worker.line], _PROGRESS_SECONDS)
        for message in worker.line.hear():
            if "doing" not in message:
                return message
            doing = message["doing"]
    worker.wait()
    return {}


_FORM: Final = 1
"""Counts up when figures mean something else."""
_ISLANDS: Final = "islands"
"""The folder in that of the figures of functions."""


def keep(run_spec: Mapping[str, Any], islands: Mapping[int, tuple[Target, CountedIsland]]) -> None:
    """Keep the figures of a run's islands, by slot; `run_spec` is the run's spec. A full disk costs these figures only.

    Reads all sources on which the figures depend, once.
    """
    folder, job = _folder(), run_spec["job"]
    if folder is None:
        return
    what = _What(job["program"], job["task"], job["settings"], tuple(run_spec["tokens_of_step"]))
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        for slot, (target, island) in islands.items():
            needs = CompiledNeeds(
                memory_bytes=island.memory_bytes,
                limit_bytes=island.memory_limit_bytes,
                products_seconds=island.predicted_products_seconds,
                step_seconds=island.predicted_step_seconds,
            )
            write_bytes(folder / what.file(slot, target.device.kind, target.count), msgspec.json.encode(needs))


def kept_needs(request: Request) -> Find:
    """The kept figures of a request's learners. Reads all sources on which the figures depend, at the first call."""
    folder, job, tokens = _folder(), request.job, request.task.tokens_most
    tokens_by_slot = (tokens,) if isinstance(tokens, int) else tokens
    what = _What(job.program, job.task.text, dict(job.settings), tokens_by_slot)

    def find(machine: Machine, slot: int) -> CompiledNeeds | None:
        if folder is None or machine.device is None or not folder.is_dir():
            return None
        with suppress(OSError, msgspec.DecodeError):
            kept = folder / what.file(slot, machine.device.kind, machine.island_devices)
            return msgspec.json.decode(read_bytes(kept), type=CompiledNeeds)
        return None

    return find


def _folder() -> Path | None:
    kept = cache_folder("ahead")
    return None if kept is None else kept / _ISLANDS


@dataclass(frozen=True)
class _What:
    """The inputs of the figures, except the island: references of program and task, settings, tokens by slot."""

    program: str
    task: str
    settings: Mapping[str, Any]
    tokens: tuple[int, ...]

    def file(self, slot: int, kind: str, devices: int) -> str:
        """The name of the file for the learner in a slot, on `devices` devices of a kind."""
        of_program = [_FORM, self._sources, self.program, self.task, dict(self.settings)]
        of_island = [of_slot(self.tokens, slot), kind, devices]
        return f"{hashlib.sha256(json.dumps([*of_program, *of_island], sort_keys=True).encode()).hexdigest()}.json"

    @cached_property
    def _sources(self) -> str:
        return digest(self.program, self.task)


_HELPS: Final = {
    BATCH: "a smaller batch",
    CHECKPOINT: "jax.checkpoint in the loss",
    DEVICES: "an island of more devices",
}


def lines_of(island: CountedIsland) -> str:
    """The figures of an island as lines; the first says whether it fits."""
    rows = list(_rows(island))
    width = max(len(name) for name, _ in rows)
    fits = "fits" if island.fits else "does not fit"
    there = f"{island.devices} x {island.device_kind}, learner {island.slot}"
    return "\n".join([f"{island.island} ({there}): {fits}", *(f"  {name.ljust(width)}  {text}" for name, text in rows)])


def _rows(island: CountedIsland) -> Iterator[tuple[str, str]]:
    memory = island.memory
    limit = size(island.memory_limit_bytes)
    yield "memory", f"{size(island.memory_bytes)} of the {limit} of each device, in {memory.function}"
    parts = {
        "state": memory.state,
        "batch" if memory.function in ("step", "gradient") else "what it is given": memory.arguments,
        "temporaries": memory.temporaries,
        "code": memory.code,
        "padding": memory.padding,
        "all else": memory.unknown,
    }
    yield "", ", ".join(f"{name} {size(value)}" for name, value in parts.items() if value > 0)
    if island.helps:
        yield "would help", ", or ".join(_HELPS[each] for each in island.helps)
    loops = island.unbounded_loops
    once = f", loops without a known end counted once: {loops}" if loops else ""
    yield "a step", f"{scaled(island.flops_per_device, 'FLOP')} of matrix products on each device{once}"
    if island.predicted_step_seconds is not None:
        products = f"of which its products need {seconds(island.predicted_products_seconds)}"
        yield "", f"predicted: {seconds(island.predicted_step_seconds)} at best, {products}; nothing ran"
    if (batch := island.batch_max) is not None:
        yield "largest batch", f"{batch.rows} (to 1 in 8), {whole(batch.tokens)} tokens: {size(batch.memory_bytes)}"
        if batch.predicted_step_seconds is not None:
            yield "", f"predicted: {seconds(batch.predicted_step_seconds)} a step at best"
    elif island.is_fitted:
        yield "largest batch", "none: the step does not fit with the smallest that the devices can share"
    many = island.collectives
    beside = f"{many.asynchronous} asynchronous, {many.overlapped} with computation scheduled beside them"
    if island.devices > 1 and (many.count or island.fits):  # A refused program has no schedule.
        yield "collectives", f"{many.count} in a step, {beside}" if many.count else "none in a step"
    if pieces := island.fragment_bytes:
        low, high = size(min(pieces)), size(max(pieces))
        yield "fragments", f"{len(pieces)}, of {low}" + (f" to {high}" if low != high else "")
    if island.options:
        yield "options", f"{len(island.options)}, in --json; a run has them where LIBTPU_INIT_ARGS says so"
    versions = ", ".join(f"{name} {version}" for name, version in island.versions.items())
    earlier = ", by an earlier command" if island.is_kept else ""
    yield "compiled", f"{len(island.functions)} functions in {seconds(island.compile_seconds)}{earlier}; {versions}"
    if island.hosts > 1:
        yield "machines", f"{island.hosts}, each with a process of the island"
