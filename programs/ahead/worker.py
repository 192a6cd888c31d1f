"""A process that compiles a learner's functions for one island: `python -m isthmus.programs.ahead.worker`.

One line of JSON comes in, the request {spec, target, slot, kept, fit}; lines go out: {doing} for each function as it
begins, and at the end {answer}, or {faults} where the request is wrong, or {error}. It is the only process that starts
a backend, of the CPU: a TPU's compiler needs no TPU. The standard output of libraries goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from isthmus.ops.data.batches import of_slot
from isthmus.ops.gang.mesh_layout import lying
from isthmus.ops.gang.mesh_sharding import ShardingError
from isthmus.ops.island.life import DeviceCall
from isthmus.programs.ahead.counting import counted
from isthmus.programs.ahead.figures import Answer, Counted
from isthmus.programs.ahead.fitting import fitted, resized
from isthmus.programs.ahead.kept import Kept
from isthmus.programs.ahead.overflow import read_overflow
from isthmus.programs.ahead.targets import Target, target
from isthmus.programs.request import reference, spec
from isthmus.programs.request.spec import Spec
from isthmus.programs.run.interrupts import unblock
from isthmus.runtime.errors import ConfigError, InvariantError, RequestError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.system.processes import die_with_parent

_PACKAGES: Final = ("jax", "jaxlib", "libtpu")
_TOO_LARGE: Final = (1 << 20, 1 << 18)
"""float32: a TiB, which no device has."""


def main() -> int:
    """Answer one request."""
    unblock()
    die_with_parent()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(told: Mapping[str, Any]) -> None:
        lines.write(f"{json.dumps(told)}\n")
        lines.flush()

    request = json.loads(sys.stdin.readline())
    try:
        answer = answered(request, lambda name: say({"doing": name}))
        say({"answer": msgspec.to_builtins(answer)})
    except RequestError as error:
        say({"faults": [list(fault) for fault in error.faults]})
    except ShardingError as error:
        say({"faults": [[error.doing, error.expected, error.found, error.do]]})
    except BaseException:
        say({"error": traceback.format_exc()})
    return 0


def answered(request: Mapping[str, Any], doing: Callable[[str], None]) -> Answer:
    """The answer to a request; `doing` is called with the name of each function before it is compiled."""
    told, wanted = spec.read(request["spec"]), target(request["target"])
    sys.argv = list(told.argv)
    devices = devices_of(wanted)
    versions = {name: metadata.version(name) for name in _PACKAGES}
    kept = Kept(None if request["kept"] is None else Path(request["kept"]))
    functions: list[Counted] = []
    all_calls = sorted(calls(told, request["slot"], devices), key=lambda call: not call.is_step)
    for call in all_calls:
        doing(call.name)
        functions.append(counted(call, wanted, kept, versions))
    limit = limit_bytes(devices[0])
    fit = None
    if request["fit"]:
        steps = [call for call in all_calls if call.is_step]
        state = max(each.state_bytes for each in functions)

        def asked(batch: int) -> list[Counted]:
            doing(f"step, a batch of {batch}")
            return [counted(resized(call, batch), wanted, kept, versions) for call in steps]

        fit = fitted(steps, asked, state, limit)
    return Answer(
        tokens=of_slot(told.job.tokens_by_slot or told.job.tokens_per_batch, request["slot"]),
        device_kind=str(devices[0].device_kind),
        devices=len(devices),
        hosts=len({device.process_index for device in devices}),
        limit_bytes=limit,
        functions=tuple(functions),
        versions=versions,
        fit=fit,
    )


def devices_of(wanted: Target) -> tuple[Any, ...]:
    """The devices of a target, which are not here; ConfigError for a topology that the compiler does not know."""
    bounds = {"chips_per_host_bounds": list(wanted.host_bounds)} if wanted.host_bounds else {}
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=wanted.name, **bounds)
    except jax.errors.JaxRuntimeError as error:
        do = "Choose another topology, for example v5p:2x2x1 or v6e:2x2."
        raise ConfigError("Reading --island", "a topology that there is", f"{wanted.name!r}: {error}", do) from None
    return tuple(topology.devices)


def calls(told: Spec, slot: int, devices: tuple[Any, ...]) -> Iterator[DeviceCall]:
    """The device calls of a learner in this slot on these devices: the very functions of a run.

    On one device a run gives arrays no sharding; here they get that of the device, which is not jax's default.
    """
    plan = lower(told.graph())[LEARNER]
    bodies = [node for node in plan.nodes if hasattr(node.body, "calls_on")]
    if not bodies:
        expected = "a node of role 'learner' whose body says what it calls: calls_on(devices, seed, slot)"
        do = "Use a body of isthmus.ops.learner, or write this method (isthmus.ops.island.life)."
        raise ConfigError(f"Compiling {told.job.program!r}", expected, "none", do)
    for node in bodies:
        given = {name: _resolved(value) for name, value in node.keywords.items()}
        body = node.body(*map(_resolved, node.arguments), **given)
        if len(devices) > 1:
            yield from body.calls_on(devices, told.job.seed, slot)
            continue
        there = partial(lying, sharding=SingleDeviceSharding(devices[0]))
        for call in body.calls_on(None, told.job.seed, slot):
            yield call._replace(arguments=jax.tree.map(there, call.arguments))


def limit_bytes(device: Any) -> int:
    """The memory of a device that programs can use, from the compiler's refusal of one that is too large."""
    shape = jax.ShapeDtypeStruct(_TOO_LARGE, jnp.float32, sharding=SingleDeviceSharding(device))  # type: ignore[no-untyped-call]
    try:
        jax.jit(lambda array: array + 1).lower(shape).compile()
    except jax.errors.JaxRuntimeError as error:
        if (overflow := read_overflow(str(error))) is not None:
            return overflow.limit_bytes
        raise
    raise InvariantError("asking a compiler for its limit: expected a program of a TiB to be refused, found it taken.")


def _resolved(value: Any) -> Any:
    return reference.resolve(value) if isinstance(value, Reference) else value


if __name__ == "__main__":
    sys.exit(main())
