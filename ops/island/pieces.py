"""Conversion of a fragment between the leaves on devices and the flat payload on the host.

On one device a payload is made there, as one array. On several no device holds a whole fragment: each unit leaves with
its sharding, each device gives its part, and the host puts the parts in their places, in C order, so that the payload
is the same for any mesh. On the way back each device gets its part. Where the devices belong to several processes, the
first process reads all and brings all, and the devices pass on to each other the parts that they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.mesh.device_codes import LEVELS, coded
from isthmus.ops.mesh.state_layout import Crossing, StateLayout, lying


@final
class FragmentFunctions:
    """The compiled functions of one fragment, on the leaves that it touches, by place.

    `extract(leaves)` reads it; `adopt(leaves, values)` and `replace`, which donate the leaves, write it. `put` turns a
    payload into the values to adopt. `code[push](leaves, anchor, levels)` codes its outer gradient (`device_codes`),
    from an anchor that was `put`.
    """

    def __init__(
        self, fragment: Fragment, places: dict[str, int], alpha: float, layout: StateLayout | None, leaves: Any
    ) -> None:
        """`leaves` are the shardings of the touched leaves, where there is a layout."""
        self.fragment = fragment
        self._units = None if layout is None else layout.of_fragment(fragment)
        self._processes = 1 if layout is None else layout.processes
        if self._units is None:
            self.extract: jax.stages.Wrapped = jax.jit(partial(_extract, fragment, places))
            self.replace: jax.stages.Wrapped = jax.jit(partial(_adopt, fragment, places, 0.0), donate_argnums=0)
        else:
            shapes = [unit.shape for unit in self._units]
            out = [unit.leaves for unit in self._units]
            self.extract = jax.jit(partial(_units, fragment, places, shapes), out_shardings=out)
            adopt = partial(_adopt_crossed, fragment, places, self._processes, 0.0)
            self.replace = jax.jit(adopt, donate_argnums=0, out_shardings=leaves)
        self.code: dict[str, jax.stages.Wrapped] = {
            push: jax.jit(
                partial(_code, fragment, places, push), out_shardings=None if layout is None else layout.replicated
            )
            for push in LEVELS
        }
        self.adopt = self.replace
        if alpha and layout is None:
            self.adopt = jax.jit(partial(_adopt, fragment, places, alpha), donate_argnums=0)
        elif alpha:
            adopt = partial(_adopt_crossed, fragment, places, self._processes, alpha)
            self.adopt = jax.jit(adopt, donate_argnums=0, out_shardings=leaves)

    def put(self, values: Vector | None) -> Any:
        """A payload float32[n] in the form that `adopt` takes; its memory may be used for ever.

        None where another process of the island brings it.
        """
        if self._units is None:
            return values
        if self._processes == 1:
            return jax.device_put(_cut(self.fragment, values), [unit.arrives for unit in self._units])
        parts = [None] * len(self._units) if values is None else _cut(self.fragment, values)
        return [self._brought(unit, part) for unit, part in zip(self._units, parts, strict=True)]

    def _brought(self, unit: Crossing, values: Any) -> jax.Array:
        """One unit on several processes' devices, of which this process brings `values`, or nothing."""
        shape = (1, *unit.shape)
        own = np.broadcast_to(np.float32(0), shape) if values is None else values.reshape(shape)

        def part(index: Any) -> Any:
            return own[(slice(None), *index[1:])]

        return jax.make_array_from_callback((self._processes, *unit.shape), unit.arrives, part)

    def shapes(self) -> Any:
        """The shapes of the result of `put`."""
        if self._units is None:
            return lying(np.broadcast_to(np.float32(0), self.fragment.size))
        ahead = () if self._processes == 1 else (self._processes,)
        return [lying(np.broadcast_to(np.float32(0), (*ahead, *unit.shape)), unit.arrives) for unit in self._units]

    def payload(self, extracted: Any) -> Any:
        """The result of `extract`, as an object that NumPy converts to a payload float32[n]."""
        return extracted if self._units is None else Pieces(self.fragment, extracted, self._units)


@final
class Pieces:
    """The units of a fragment, in parts on several devices; converted to one array on demand."""

    def __init__(self, fragment: Fragment, units: Sequence[jax.Array], crossings: Sequence[Crossing]) -> None:
        self._fragment, self._units, self._crossings = fragment, units, crossings

    def copy_to_host_async(self) -> None:
        """Start the transfer of the parts to the host."""
        for unit in self._units:
            for shard in unit.addressable_shards:
                if shard.replica_id == 0:
                    shard.data.copy_to_host_async()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The payload, float32[n] in new memory."""
        del copy
        payload = np.empty(self._fragment.size, np.float32)
        for place, unit, crossing in zip(_cut(self._fragment, payload), self._units, self._crossings, strict=True):
            crossed = place.reshape(crossing.shape)
            for shard in unit.addressable_shards:
                if shard.replica_id == 0:
                    crossed[shard.index] = shard.data
        return payload if dtype is None else payload.astype(dtype, copy=False)


def _cut(fragment: Fragment, payload: Any) -> list[Any]:
    """The units of a payload, each in its shape; views of it."""
    parts = zip(fragment.units, pairwise(fragment.offsets), strict=True)
    return [payload[begin:end].reshape(unit.values_shape) for unit, (begin, end) in parts]


def _extract(fragment: Fragment, places: dict[str, int], leaves: list[Any]) -> jax.Array:
    """The flat float32 payload of a fragment."""
    return jnp.concatenate([jnp.ravel(_rows(unit, leaves[places[unit.tensor]])) for unit in fragment.units]).astype(
        jnp.float32
    )


def _units(
    fragment: Fragment, places: dict[str, int], shapes: Sequence[tuple[int, ...]], leaves: list[Any]
) -> list[jax.Array]:
    """The units of a fragment in these shapes, float32.

    They are copies, because jit returns an argument itself where a function leaves it unchanged.
    """
    units = [jnp.copy(_rows(unit, leaves[places[unit.tensor]])).astype(jnp.float32) for unit in fragment.units]
    return [unit.reshape(shape) for unit, shape in zip(units, shapes, strict=True)]


def _adopt(fragment: Fragment, places: dict[str, int], alpha: float, leaves: list[Any], values: Any) -> list[Any]:
    """The touched leaves with a fragment's payload written into them."""
    return _adopt_units(fragment, places, alpha, leaves, _cut(fragment, values))


def _adopt_crossed(
    fragment: Fragment, places: dict[str, int], processes: int, alpha: float, leaves: list[Any], units: Any
) -> list[Any]:
    """The touched leaves with the arrived units written into them: of several processes, those of the first."""
    firsts = units if processes == 1 else [unit[0] for unit in units]
    shaped = [first.reshape(unit.values_shape) for first, unit in zip(firsts, fragment.units, strict=True)]
    return _adopt_units(fragment, places, alpha, leaves, shaped)


def _adopt_units(fragment: Fragment, places: dict[str, int], alpha: float, leaves: list[Any], units: Any) -> list[Any]:
    """The touched leaves with a fragment's units written into them."""
    result = list(leaves)
    for unit, values in zip(fragment.units, units, strict=True):
        place = places[unit.tensor]
        leaf = result[place]
        new = values.astype(leaf.dtype)
        if alpha:
            new = alpha * _rows(unit, leaf) + (1.0 - alpha) * new
        result[place] = leaf.at[unit.start : unit.stop].set(new) if unit.is_split else new
    return result


def _code(
    fragment: Fragment, places: dict[str, int], push: str, leaves: list[Any], anchor: Any, levels: Any
) -> list[jax.Array]:
    """The codes, scales and squares of a fragment's outer gradient."""
    anchors = anchor if isinstance(anchor, list) else _cut(fragment, anchor)
    return coded(fragment, push, [_rows(unit, leaves[places[unit.tensor]]) for unit in fragment.units], anchors, levels)


def _rows(unit: Unit, leaf: Any) -> Any:
    return leaf[unit.start : unit.stop] if unit.is_split else leaf
