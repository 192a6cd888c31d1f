"""Layers that are cut over the stages of an island's mesh, with parts of a batch in flight.

A mesh may have an axis STAGE, along which stacked layers are cut: each stage holds successive layers, and passes on
what they make of a part of the batch, a *micro-batch*, to the next stage (GPipe, arXiv 1811.06965). A task's loss calls
`scan_layers` where it would call `jax.lax.scan`; nothing else of it knows of stages.

The schedule is one loop of M + S - 1 turns for M micro-batches and S stages. In turn t stage s computes micro-batch
t - s; in its first s turns and in its last S - 1 - s, the *bubble*, it computes what is thrown away, from real values,
so that nothing in it overflows. Micro-batches lie on all stages, M / S each, and move on to the first one as it needs
them, while results move into the places that become free, back to where their micro-batch came from. So no device has
the activations of more than its share of the batch at either end, and embedding and head, outside, are computed by all
devices, each for its share. The backward pass is the derivative of the loop: the same turns in reverse.

Importing this module imports no jax.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from isthmus.ops.gang.mesh_sharding import STAGE, ShardingError

IN_FLIGHT: Final = 4
"""Micro-batches for each stage, at most, where none are given: the bubble is then below a fifth of the turns (GPipe,
section 2.3)."""
_RUNNING: Final = "Running layers in stages"


def scan_layers(
    layer: Callable[[Any, Any], tuple[Any, Any]], x: Any, layers: Any, *, microbatches: int | None = None
) -> tuple[Any, Any]:
    """`jax.lax.scan(layer, x, layers)`; on an island whose mesh has an axis "stage", as a pipeline over its devices.

    Arguments:
        layer: (x, the parameters of a layer) -> (x of the same form, other results of the layer or None). It may use
            arrays from outside, but none that is differentiated: what layers share is broadcast to rows of `layers`.
        x: an array [rows, ...], or a tree of them: a batch, or what was made of it.
        layers: a tree of arrays [layers, ...].
        microbatches: the number of parts into which the rows are cut; every part passes a layer by itself, on one
            device, too. None: 1 without stages, otherwise the most of 4, 3, 2 and 1 for each stage that divide.

    Returns x after all layers, and the other results [layers, ...], their means over the micro-batches. It is the same
    as of `jax.lax.scan`, but for the order of sums, if a layer treats every row for itself.

    Raises ShardingError if the rows do not divide into micro-batches for each device along the first axis of the mesh,
    these among the stages, or the layers among the stages.
    """
    import jax

    mesh = jax.sharding.get_abstract_mesh()
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(x)}.pop()
    sizes = dict(mesh.shape)
    stages = sizes.get(STAGE, 1)
    devices = sizes[mesh.axis_names[0]] if stages > 1 else 1
    count = microbatches_of(rows, devices, stages, microbatches)
    if stages == 1:
        return jax.lax.scan(layer if count == 1 else partial(_in_parts, layer, count), x, layers)
    depth = {leaf.shape[0] for leaf in jax.tree.leaves(layers)}.pop()
    if depth % stages:
        raise ShardingError(_RUNNING, f"layers that divide by {stages} stages", str(depth), "Change the layers.")
    return _in_stages(layer, x, layers, mesh, count)


def microbatches_of(rows: int, devices: int, stages: int, wanted: int | None) -> int:
    """The number of micro-batches of `rows` rows that are cut over `devices`; ShardingError if they do not divide."""
    if wanted is not None:
        if wanted % stages == 0 and rows % (wanted * devices) == 0:
            return wanted
        along = f" on each of {devices} devices" if devices > 1 else ""
        expected = (
            f"a multiple of {stages} stages that divides {rows} rows{along}"
            if stages > 1
            else (f"a number that divides {rows} rows")
        )
        do = "Change the micro-batches (task.microbatches), the batch or the mesh."
        raise ShardingError("Cutting a batch into micro-batches", expected, f"{wanted} micro-batches", do)
    if stages == 1:
        return 1
    for count in range(IN_FLIGHT * stages, 0, -stages):
        if rows % (count * devices) == 0:
            return count
    expected = f"rows that divide by {stages * devices}, a micro-batch for each of {stages} stages"
    expected += f" on each of {devices} devices" if devices > 1 else ""
    raise ShardingError(
        "Cutting a batch into micro-batches", expected, f"{rows} rows", "Change the batch, or the mesh."
    )


def _in_parts(layer: Callable[[Any, Any], tuple[Any, Any]], count: int, x: Any, params: Any) -> tuple[Any, Any]:
    """A layer of each micro-batch by itself."""
    import jax

    parts = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), x)
    parts, others = jax.vmap(layer, in_axes=(0, None))(parts, params)
    whole = jax.tree.map(lambda part, leaf: part.reshape(leaf.shape), parts, x)
    return whole, jax.tree.map(lambda other: other.mean(0), others)


def _in_stages(
    layer: Callable[[Any, Any], tuple[Any, Any]], x: Any, layers: Any, mesh: Any, count: int
) -> tuple[Any, Any]:
    """All layers by the stages of the mesh, of so many micro-batches."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    data, sizes = mesh.axis_names[0], dict(mesh.shape)
    stages = sizes[STAGE]
    # Rows as they lie on devices along the first axis, and of these a part at each stage: no row moves between devices
    # along the first axis, and rows after the layers lie as those before.
    places = (sizes[data], stages, count // stages)
    lying = PartitionSpec(data, STAGE)  # type: ignore[no-untyped-call]
    parts = jax.tree.map(lambda leaf: leaf.reshape(*places, -1, *leaf.shape[1:]), x)
    parts = jax.lax.with_sharding_constraint(parts, lying)  # type: ignore[no-untyped-call]
    cut = PartitionSpec(STAGE)  # type: ignore[no-untyped-call]
    within = PartitionSpec(None, STAGE)  # type: ignore[no-untyped-call]
    run = jax.shard_map(
        partial(_stage, layer, stages, count),
        in_specs=(cut, within, cut),
        out_specs=(within, cut),
        axis_names={STAGE},
        check_vma=False,  # A layer may make loops of its own, whose first values do not vary by stage.
    )
    parts, others = run(jnp.arange(stages), parts, layers)
    parts = jax.lax.with_sharding_constraint(parts, lying)  # type: ignore[no-untyped-call]
    return jax.tree.map(lambda part, leaf: part.reshape(leaf.shape), parts, x), others


def _stage(
    layer: Callable[[Any, Any], tuple[Any, Any]],
    stages: int,
    count: int,
    number: Any,
    parts: Any,
    layers: Any,
) -> tuple[Any, Any]:
    """The turns of one stage.

    `number` [1] is that of the stage. `parts` are arrays [devices along the first axis, 1, slots, rows, ...], of which
    each slot has a micro-batch, of x at first and of the results in the end.
    """
    import jax
    import jax.numpy as jnp

    slots = count // stages
    is_first, is_last = number[0] == 0, number[0] == stages - 1
    onward = [(stage, stage + 1) for stage in range(stages - 1)]
    back = [(stage + 1, stage) for stage in range(stages - 1)]

    def choose(condition: Any, one: Any, other: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)

    def turn(carry: tuple[Any, Any, Any], time: Any) -> tuple[tuple[Any, Any, Any], None]:
        held, given, totals = carry
        slot = time % slots
        waiting = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, slot, 1, keepdims=False), held)
        chosen = choose(is_first, waiting, given)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), chosen)
        made, others = jax.lax.scan(layer, rows, layers)
        made = jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), made, chosen)
        is_real = (time >= number[0]) & (time < count + number[0])
        totals = jax.tree.map(lambda total, other: total + jnp.where(is_real, other, 0), totals, others)
        # What a slot has moves on to the stage before, and the last stage's has room for what it has made.
        moved = choose(is_last, made, jax.lax.ppermute(waiting, STAGE, back))  # type: ignore[no-untyped-call]
        held = jax.tree.map(lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, slot, 1), held, moved)
        return (held, jax.lax.ppermute(made, STAGE, onward), totals), None  # type: ignore[no-untyped-call]

    held = jax.tree.map(lambda leaf: leaf[:, 0], parts)
    first = jax.tree.map(lambda leaf: leaf[:, 0], held)
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), first)
    shapes = jax.eval_shape(lambda: jax.lax.scan(layer, rows, layers)[1])
    totals = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    (held, _, totals), _ = jax.lax.scan(turn, (held, first, totals), jnp.arange(count + stages - 1))
    # A result was written in the turn stages - 1 after that in which its micro-batch was read.
    held = jax.tree.map(lambda leaf: jnp.roll(leaf, 1 - stages, 1)[:, None], held)
    return held, jax.tree.map(lambda total: total / count, totals)
