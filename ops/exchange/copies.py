"""Copies of published updates, sent by hosts that only hold them, and their withdrawal."""

from __future__ import annotations

import numpy as np

from isthmus.ops.exchange.messages import Update


def copied(held: Update) -> Update:
    """A copy of a published update, for hosts that hold an older version or none; of a State only the update."""
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
    """The withdrawal of a copy: version [0, 0] stands for none."""
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
    """Whether an update is a withdrawal."""
    return update["version"][0] == 0
