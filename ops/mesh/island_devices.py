"""The devices of an island, as jax knows them: some of this process's, of the kind that was asked for.

A learner whose island is of another kind, or smaller, than it was placed for refuses to open: jax falls back to the CPU
without a word where an accelerator cannot be used, and a run would be slow, and nobody would know why.
"""

from __future__ import annotations

from typing import Any

import jax

from isthmus.ops.mesh.island import Island


def unless_usual(devices: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """These devices; None for the one that jax takes by itself, of which nothing has to be said."""
    return None if devices == tuple(jax.local_devices()[:1]) else devices


class IslandError(RuntimeError):
    """An island that is not what a learner was placed on."""


def devices_of(island: Island | None) -> tuple[Any, ...]:
    """The devices of an island, all of this process's for None; IslandError if they are not what was placed."""
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
    """The devices of all processes of an island, in the order of these; IslandError if they have not as many each."""
    devices = tuple(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    counts = [sum(device.process_index == number for device in devices) for number in range(size)]
    if counts != [each] * size:
        raise IslandError(
            f"Opening an island of {size} processes: expected {each} devices of each, found {counts}. Give every "
            "machine of an island the same `devices`."
        )
    return devices
