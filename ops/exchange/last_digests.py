"""Digests of the last model, by which it is compared with what learners in users' loops have in their leaves.

A digest is that of a fragment's published values, in the order of its units. So a recorder, which has them unit by
unit, and a learner, which has them in one vector, find the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import xxhash

_UNUSED_BITS: Final = 4
"""Of a digest of 64: counts in messages are smaller."""


def digest_of(parts: Iterable[Any]) -> int:
    """The digest of the parts of one fragment, float32 each: 60 bits."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(np.ascontiguousarray(part, np.float32).reshape(-1).data)
    return hasher.intdigest() >> _UNUSED_BITS


def is_awaited(report: Mapping[str, Any]) -> bool:
    """Whether the digests of a learner are still to come: one that is no user's loop has none."""
    return "last" in report and not report["last"]["digests"]
