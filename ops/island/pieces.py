"""A fragment between the leaves on devices and the flat payload on the host.

On one device a payload is made there, as one array. On several no device holds a whole fragment: each unit leaves as
it lies, each device gives its part, and the host puts the parts in their places, in C order, so that the payload is the
same whatever the mesh is. On the way back each device gets its part.
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
from isthmus.ops.mesh.state_layout import StateLayout, lying


@final
class FragmentFunctions:
    """The compiled functions of one fragment, on the leaves that it touches, by place: `extract(leaves)`, and
    `adopt(leaves, values)` and `replace`, which donate the leaves. `put` makes of a payload the values to adopt.
    """

    def __init__(
        self, fragment: Fragment, places: dict[str, int], alpha: float, layout: StateLayout | None, leaves: Any
    ) -> None:
        """`leaves` are the shardings of the touched leaves, where there is a layout."""
        self._fragment = fragment
        self._units = None if layout is None else layout.of_fragment(fragment)
        if layout is None:
            self.extract: jax.stages.Wrapped = jax.jit(partial(_extract, fragment, places))
            self.replace: jax.stages.Wrapped = jax.jit(partial(_adopt, fragment, places, 0.0), donate_argnums=0)
        else:
            self.extract = jax.jit(partial(_units, fragment, places), out_shardings=self._units)
            adopt = partial(_adopt_units, fragment, places, 0.0)
            self.replace = jax.jit(adopt, donate_argnums=0, out_shardings=leaves)
        self.adopt = self.replace
        if alpha and layout is None:
            self.adopt = jax.jit(partial(_adopt, fragment, places, alpha), donate_argnums=0)
        elif alpha:
            adopt = partial(_adopt_units, fragment, places, alpha)
            self.adopt = jax.jit(adopt, donate_argnums=0, out_shardings=leaves)

    def put(self, values: Vector) -> Any:
        """A payload float32[n] as `adopt` takes it; its memory may be used for ever."""
        return values if self._units is None else jax.device_put(_cut(self._fragment, values), self._units)

    def shapes(self) -> Any:
        """What `put` gives, as shapes."""
        fragment, units = self._fragment, self._units
        if units is None:
            return lying(np.broadcast_to(np.float32(0), fragment.size))
        zeros = [np.broadcast_to(np.float32(0), unit.values_shape) for unit in fragment.units]
        return list(map(lying, zeros, units))

    def payload(self, extracted: Any) -> Any:
        """What `extract` gave, as something that NumPy takes for a payload float32[n]."""
        return extracted if self._units is None else Pieces(self._fragment, extracted)


@final
class Pieces:
    """The units of a fragment, in parts on several devices; an array of all once somebody asks for it."""

    def __init__(self, fragment: Fragment, units: Sequence[jax.Array]) -> None:
        self._fragment, self._units = fragment, units

    def copy_to_host_async(self) -> None:
        """Have the parts come."""
        for unit in self._units:
            unit.copy_to_host_async()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The payload, float32[n] in new memory."""
        del copy
        payload = np.empty(self._fragment.size, np.float32)
        for place, unit in zip(_cut(self._fragment, payload), self._units, strict=True):
            for shard in unit.addressable_shards:
                if shard.replica_id == 0:
                    place[shard.index] = shard.data
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


def _units(fragment: Fragment, places: dict[str, int], leaves: list[Any]) -> list[jax.Array]:
    """The units of a fragment, float32; copies, because jit gives back an argument that it has nothing to do with."""
    return [jnp.copy(_rows(unit, leaves[places[unit.tensor]])).astype(jnp.float32) for unit in fragment.units]


def _adopt(fragment: Fragment, places: dict[str, int], alpha: float, leaves: list[Any], values: Any) -> list[Any]:
    """The touched leaves with a fragment's payload written into them."""
    return _adopt_units(fragment, places, alpha, leaves, _cut(fragment, values))


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


def _rows(unit: Unit, leaf: Any) -> Any:
    return leaf[unit.start : unit.stop] if unit.is_split else leaf
