"""Types shared by learners and evaluation: the life that seeds a learner, and the merged leaves of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Tensors: TypeAlias = Mapping[str, Any]
"""The merged leaves of a model, by name."""


class Life(NamedTuple):
    """The life that a learner's random numbers depend on: one life of a slot, in a run of this seed."""

    seed: int
    slot: int
    incarnation: int
