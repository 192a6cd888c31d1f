"""Learners that send wrong data, as universes have them: which item is forged, and how.

Decides which forgery, and when; `seeds` decides how often. Forgeries that cannot be distinguished from an honest
answer, as values that point the wrong way, are among them: they have their cost, and end nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.sim import Fault, Forge

LEARNERS_MIN: Final = 3
"""With two, neither is more than half, so the wrong one cannot be told."""
TRIALS: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("progress", "epochs", None, "drop"),
    ("progress", "step_time", "soon", "set"),
    ("progress", "delay_steps", math.nan, "set"),
    ("progress", "tokens", 10**9, "set"),
    ("progress", "incarnation", 99, "set"),
    ("progress", "phase", "final", "set"),
    ("progress", "totals", ((0, 1, 10**9), (9, 1, 10**9)), "set"),
    ("report", "accounts", ((1, 2),), "set"),
    ("report", "slot", 0, "set"),
    ("answer", "norms", (1.0,), "set"),
    ("answer", "norms", math.nan, "scale"),
    ("answer", "gradient", -1.0, "scale"),
    ("answer", "base", "newest", "set"),
)


def forgery(rng: random.Random, hosts: Sequence[Replica], moment: dict[str, Any]) -> tuple[Fault, ...]:
    """One learner forges one field from a moment on; empty if there are too few learners."""
    learners = [host for host in hosts if host.role == LEARNER]
    if len(learners) < LEARNERS_MIN:
        return ()
    port, field, value, how = rng.choice(TRIALS)
    return (Forge(str(rng.choice(learners)), port, field, value, how, **moment),)  # type: ignore[arg-type]
