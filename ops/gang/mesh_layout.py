"""The layout of one learner's state, its fragments and its batches on a mesh, in jax's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any, Final, NamedTuple, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.parameter_trees import Rules, named_leaves
from isthmus.ops.gang.mesh_sharding import STAGE, Axes, MeshShape, Shard, Spec, alike, rule_of

PROCESS: Final = "(process)"
LOCAL: Final = "(local)"
UNCUT: Final = "(uncut)"
"""Axes of our own, in parentheses so that no task has named its own alike."""


class StateLeaf(NamedTuple):
    """A leaf of a state: its path, its shape, whether fragments cut it into rows, and whether these are layers."""

    path: str
    shape: tuple[int, ...]
    has_rows: bool = False
    is_stacked: bool = False


class Crossing(NamedTuple):
    """The transfer of a unit of a fragment between devices and host.

    Its shape there, which has the same C order, and the shardings of values that leave and that arrive. On an island of
    several processes each has all that leaves. Values that arrive have one more axis, in front, of the processes: the
    first brings the unit, the others zeros.
    """

    shape: tuple[int, ...]
    leaves: NamedSharding
    arrives: NamedSharding


@final
class StateLayout:
    """The shardings of merged leaves, by their paths, and of all others, in order; ShardingError if one does not fit.

    `devices` are in the order of their `processes`, as many of each. `model` are the leaves of the model, `others` the
    rest of a state, which is not merged.
    """

    def __init__(
        self,
        devices: Sequence[Any],
        axes: Axes,
        rules: Rules[Shard],
        model: Sequence[StateLeaf],
        others: Sequence[StateLeaf],
    ) -> None:
        self._shape = MeshShape.of(axes, len(devices))
        sizes = [size for _, size in self._shape.axes]
        # The compiler cuts from the shardings of inputs and outputs: a task's functions know of no mesh but of stages.
        self._mesh = Mesh(np.array(devices).reshape(sizes), [name for name, _ in self._shape.axes])
        self.processes = len({device.process_index for device in devices})
        self.platform = str(devices[0].platform)
        self._by_process = None if self.processes == 1 else self._cut_by_process(devices)
        self._specs = {
            leaf.path: self._shape.of_leaf(
                leaf.path, leaf.shape, rules, has_rows=leaf.has_rows, is_stacked=leaf.is_stacked
            )
            for leaf in model
        }
        placed = {leaf.path: (leaf.shape, self._specs[leaf.path]) for leaf in model}
        if STAGE in self._shape.sizes:  # Layers that are not merged lie as those that are, and so do their moments.
            stacked = [leaf for leaf in others if leaf.is_stacked]
            placed |= {
                leaf.path: (leaf.shape, self._shape.of_leaf(leaf.path, leaf.shape, rules, is_stacked=True))
                for leaf in stacked
            }
        self.replicated = self._sharding(())
        self.merged = [self._sharding(self._specs[leaf.path]) for leaf in model]
        self.local = [self._sharding(self._of_other(leaf, placed, rules)) for leaf in others]

    def _cut_by_process(self, devices: Sequence[Any]) -> Mesh:
        """The mesh with its axis of data as two, of the processes and within each. Where that does not divide, no axis
        but that of processes: then units cross whole."""
        (_, count), *others = self._shape.axes
        if count % self.processes:
            return Mesh(np.array(devices).reshape(self.processes, -1), (PROCESS, UNCUT))
        sizes = [self.processes, count // self.processes, *(size for _, size in others)]
        return Mesh(np.array(devices).reshape(sizes), (PROCESS, LOCAL, *(name for name, _ in others)))

    def stages(self) -> AbstractContextManager[Any]:
        """The context in which the functions of a task are traced: `scan_layers` finds the stages of the mesh in it."""
        return use_abstract_mesh(self._mesh.abstract_mesh) if STAGE in self._shape.sizes else nullcontext()

    def put(self, tree: Any, shardings: Any) -> Any:
        """Place a tree of host arrays, which are the same in every process, on the devices."""
        if self.processes == 1:
            return jax.device_put(tree, shardings)
        return jax.tree.map(self._put, tree, shardings)

    @staticmethod
    def _put(array: Any, sharding: NamedSharding) -> jax.Array:
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def of_fragment(self, fragment: Fragment) -> list[Crossing]:
        """The transfers of a fragment's units: each lies like its tensor, or is cut separately."""
        shapes = [(unit.tensor, unit.values_shape) for unit in fragment.units]
        return [self._crossing(self._shape.of_rows(self._specs[tensor], shape), shape) for tensor, shape in shapes]

    def _crossing(self, spec: Spec, shape: tuple[int, ...]) -> Crossing:
        if self._by_process is None:
            return Crossing(shape, self._sharding(spec), self._sharding(spec))
        crossed, inner = list(shape), list[str | None]()
        if LOCAL in self._by_process.shape:
            # An axis that is cut by data as (process, local, rest): each process gathers the parts of the others along
            # it, and each device has its part of all.
            (data, count), crossed = self._shape.data, []
            for size, name in zip_longest(shape, spec):
                is_split = name == data
                crossed += [self.processes, count // self.processes, size // count] if is_split else [size]
                inner += [None, LOCAL, None] if is_split else [name]
        by_process = [NamedSharding(self._by_process, PartitionSpec(*each)) for each in (inner, (PROCESS, *inner))]  # type: ignore[no-untyped-call]
        return Crossing(tuple(crossed), *by_process)

    def of_batch(self, batch: Any) -> Any:
        """The shardings of a batch, as a tree like it; ShardingError if an array does not divide."""
        specs = [self._shape.of_batch(name, np.shape(leaf)) for name, leaf in named_leaves(batch, "batch")]
        return jax.tree.unflatten(jax.tree.structure(batch), [self._sharding(spec) for spec in specs])

    def _of_other(
        self, leaf: StateLeaf, placed: Mapping[str, tuple[tuple[int, ...], Spec]], rules: Rules[Shard]
    ) -> Spec:
        if rule_of(leaf.path, rules) is not None:
            return self._shape.of_leaf(leaf.path, leaf.shape, rules)
        spec = alike(leaf.path, leaf.shape, placed)
        return self._shape.automatic(leaf.shape) if spec is None else spec

    def _sharding(self, spec: Spec) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*spec))  # type: ignore[no-untyped-call]


def lying(shape: Any, sharding: Any = None) -> Any:
    """An array's shape with its sharding; `shape` is anything that has a shape and a dtype."""
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)  # type: ignore[no-untyped-call]
