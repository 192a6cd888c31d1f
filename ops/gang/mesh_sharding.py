"""The layout of arrays on the devices of an island: decided from paths and shapes alone.

A *mesh* arranges the devices of an island along named axes. A *spec* names, for each axis of an array, the axis of the
mesh along which it is cut, None for not at all; an array whose spec has no name lies whole on every device. The path
patterns of a task (`shard=`) hold; everything else is cut automatically.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from isthmus.ops.exchange.parameter_trees import Rules, first_match

Spec: TypeAlias = tuple[str | None, ...]
Axes: TypeAlias = tuple[tuple[str, int], ...]
"""The axes of a mesh, with the number of devices along each; -1 for the remaining ones."""
Shard: TypeAlias = str | Spec
"""A task's choice for an array: AUTOMATIC, REPLICATED, or its spec, without trailing Nones."""

AUTOMATIC: Final = "automatic"
REPLICATED: Final = "replicated"
DATA: Final = "data"
STAGE: Final = "stage"
"""The axis of a mesh along which stacked layers are cut (`mesh_stages`)."""
AXES_DEFAULT: Final[Axes] = ((DATA, -1),)
REPLICATED_BELOW: Final = 2048
"""Elements: 8 KiB of float32, which a link between chips carries in less time than an operation takes to begin."""


class ShardingError(ValueError):
    """A mesh that does not fit devices, or an array that does not fit a mesh: `expected`, `found` and the `remedy`."""

    def __init__(self, action: str, expected: str, found: str, remedy: str) -> None:
        super().__init__(f"{action}: expected {expected}, found {found}. {remedy}")
        self.action, self.expected, self.found, self.remedy = action, expected, found, remedy


class MeshShape(NamedTuple):
    """The axes of a mesh, with all sizes known. The first is that of data: batches are cut along it."""

    axes: Axes

    @classmethod
    def of(cls, axes: Axes, devices: int) -> MeshShape:
        """The mesh of `devices` devices; ShardingError if the axes do not use each of them once."""
        fixed = math.prod(size for _, size in axes if size != -1)
        free = sum(size == -1 for _, size in axes)
        if devices % fixed or (not free and devices != fixed):
            multiple = "a multiple of " if free else ""
            expected, do = (
                f"{multiple}{fixed} devices for mesh={dict(axes)}",
                "Change mesh= of the task, or the island.",
            )
            raise ShardingError("Making a mesh", expected, str(devices), do)
        return cls(tuple((name, devices // fixed if size == -1 else size) for name, size in axes))

    @property
    def data(self) -> tuple[str, int]:
        """The axis along which batches are cut."""
        return self.axes[0]

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of devices along each axis."""
        return dict(self.axes)

    def automatic(self, shape: Sequence[int], *, has_rows: bool = False) -> Spec:
        """The spec of an array without a rule; `has_rows` for one that fragments cut into rows.

        Fully sharded data parallelism: along the largest of its axes that the first axis of the mesh divides. Arrays
        below `REPLICATED_BELOW` elements lie whole on every device: cutting them would save nothing, and cost a
        collective operation for each. If fragments cut an array into rows, its leading axis is left whole, where
        another one can be cut: then each device has its part of every row, and nothing moves between devices to
        exchange some of them. Where there are stages it is cut along another axis by them, too.
        """
        if math.prod(shape) < REPLICATED_BELOW:
            return ()
        spec: list[str | None] = [None] * len(shape)
        for name, count in self._cutting:
            fitting = [axis for axis, size in enumerate(shape) if size % count == 0 and spec[axis] is None]
            if fitting:
                spec[max(fitting, key=lambda axis: (axis > 0 or not has_rows, shape[axis], -axis))] = name
        return _bare(spec)

    @property
    def _cutting(self) -> Axes:
        """The axes that cut arrays without a rule: that of data, and stages, and not data of one device beside them."""
        stages = tuple(axis for axis in self.axes if axis[0] == STAGE)
        return stages if stages and self.data[1] == 1 else (self.data, *stages)

    def of_stacked(self, path: str, shape: Sequence[int]) -> Spec:
        """The spec of a leaf without a rule that stacks layers, where there are stages: its layers are cut over them.

        ShardingError if they do not divide.
        """
        count = self.sizes[STAGE]
        if not shape or shape[0] % count:
            do = "Change the number of layers (task.layers), or of stages (mesh=, task.stages)."
            found = f"{shape[0]} layers" if shape else "no axis of layers"
            raise ShardingError(f"Cutting {path!r}", f"layers that divide by {count} stages", found, do)
        name, devices = self.data
        inner: list[str | None] = [None] * (len(shape) - 1)
        fitting = [axis for axis, size in enumerate(shape[1:]) if size % devices == 0]
        if devices > 1 and math.prod(shape) // count >= REPLICATED_BELOW and fitting:
            inner[max(fitting, key=lambda axis: (shape[1 + axis], -axis))] = name
        return _bare([STAGE, *inner])

    def of_leaf(
        self,
        path: str,
        shape: Sequence[int],
        rules: Rules[Shard],
        *,
        has_rows: bool = False,
        is_stacked: bool = False,
    ) -> Spec:
        """The spec of a leaf of a model; ShardingError if its rule does not fit, or its layers do not divide."""
        rule = rule_of(path, rules)
        if rule is None:
            if is_stacked and STAGE in self.sizes:
                return self.of_stacked(path, shape)
            return self.automatic(shape, has_rows=has_rows)
        if len(rule) > len(shape):
            do = "Give it an entry for each axis, or fewer."
            raise ShardingError(f"Cutting {path!r}", f"at most {len(shape)} axes in shard=", repr(rule), do)
        for axis, name in enumerate(rule):
            if name is not None and (name not in self.sizes or shape[axis] % self.sizes[name]):
                sizes = ", ".join(f"{each} of {size}" for each, size in self.axes)
                expected = f"an axis of the mesh ({sizes}) that divides axis {axis}, of {shape[axis]}"
                raise ShardingError(f"Cutting {path!r}", expected, repr(name), "Change shard= or mesh= of the task.")
        return rule

    def of_rows(self, spec: Spec, shape: Sequence[int]) -> Spec:
        """The spec of some rows of an array, with this shape: that of the whole, where it fits."""
        if all(name is None or size % self.sizes[name] == 0 for name, size in zip(spec, shape, strict=False)):
            return spec
        return self.automatic(shape)

    def of_batch(self, path: str, shape: Sequence[int]) -> Spec:
        """The spec of an array of a batch; ShardingError if its leading axis cannot be cut."""
        name, count = self.data
        if not shape:
            return ()
        if shape[0] % count:
            expected = f"a batch that divides by {count}, the devices along {name!r} of the island's mesh"
            do = "Choose another batch size, or an island of other size."
            raise ShardingError(f"Cutting {path!r} of a batch", expected, f"{shape[0]} rows", do)
        return (name,)


def _bare(spec: Sequence[str | None]) -> Spec:
    """A spec without trailing Nones."""
    end = max((axis + 1 for axis, name in enumerate(spec) if name is not None), default=0)
    return tuple(spec[:end])


def rule_of(path: str, rules: Rules[Shard]) -> Spec | None:
    """A task's spec for a leaf; None if it leaves that to us."""
    rule = first_match(rules, path)
    if rule is None or rule == AUTOMATIC:
        return None
    return () if isinstance(rule, str) else rule


def alike(path: str, shape: tuple[int, ...], model: Mapping[str, tuple[tuple[int, ...], Spec]]) -> Spec | None:
    """The spec of the leaf of the model, path -> (shape, spec), that an array resembles in shape and name.

    That is the leaf whose path ends its own, or all of its shape if they lie alike; None if there is none.

    So an optimizer's moments, which have the names of their parameters, lie like those.
    """
    shaped = {name: spec for name, (size, spec) in model.items() if size == shape}
    named = [name for name in shaped if path == name or path.endswith(f"/{name}")]
    if named:
        return shaped[max(named, key=len)]
    specs = set(shaped.values())
    return specs.pop() if len(specs) == 1 else None
