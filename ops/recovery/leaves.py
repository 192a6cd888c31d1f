"""Leaves of a state as bytes, and back: of any numeric type, including those that tensor files do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

Form: TypeAlias = tuple[str, list[int]]
"""The type of a leaf, by name, and its shape."""
_PLAIN: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def form_of(leaf: np.ndarray[Any, Any]) -> Form:
    """The form of a leaf."""
    return leaf.dtype.name, list(leaf.shape)


def flat(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a leaf."""
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)


def type_of(name: str) -> np.dtype[Any]:
    """The type of that name; ValueError for one that is not numeric."""
    if name not in _PLAIN + _SMALL:
        raise ValueError(f"expected a type of numbers, found {name[:40]!r}")
    return np.dtype(getattr(ml_dtypes, name) if name in _SMALL else name)


def formed(data: np.ndarray[Any, np.dtype[np.uint8]], name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The leaf of a form with these bytes; ValueError if they do not fit."""
    return data.view(type_of(name)).reshape(shape)


def packed(leaf: np.ndarray[Any, Any]) -> list[Any]:
    """A leaf as it travels: its form, and its bytes."""
    return [*form_of(leaf), flat(leaf)]


def unpacked(told: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The packed leaf; ValueError if it is invalid."""
    name, shape, data = told
    return formed(np.asarray(data), name, shape)
