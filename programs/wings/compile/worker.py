"""A process that compiles a learner's functions for one island and reports their cost: `python -m
isthmus.programs.wings.compile.worker LINE`.

Decides which batch to try next for the largest that fits, and what counts as an operation. One message comes in,
the request {spec, target, slot, kept, fit}; messages go out: {doing} for each function as it begins, and at the end
{answer}, or {faults} where the request is wrong, or {error}. It is the only process that starts a backend, of the CPU:
a TPU's compiler needs no TPU, and nothing is computed.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from isthmus.ops.data.positions import of_slot
from isthmus.ops.gang.mesh_layout import lying
from isthmus.ops.island.life import DeviceCall
from isthmus.ops.island.recipe import is_key
from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.wings.compile.answering import answer_one
from isthmus.programs.wings.compile.figures import (
    Compiled,
    Counted,
    Fit,
    IslandFigures,
    KeptFigures,
    ProgramMemory,
    RefusedProgram,
    Target,
    digest,
    read_collectives,
    target,
)
from isthmus.runtime.errors import ConfigError, InvariantError
from isthmus.runtime.graph.body import has
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.ids import LEARNER

FINENESS: Final = 8
"""The batch that is found is the largest one to within this part of itself."""
ASKED_MAX: Final = 8
"""No more, because near the limit the compiler searches for values to recompute, and takes minutes for a batch."""
GROWTH_MAX: Final = 8
"""Largest factor to the next batch: a line through two near points may miss by much."""


def largest(needed: Callable[[int], int], limit: int, begin: int, unit: int) -> int | None:
    """The largest multiple of `unit` rows, to within `FINENESS` and at most `ASKED_MAX` batches, that needs no more
    than `limit` bytes of a device; None if not even `unit` rows fit. `needed(rows)` returns the bytes that `rows` rows
    need; `begin` rows are tried first.

    Memory grows about linearly with the batch, so the next batch to try is where a line through the memory of two of
    them meets the limit. The result rests on the compiler's figures for the very batch that is found.
    """
    needed_of: dict[int, int] = {}
    low, high, count = 0, 0, max(begin // unit, 1)
    while len(needed_of) < ASKED_MAX:
        needed_of[count] = needed(count * unit)
        if needed_of[count] <= limit:
            low = max(low, count)
        else:
            high = count
        if high and high - low <= max(1, low // FINENESS):
            break
        count = _next(needed_of, limit, low, high)
    return low * unit or None


def _next(needed_of: dict[int, int], limit: int, low: int, high: int) -> int:
    """The next batch to try, between `low`, the largest that fits, and `high`, the smallest that does not (0: none is
    known). Batches are counted in units of rows; `needed_of` has the bytes, of `limit`, that each tried batch needs."""
    near = sorted(needed_of, key=lambda count: abs(needed_of[count] - limit))[:2]
    slope = (needed_of[near[0]] - needed_of[near[-1]]) / (near[0] - near[-1]) if len(near) > 1 else 0.0
    halved = (low + high) // 2 if high else 2 * low
    guess = near[0] + int((limit - needed_of[near[0]]) // slope) if slope > 0 else halved
    finest = max(1, low // FINENESS)
    least, most = low + finest, high - 1 if high else GROWTH_MAX * low
    return max(min(guess, most), min(least, most), 1)


def fitted(steps: Sequence[DeviceCall], count_rows: Callable[[int], list[Counted]], state: int, limit: int) -> Fit:
    """The largest batch for the functions of a step, in rows of its arrays' first axis, beside `state` bytes on
    each device, within the `limit` of a device, bytes.

    `asked(rows)` has the compiler count the functions for that many rows. ConfigError if arrays of a batch differ in
    their first axis, so that batches of other sizes are unknown.
    """
    leaves = [leaf for call in steps if call.batch is not None for leaf in jax.tree.leaves(call.arguments[call.batch])]
    first = {leaf.shape[0] if leaf.shape else 0 for leaf in leaves}
    if len(first) != 1 or 0 in first:
        expected = "arrays that have one first axis, of sequences or samples"
        actual = f"first axes of {', '.join(map(str, sorted(first)))}" if first else "no array"
        raise ConfigError("Finding the largest batch of the task", expected, actual, "Leave out --fit.")
    [rows_given] = first
    found_for = dict[int, list[Counted]]()

    def needed(rows: int) -> int:
        found_for[rows] = count_rows(rows)
        return max(each.needed(state) for each in found_for[rows])

    unit = max(rows_given // leaf.sharding.shard_shape(leaf.shape)[0] for leaf in leaves)
    rows = largest(needed, limit, rows_given, unit)
    return Fit(rows_given, rows, tuple(found_for), tuple(found_for[rows]) if rows is not None else ())


def resized(call: DeviceCall, rows: int) -> DeviceCall:
    """The call with a batch of `rows` rows, if it takes one."""
    if call.batch is None:
        return call
    arguments = list(call.arguments)
    arguments[call.batch] = jax.tree.map(lambda leaf: _with_rows(leaf, rows), arguments[call.batch])
    return call._replace(arguments=tuple(arguments))


def _with_rows(leaf: Any, rows: int) -> Any:
    shape = (rows, *leaf.shape[1:])
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)  # type: ignore[no-untyped-call]


class Flops(NamedTuple):
    """Operations of matrix products; `unbounded`: loops of unknown length, whose bodies were counted once.

    A compiler's own figure counts the body of a loop once and leaves kernels out. Here a product counts 2 operations
    per multiply-add (arXiv 2204.02311, appendix B), the body of a scan as often as it runs, of a branch the larger
    side. Elementwise operations are left out: they are limited by memory.
    """

    products: int
    unbounded: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Flops:
        return Flops(self.products + other[0], self.unbounded + other[1])

    def times(self, count: int) -> Flops:
        """The operations of `count` repetitions."""
        return Flops(self.products * count, self.unbounded)


def matrix_flops(jaxpr: Any) -> Flops:
    """The operations of a jaxpr, closed or not, and of all that it calls."""
    total = Flops(0)
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total += _of_equation(equation)
    return total


def _of_equation(equation: Any) -> Flops:
    name, params = equation.primitive.name, equation.params
    if (count := _PRODUCTS.get(name)) is not None:
        return Flops(count(equation))
    if name == "scan":
        return matrix_flops(params["jaxpr"]).times(params["length"])
    if name == "while":
        once = matrix_flops(params["body_jaxpr"]) + matrix_flops(params["cond_jaxpr"])
        return Flops(once.products, once.unbounded + (once.products > 0))
    if name == "cond":
        return max((matrix_flops(branch) for branch in params["branches"]), default=Flops(0))
    total = Flops(0)
    for inner in _inner(params.values()):
        total += matrix_flops(inner)
    if name == "shard_map":  # What it calls is traced for one device along these axes, and each along them calls it.
        return total.times(math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"]))
    return total


def _inner(values: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation: of a call, a custom derivative, a checkpoint."""
    for value in values:
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inner(value)


def _of_dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: tuple[int, ...] = equation.invars[0].aval.shape
    outputs: int = math.prod(equation.outvars[0].aval.shape)
    contracted_size: int = math.prod(left[axis] for axis in contracted)
    return 2 * outputs * contracted_size


def _of_convolution(equation: Any) -> int:
    kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    inputs_each: int = math.prod(kernel) // kernel[numbers.rhs_spec[0]]  # Spatial size times input channels of a group.
    outputs: int = math.prod(equation.outvars[0].aval.shape)
    return 2 * outputs * inputs_each


_PRODUCTS: dict[str, Callable[[Any], int]] = {"dot_general": _of_dot, "conv_general_dilated": _of_convolution}


_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = r"(?P<{name}>[\d.]+)(?P<{name}_unit>[KMGT]?)"
_FORMS: Final = (
    re.compile(
        rf"HLO temporaries \({_SIZE.format(name='used')}\) exceeds available HBM \({_SIZE.format(name='limit')}\)"
    ),
    re.compile(rf"Used {_SIZE.format(name='used')} of {_SIZE.format(name='limit')} hbm"),
)


class Overflow(NamedTuple):
    """Bytes on each device: those that a program needs, arguments included, and the limit."""

    used_bytes: int
    limit_bytes: int


def read_overflow(message: str) -> Overflow | None:
    """The overflow in a compiler's message; None for a message about something else."""
    for form in _FORMS:
        if match := form.search(message):
            used, limit = (round(float(match[name]) * _UNITS[match[f"{name}_unit"]]) for name in ("used", "limit"))
            return Overflow(used, limit)
    return None


def counted(call: DeviceCall, target: Target, kept: KeptFigures, versions: Mapping[str, str]) -> Counted:
    """The figures of one function on the target that holds its arguments; uses kept figures if there are any."""
    traced = call.function.trace(*call.arguments)
    flops = matrix_flops(traced.jaxpr)
    lowered = traced.lower()
    key = digest(lowered.as_text(), target, versions)
    figures = kept.find(key)
    is_kept = figures is not None
    if figures is None:
        figures = compiled(lowered, target.options)
        kept.keep(key, figures)
    state, *rest = call.arguments
    return Counted(
        name=call.name,
        is_step=call.is_step,
        products=flops.products,
        unbounded=flops.unbounded,
        state_bytes=bytes_on_device(state),
        given_bytes=bytes_on_device(rest),
        made_bytes=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(lowered.out_info)),
        compiled=figures if isinstance(figures, Compiled) else None,
        refused=figures if isinstance(figures, RefusedProgram) else None,
        is_kept=is_kept,
    )


def compiled(lowered: Any, options: Mapping[str, str]) -> Compiled | RefusedProgram:
    """The compiler's figures for a lowered function; `RefusedProgram` for lack of memory; other errors of it are
    raised."""
    begun = time.monotonic()
    try:
        program = lowered.compile(dict(options))
    except jax.errors.JaxRuntimeError as error:
        overflow = read_overflow(str(error))
        if overflow is None:
            raise
        return RefusedProgram(overflow.used_bytes, time.monotonic() - begun)
    took = time.monotonic() - begun
    memory = program.memory_analysis()
    return Compiled(
        ProgramMemory(
            arguments=memory.argument_size_in_bytes,
            outputs=memory.output_size_in_bytes,
            aliased=memory.alias_size_in_bytes,
            temporaries=memory.temp_size_in_bytes,
            code=memory.generated_code_size_in_bytes,
            peak=memory.peak_memory_in_bytes,
        ),
        accessed_bytes=float(program.cost_analysis().get("bytes accessed", 0.0)),
        collectives=read_collectives(program.as_text()),
        compile_seconds=took,
    )


def bytes_on_device(arguments: Any) -> int:
    """Bytes of arrays on each device; given as shapes, with their sharding if any."""
    return sum(map(_bytes_of, jax.tree.leaves(arguments)))


def _bytes_of(leaf: Any) -> int:
    if is_key(leaf):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    sharding = getattr(leaf, "sharding", None)
    shape: tuple[int, ...] = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return math.prod(shape) * int(leaf.dtype.itemsize)


_PACKAGES: Final = ("jax", "jaxlib", "libtpu")
_TOO_LARGE: Final = (1 << 20, 1 << 18)
"""float32: a TiB, which no device has."""


def main(arguments: list[str]) -> int:
    """Answer one request."""
    return answer_one(arguments, lambda request, doing: msgspec.to_builtins(answered(request, doing)))


def answered(request: Mapping[str, Any], doing: Callable[[str], None]) -> IslandFigures:
    """The answer to a request; `doing` is called with the name of each function before it is compiled."""
    run_spec, wanted = spec.read(request["spec"]), target(request["target"])
    sys.argv = list(run_spec.settings.argv)
    devices = devices_of(wanted)
    versions = {name: metadata.version(name) for name in _PACKAGES}
    kept = KeptFigures(None if request["kept"] is None else Path(request["kept"]))
    functions: list[Counted] = []
    all_calls = sorted(calls(run_spec, request["slot"], devices), key=lambda call: not call.is_step)
    for call in all_calls:
        doing(call.name)
        functions.append(counted(call, wanted, kept, versions))
    limit = limit_bytes(devices[0])
    fit = None
    if request["fit"]:
        steps = [call for call in all_calls if call.is_step]
        state = max(each.state_bytes for each in functions)

        def counted_for(batch: int) -> list[Counted]:
            doing(f"step, a batch of {batch}")
            return [counted(resized(call, batch), wanted, kept, versions) for call in steps]

        fit = fitted(steps, counted_for, state, limit)
    return IslandFigures(
        tokens=of_slot(run_spec.tokens_of_step, request["slot"]),
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


def calls(run_spec: Spec, slot: int, devices: tuple[Any, ...]) -> Iterator[DeviceCall]:
    """The device calls of a learner in this slot on these devices: the very functions of a run.

    On one device a run gives arrays no sharding; here they get that of the device, which is not jax's default.
    """
    for body in bodies_of(run_spec):
        if len(devices) > 1:
            yield from body.calls_on(devices, run_spec.job.seed, slot)
            continue
        there = partial(lying, sharding=SingleDeviceSharding(devices[0]))
        for call in body.calls_on(None, run_spec.job.seed, slot):
            yield call._replace(arguments=jax.tree.map(there, call.arguments))


def bodies_of(run_spec: Spec) -> Iterator[Any]:
    """The bodies of a learner, not opened, that say what they call on devices; ConfigError if none does."""
    nodes = [node for node in lower(run_spec.graph())[LEARNER].nodes if has(node.body, "calls_on")]
    if not nodes:
        expected = "a node of role 'learner' whose body says what it calls: calls_on(devices, seed, slot)"
        do = "Use a body of isthmus.ops.learner, or write this method (isthmus.ops.island.life)."
        raise ConfigError(f"Compiling {run_spec.job.program!r}", expected, "none", do)
    for node in nodes:
        keywords = {name: _resolved(value) for name, value in node.keywords.items()}
        yield node.body(*map(_resolved, node.arguments), **keywords)


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
    sys.exit(main(sys.argv[1:]))
