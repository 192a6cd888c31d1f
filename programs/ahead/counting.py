"""The cost of a learner's function on some devices: lowers it, compiles it, and reads the result.

The devices may be those of a topology that is not there, or real ones: nothing is computed on either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import jax

from isthmus.ops.island.life import DeviceCall
from isthmus.ops.island.recipe import is_key
from isthmus.programs.ahead.collectives import read_collectives
from isthmus.programs.ahead.figures import Compiled, Counted, Memory, Refused
from isthmus.programs.ahead.kept import Kept, digest
from isthmus.programs.ahead.matrix_flops import matrix_flops
from isthmus.programs.ahead.overflow import read_overflow
from isthmus.programs.ahead.targets import Target


def counted(call: DeviceCall, target: Target, kept: Kept, versions: Mapping[str, str]) -> Counted:
    """The figures of one function on the target that holds its arguments; uses kept figures if there are any."""
    traced = call.function.trace(*call.arguments)
    flops = matrix_flops(traced.jaxpr)
    lowered = traced.lower()
    key = digest(lowered.as_text(), target, versions)
    found = kept.find(key)
    is_kept = found is not None
    if found is None:
        found = compiled(lowered, target.options)
        kept.keep(key, found)
    state, *given = call.arguments
    return Counted(
        name=call.name,
        is_step=call.is_step,
        products=flops.products,
        unbounded=flops.unbounded,
        state_bytes=bytes_on_device(state),
        given_bytes=bytes_on_device(given),
        made_bytes=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(lowered.out_info)),
        compiled=found if isinstance(found, Compiled) else None,
        refused=found if isinstance(found, Refused) else None,
        is_kept=is_kept,
    )


def compiled(lowered: Any, options: Mapping[str, str]) -> Compiled | Refused:
    """The compiler's figures for a lowered function; `Refused` for lack of memory; other errors of it are raised."""
    begun = time.monotonic()
    try:
        made = lowered.compile(dict(options))
    except jax.errors.JaxRuntimeError as error:
        overflow = read_overflow(str(error))
        if overflow is None:
            raise
        return Refused(overflow.used_bytes, time.monotonic() - begun)
    took = time.monotonic() - begun
    memory = made.memory_analysis()
    return Compiled(
        Memory(
            arguments=memory.argument_size_in_bytes,
            outputs=memory.output_size_in_bytes,
            aliased=memory.alias_size_in_bytes,
            temporaries=memory.temp_size_in_bytes,
            code=memory.generated_code_size_in_bytes,
            peak=memory.peak_memory_in_bytes,
        ),
        accessed_bytes=float(made.cost_analysis().get("bytes accessed", 0.0)),
        collectives=read_collectives(made.as_text()),
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
