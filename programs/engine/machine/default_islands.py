"""The islands of this machine where nobody has said how many learners there are: of as many devices each as the model
needs, and as many of them as fit, ISLANDS_BY_DEFAULT_MAX at most.

Decides the number of learners of a run on this machine's accelerators, and says by which figures: those of `isthmus
compile`, where it has compiled this run, and else the state and a gradient, without activations. A card that is not in
the table of devices is taken for one that holds an island, and the run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.cluster import devices
from isthmus.programs.engine.cluster.devices import Device
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.cluster.placing import Find, needs_found
from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import MEMORY_SHARE, Accelerators, islands_of
from isthmus.programs.engine.machine.default_batch import with_batch
from isthmus.programs.engine.request.model_sizes import learner_bytes
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.request.run_settings import LEARNERS
from isthmus.programs.engine.request.spec import Here
from isthmus.programs.engine.results.words import size
from isthmus.programs.task import OwnTask
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.control_groups import memory_most

ISLANDS_BY_DEFAULT_MAX: Final = 8
"""More islands gain less each: a merge of more votes, each of them of fewer tokens."""
_DOING: Final = "Dividing this machine into islands"
_CARDS: Final = Path("/proc/driver/nvidia/gpus")


class DefaultIslands(NamedTuple):
    """So many learners, on so many devices each; `told`: by which figures, and what more would cost; `warnings`: what
    was assumed."""

    learners: int
    devices: int
    told: str
    warnings: tuple[Fault, ...] = ()


def card_names(folder: Path = _CARDS) -> list[str]:
    """The names of this machine's GPUs, as their driver has them; none where it does not say."""
    names = []
    for path in sorted(folder.glob("*/information")):
        for line in path.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                names.append(value.strip())
    return names


def divided(accelerators: Accelerators, card: str, state_bytes: int, find: Find, *, most: int = 16) -> DefaultIslands:
    """The islands of a machine with these accelerators, all of this `card`, '' where that is not known, for a learner
    of so many bytes that uses `most` devices at most; `find` has the figures of a compiler. ConfigError where no island
    holds it."""
    total = len(accelerators.ids)
    there = _devices(total)
    device = _device(card, total)
    if device is None or device.memory_bytes is None:
        learners = min(total, ISLANDS_BY_DEFAULT_MAX)
        return DefaultIslands(learners, 1, f"of {there}, 1 each", (_unknown(card, state_bytes),))
    room = int(device.memory_bytes * MEMORY_SHARE)
    counts = [count for count in _COUNTS if count <= min(total, most)]
    each = next((count for count in counts if _needed(device, count, state_bytes, find)[0] <= room), None)
    if each is None:
        needed, source = _needed(device, counts[-1], state_bytes, find)
        found = f"{size(needed)} of each of {_devices(counts[-1])}, {source}"
        do = "Use a smaller model or batch, or islands of several machines (docs/how-to/islands.md)."
        raise ConfigError(_DOING, f"at most {size(room)}, of the {size(device.memory_bytes)} of {card}", found, do)
    learners = min(total // each, ISLANDS_BY_DEFAULT_MAX)
    needed, source = _needed(device, each, state_bytes, find)
    left = total - learners * each
    parts = [f"of {there}, {each} each: {size(needed)} of the {size(device.memory_bytes)} of one, {source}"]
    parts += [f"{left} left over"] if left else []
    if left >= each:
        parts.append(f"{ISLANDS_BY_DEFAULT_MAX} learners at most by themselves: say --learners for more")
    else:
        parts.append(
            "another would share a device and its memory" if each == 1 else f"another would need {each - left} more"
        )
    return DefaultIslands(learners, each, "; ".join(parts))


def check_learners(accelerators: Accelerators, card: str, learners: int, state_bytes: int, find: Find) -> None:
    """ConfigError for more learners than the devices hold, so that several share the memory of one."""
    total = len(accelerators.ids)
    device = _device(card, total)
    if device is None or device.memory_bytes is None or learners <= total:
        return
    sharing = -(-learners // total)
    needed, source = _needed(device, 1, state_bytes, find)
    room = int(device.memory_bytes * MEMORY_SHARE / sharing)
    if needed > room:
        fitting = max(int(device.memory_bytes * MEMORY_SHARE // needed), 1) * total
        expected = f"at most {fitting} learners on {_devices(total)}, or a learner of {size(room)}"
        found = f"{learners} learners, {sharing} on a device, of {size(needed)} each, {source}"
        raise ConfigError(_DOING, expected, found, "Lower run.learners, the model or the batch.")


def _unknown(card: str, state_bytes: int) -> Fault:
    expected = "a card of the table of devices (docs/reference/devices.md)"
    found = f"{card!r}, which is not in it" if card else "a card whose name its driver does not say"
    do = f"It is assumed that one device holds a learner of {size(state_bytes)}; say --learners where it does not."
    return Fault(_DOING, expected, found, do)


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


_COUNTS: Final = (1, 2, 4, 8, 16)
"""Of the devices of an island: those by which a batch is likely to divide."""


CPU: Final = "CPU"
"""The card of devices that XLA is told to make."""


def _device(card: str, total: int) -> Device | None:
    """A card, of which the machine has so many; those that are made of its CPU have equal parts of its memory."""
    try:
        device = devices.find(card, _DOING) if card else None
    except ConfigError:
        return None
    return device if device is None or card != CPU else replace(device, memory_bytes=memory_most() // total)


def _needed(device: Device, count: int, state_bytes: int, find: Find) -> tuple[int, str]:
    """Bytes that a learner needs of each of `count` devices, and who says so."""
    needs = find(Machine("here", device=device, devices=count), 0)
    if needs is not None:
        return needs.memory_bytes, "which `isthmus compile` found"
    return -(-state_bytes // count), "without activations"


def with_islands(
    request: Request,
    given: Mapping[str, Any],
    prepare_again: Callable[[dict[str, Any], dict[str, Any]], Request],
) -> Request:
    """The request with as many learners as there are islands here, where `given` does not say how many, and a batch
    that fills them, where it has the default one, if this machine has accelerators. ConfigError where no island holds a
    learner, or those that were given do not fit. `prepare_again` prepares it with other settings of section run, and
    more of the task.

    Scripts are started before it is known what they need, and say so themselves.
    """
    accelerators = environment.divided_here()
    is_script = getattr(request.task, "script", None) is not None
    if accelerators is None or is_script or given.get("processes"):
        return request
    names = set(card_names()) if accelerators.platform == "cuda" else set()
    card = CPU if accelerators.platform == "cpu" else names.pop() if len(names) == 1 else ""
    needs, state_bytes = needs_found(request), learner_bytes(request)
    if LEARNERS in given:
        check_learners(accelerators, card, request.run.learners, state_bytes, needs)
        run, each = dict(given), islands_of(Here("127.0.0.1", request.run.learners), accelerators).devices or 1
        return _filled(request, card, each, partial(prepare_again, run))
    most = 1 if isinstance(request.task, OwnTask) else _COUNTS[-1]
    found = divided(accelerators, card, state_bytes, needs, most=most)
    run = {**given, LEARNERS: found.learners}
    if found.learners != request.run.learners:
        request = prepare_again(run, {})
    request = _filled(request, card, found.devices, partial(prepare_again, run))
    chosen = {**request.chosen, f"run.{LEARNERS}": f"{found.learners} ({found.told})"}
    return replace(request, chosen=chosen, warnings=(*request.warnings, *found.warnings))


def _filled(request: Request, card: str, devices: int, prepare_again: Callable[[dict[str, Any]], Request]) -> Request:
    """The request with a batch that fills islands of so many devices each, of this `card`."""
    device = _device(card, devices)
    unknown = "" if device is not None else repr(card) if card else "a card whose name its driver does not say"
    return with_batch(request, [Machine("here", device=device, devices=devices)], prepare_again, unknown)
