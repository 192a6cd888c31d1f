"""Names of colours that the style sheet of the page defines: learners in turn, shares of contributors in order."""

from __future__ import annotations

from typing import Final

LEARNER_COLOURS: Final = 8
SHARE_LEVELS: Final = 5
"""None, fewer than half of all, than three quarters of all, than all, all."""


def learner_class(slot: int) -> str:
    """The class that gives an element the colour of a learner, as `--c`; colours repeat after LEARNER_COLOURS."""
    return f"c{slot % LEARNER_COLOURS}"


def share_level(count: int, of: int) -> int:
    """The level, below SHARE_LEVELS, of `count` contributors among `of`."""
    if count <= 0:
        return 0
    if count >= of:
        return SHARE_LEVELS - 1
    return max(1, min(4 * count // of, SHARE_LEVELS - 2))
