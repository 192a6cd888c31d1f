"""The merged leaves of a model, made of the payloads of its fragments when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.messages import Vector


@final
class Assembled(Mapping[str, np.ndarray[Any, Any]]):
    """Tensors by name, of payloads by fragment: one that lies in a payload as it is is a view of it."""

    def __init__(self, fragments: Sequence[Fragment], values: Mapping[int, Vector], shapes: Mapping[str, Any]) -> None:
        """`shapes`: by name, what has the `shape` and `dtype` of each leaf."""
        self._shapes = shapes
        self._parts: dict[str, list[tuple[Unit, Vector]]] = {name: [] for name in shapes}
        for fragment in fragments:
            for unit, (begin, end) in zip(fragment.units, pairwise(fragment.offsets), strict=True):
                self._parts[unit.tensor].append((unit, values[fragment.index][begin:end]))

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        shape, parts = self._shapes[name], self._parts[name]
        if len(parts) == 1 and not parts[0][0].is_split:
            return parts[0][1].reshape(shape.shape).astype(shape.dtype, copy=False)
        tensor = np.empty(shape.shape, shape.dtype)
        for unit, values in parts:
            tensor[unit.start : unit.stop] = values.reshape(unit.values_shape)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
