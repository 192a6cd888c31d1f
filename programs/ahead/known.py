"""Figures of whole islands, kept by `isthmus compile` for the placement of a run like the one that was compiled.

Their key is all that they depend on: the sources of isthmus, of program and task, their settings, the batch of the
slot, the kind of the devices and how many an island has.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.ops.data.batches import of_slot
from isthmus.programs.ahead.island import Island
from isthmus.programs.ahead.targets import Target
from isthmus.programs.cluster.digest import digest
from isthmus.programs.cluster.needs import Compiled, Find
from isthmus.programs.request.environment import cache_folder
from isthmus.programs.request.request import Request
from isthmus.runtime.graph.placement import Machine
from isthmus.runtime.system.files import write_bytes

_FORM: Final = 1
"""Counts up when figures mean something else."""
_ISLANDS: Final = "islands"
"""The folder in that of the figures of functions."""


def keep(told: Mapping[str, Any], islands: Mapping[int, tuple[Target, Island]]) -> None:
    """Keep the figures of a run's islands, by slot; `told` is the run's spec. A full disk costs these figures only.

    Reads all sources on which the figures depend, once.
    """
    folder, job = _folder(), told["job"]
    if folder is None:
        return
    what = _What(job["program"], job["task"], job["settings"], tuple(told["tokens_of_step"]))
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        for slot, (target, island) in islands.items():
            found = Compiled(
                memory_bytes=island.memory_bytes,
                limit_bytes=island.memory_limit_bytes,
                products_seconds=island.predicted_products_seconds,
                step_seconds=island.predicted_step_seconds,
            )
            write_bytes(folder / what.file(slot, target.device.kind, target.count), msgspec.json.encode(found))


def finder(request: Request) -> Find:
    """The kept figures of a request's learners. Reads all sources on which the figures depend, at the first call."""
    folder, job, tokens = _folder(), request.job, request.task.tokens_per_batch
    given = (tokens,) if isinstance(tokens, int) else tokens
    what = _What(job.program, job.task.text, dict(job.settings), given)

    def find(machine: Machine, slot: int) -> Compiled | None:
        if folder is None or machine.device is None or not folder.is_dir():
            return None
        with suppress(OSError, msgspec.DecodeError):
            kept = folder / what.file(slot, machine.device.kind, machine.island_devices)
            return msgspec.json.decode(kept.read_bytes(), type=Compiled)
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
        told = [_FORM, self._sources, self.program, self.task, dict(self.settings)]
        of_island = [of_slot(self.tokens, slot), kind, devices]
        return f"{hashlib.sha256(json.dumps([*told, *of_island], sort_keys=True).encode()).hexdigest()}.json"

    @cached_property
    def _sources(self) -> str:
        return digest(self.program, self.task)
