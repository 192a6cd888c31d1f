"""The names of islands that are compiled for, `v5p:2x2x1`: a kind of TPU and a topology in chips.

Decides the valid names, and the compiler's options for each; the published figures of a kind are in
`runtime.graph.devices`. The compiler itself does not check that a topology exists.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, final

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.devices import Device, find

_FORM: Final = re.compile(r"(?P<kind>[a-z0-9]+):(?P<topology>\d+x\d+(?:x\d+)?)")
_DIMENSIONS: Final = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
"""Dimensions of the torus of each kind; https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm."""
_DEVICES_A_CHIP: Final = {"v4": 2}
"""Devices of a chip, as the compiler counts them; one by default."""
_CHIPS_A_HOST: Final = {"v4": 4, "v5e": 8, "v5p": 4, "v6e": 8}
"""The most that one machine has, from the same pages."""
_OVERLAPPING: Final = (
    "xla_enable_async_all_gather",
    "xla_tpu_overlap_compute_collective_tc",
    "xla_tpu_enable_latency_hiding_scheduler",
)
"""Measured, libtpu 0.0.42 and 0.0.50, two layers of nano. Of 187 collectives on v4:2x2x1, 151 overlap with the first
option and none without. Elsewhere nothing changes: what overlaps is the compiler's choice, 10 on v6e:2x2, and 110 of
158 on v5e:2x2 (0.0.50 alone). The fusion of all-gathers (xla_tpu_enable_async_collective_fusion_fuse_all_gather) let
113 overlap on v5p and v6e; 0.0.48 and 0.0.50 refuse it for all kinds but v5e: "incorrect results, hang"."""


@final
@dataclass(frozen=True, slots=True)
class Target:
    """An island to compile for.

    `name` as given; `count` devices of kind `device`; the compiler's options; `host_bounds`: the layout of its chips on
    one machine, in three dimensions, empty if it needs several machines; `devices_a_chip`: the compiler's devices in
    one chip, to which the figures of `device` apply.
    """

    name: str
    device: Device
    count: int
    options: dict[str, str]
    host_bounds: tuple[int, ...] = ()
    devices_a_chip: int = 1


def target(text: str, doing: str = "Reading --island") -> Target:
    """The target that `text` names; ConfigError for an unknown form, kind or topology."""
    form = _FORM.fullmatch(text)
    kinds = ", ".join(_DIMENSIONS)
    if form is None or form["kind"] not in _DIMENSIONS:
        expected = f"KIND:TOPOLOGY, the kind one of {kinds}, the topology in chips"
        raise ConfigError(doing, expected, repr(text), "For example v5p:2x2x1, or v6e:2x2.")
    kind, sides = form["kind"], [int(side) for side in form["topology"].split("x")]
    if len(sides) != _DIMENSIONS[kind] or min(sides) < 1:
        expected = f"a topology of {_DIMENSIONS[kind]} dimensions for {kind}, each at least 1"
        raise ConfigError(doing, expected, repr(text), f"For example {kind}:{'x'.join('221'[: _DIMENSIONS[kind]])}.")
    chips, parts = math.prod(sides), _DEVICES_A_CHIP.get(kind, 1)
    count = chips * parts
    options = dict.fromkeys(_OVERLAPPING, "true") if count > 1 else {}
    bounds = (*sides, 1)[:3] if chips <= _CHIPS_A_HOST[kind] else ()
    return Target(text, find(kind, doing), count, options, bounds, parts)


def roofline_seconds(device: Device, flops: float, bytes_accessed: float) -> float | None:
    """Minimum seconds of a step on a device of this kind, at the published figures; None if they are not published.

    The longer of the times for its products and for the memory that it reads and writes. Collectives count as fully
    overlapped, so this is a predicted lower bound.
    """
    if device.flops is None or device.memory_bandwidth_bytes is None:
        return None
    return max(flops / device.flops, bytes_accessed / device.memory_bandwidth_bytes)
