"""The batch of a step in other sizes: the functions of a step, on shapes, with any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from isthmus.ops.island.life import DeviceCall
from isthmus.programs.ahead.figures import Counted, Fit
from isthmus.programs.ahead.largest_batch import largest
from isthmus.runtime.errors import ConfigError


def fitted(steps: Sequence[DeviceCall], asked: Callable[[int], list[Counted]], state: int, limit: int) -> Fit:
    """The largest batch for the functions of a step, in rows of its arrays' first axis, beside `state` bytes on
    each device, within the `limit` of a device, bytes.

    `asked(rows)` has the compiler count the functions for that many rows. ConfigError if arrays of a batch differ in
    their first axis, so that batches of other sizes are unknown.
    """
    leaves = [leaf for call in steps if call.batch is not None for leaf in jax.tree.leaves(call.arguments[call.batch])]
    first = {leaf.shape[0] if leaf.shape else 0 for leaf in leaves}
    if len(first) != 1 or 0 in first:
        expected = "arrays that have one first axis, of sequences or samples"
        found = f"first axes of {', '.join(map(str, sorted(first)))}" if first else "no array"
        raise ConfigError("Finding the largest batch of the task", expected, found, "Leave out --fit.")
    [given] = first
    found_for = dict[int, list[Counted]]()

    def needed(rows: int) -> int:
        found_for[rows] = asked(rows)
        return max(each.needed(state) for each in found_for[rows])

    unit = max(given // leaf.sharding.shard_shape(leaf.shape)[0] for leaf in leaves)
    rows = largest(needed, limit, given, unit)
    return Fit(given, rows, tuple(found_for), tuple(found_for[rows]) if rows is not None else ())


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
