"""Copies of what was published, given by those who only hold it, and taken back."""

from __future__ import annotations

import numpy as np

from isthmus.ops.exchange.messages import Update


def copied(update: Update) -> Update:
    """What was published, for those who hold an older version or none."""
    return update if update["kind"] == "final" else {**update, "kind": "copy", "refused": []}


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
