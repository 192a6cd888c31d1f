"""Copies of what was published, given by those who only hold it, and taken back."""

from __future__ import annotations

import numpy as np

from isthmus.ops.exchange.messages import Update


def copied(held: Update) -> Update:
    """What was published, for those who hold an older version or none; of a shard's state the update alone."""
    is_final = held["kind"] == "final"
    return Update(
        fragment=held["fragment"],
        version=held["version"],
        kind="final" if is_final else "copy",
        values=held["values"],
        clock=held["clock"],
        positions=held["positions"],
        totals=held["totals"],
        refused=held["refused"] if is_final else [],
    )


def withdrawn(fragment: int) -> Update:
    """No copy: version [0, 0] is of nothing."""
    return Update(
        fragment=fragment,
        version=[0, 0],
        kind="copy",
        values=np.empty(0, np.float32),
        clock=[],
        positions=[],
        totals=[],
        refused=[],
    )


def is_withdrawn(update: Update) -> bool:
    """Whether an update is of nothing."""
    return update["version"][0] == 0
