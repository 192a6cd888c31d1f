"""Items: pytrees of dicts, lists, tuples, scalars and arrays, and the fields of them that the runtime may read.

Bodies emit NumPy arrays where items leave their host; `encoding` encodes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np

from isthmus.runtime.errors import LocalProtocolError

DEPTH_MAX: Final = 32
"""Deeper than any parameter tree seen in practice; bounds recursion."""

_PLAIN: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes})


def freeze(item: Any, depth: int = 0) -> None:
    """Make every NumPy array of an item read-only: payloads are immutable once they have left their body.

    ValueError if it is nested deeper than DEPTH_MAX.
    """
    kind = type(item)
    if kind is np.ndarray:
        item.setflags(write=False)
        return
    values: Collection[Any]
    if kind is list or kind is tuple:
        values = item
    elif kind is dict or isinstance(item, Mapping):
        values = item.values()
    elif isinstance(item, list | tuple):
        values = item
    else:
        return
    if depth >= DEPTH_MAX and len(values):
        raise ValueError(f"an item is nested deeper than {DEPTH_MAX} levels")
    for value in values:
        if type(value) not in _PLAIN:
            freeze(value, depth + 1)


def fields(item: Any, names: Iterable[str]) -> dict[str, Any]:
    """The fields `names` of an item that is a dict and has them, tuples as lists; {} for any other item.

    LocalProtocolError for a value that tape or wire would not restore.
    """
    if type(item) is not dict and not isinstance(item, Mapping):
        return {}
    found = {}
    for name in names:
        if name not in item:
            continue
        try:
            found[name] = _listed(item[name])
        except TypeError:
            raise LocalProtocolError(
                f"an item's field {name!r}, which cores read: expected integers, texts, lists of them or None, "
                f"found {item[name]!r}. Convert NumPy's integers with int()."
            ) from None
    return found


def _listed(value: Any) -> Any:
    """A value as tape and wire restore it; TypeError if they cannot."""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if isinstance(value, list | tuple):
        return list(map(_listed, value))
    if value is None or type(value) is str:
        return value
    raise TypeError
