"""What learners and evaluation are spoken to in: whose life it is, and the merged leaves of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Tensors: TypeAlias = Mapping[str, Any]
"""The merged leaves of a model, by name."""


class Life(NamedTuple):
    """Whose random numbers a learner draws: one life of a slot, in a run of this seed."""

    seed: int
    slot: int
    incarnation: int
