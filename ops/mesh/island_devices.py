"""The devices of an island, as jax knows them: some of this process's, of the requested kind.

A learner whose island is of another kind, or smaller, than its placement refuses to open: jax silently falls back to
the CPU where an accelerator cannot be used, and the run would be slow for no visible reason.
"""

from __future__ import annotations

from typing import Any

import jax

from isthmus.ops.mesh.island import Island


def unless_usual(devices: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """These devices; None for the one that jax uses by default, which need not be named."""
    return None if devices == tuple(jax.local_devices()[:1]) else devices


class IslandError(RuntimeError):
    """An island that differs from the learner's placement."""


def devices_of(island: Island | None) -> tuple[Any, ...]:
    """The devices of an island, all of this process's for None; IslandError if they differ from the placement."""
    if island is not None and island.refusal:
        raise IslandError(island.refusal)
    devices = tuple(jax.local_devices())
    if island is None:
        return devices
    kinds = {kind.casefold() for kind in island.kinds}
    found = sorted({str(device.device_kind) for device in devices})
    if kinds and not kinds.issuperset(map(str.casefold, found)):
        raise IslandError(
            f"Opening an island: expected devices of kind {island.kinds[0]!r}, as its machine was declared, found "
            f"{', '.join(map(repr, found))}. Correct `device` of the machine in the cluster file, or install what jax "
            "needs for it there."
        )
    if island.gang is not None:
        return _of_gang(island.devices or len(devices), island.gang.size)
    if island.devices is None:
        return devices
    end = island.begin + island.devices
    if len(devices) < end:
        raise IslandError(
            f"Opening an island: expected {end} devices, found {len(devices)} of kind {found[0]!r}. Correct `devices` "
            "of the machine in the cluster file."
        )
    return devices[island.begin : end]


def _of_gang(each: int, size: int) -> tuple[Any, ...]:
    """The devices of all processes of an island, by process; IslandError if any process has another number of them."""
    devices = tuple(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    counts = [sum(device.process_index == number for device in devices) for number in range(size)]
    if counts != [each] * size:
        raise IslandError(
            f"Opening an island of {size} processes: expected {each} devices of each, found {counts}. Give every "
            "machine of an island the same `devices`."
        )
    return devices
