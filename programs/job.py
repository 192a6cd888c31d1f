"""The job: a complete run request, from which every host builds the same graph.

Decides nothing. The runtime does not read it: `engine.request` makes it, builders of graphs take it, and it travels in
the run's spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from isthmus.ops.island.evaluate import TIMES_DEFAULT
from isthmus.runtime.graph.template import Reference


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the model: name ('layers/0/feedforward/up'), global shape, dtype name, and how it is merged.

    `merge` names a rule, whose meaning is that of bodies, '' for their default; `is_stacked`: each row is merged
    separately, as one layer of a stack; `level`: in which level of the job's `modules` it is, None if all share it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    merge: str = ""
    is_stacked: bool = False
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A complete run request: every host builds the same graph from it.

    `settings` are the builder's keywords; `tokens_per_batch` is the mean over learners where `tokens_by_slot` gives
    them different batches, and over the first batches where each is counted, and has `tokens_at_most` at most (0 where
    none is counted); `has_gradients`: the task is a loss and all its parameters are merged, so that gradients can
    be averaged; `frozen`: (name, digest) of the leaves that are not trained; `modules`: of a model made of modules, how
    many each of its levels has; `routed_by`: a fingerprint of what gives data to its paths; `evaluations`: how many are
    made at most.
    """

    program: str
    task: Reference
    layout: tuple[TensorSpec, ...]
    tokens_per_batch: int
    tokens: int
    learners: int = 4
    slots_max: int = 16
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    tokens_by_slot: tuple[int, ...] = ()
    tokens_at_most: int = 0
    has_gradients: bool = True
    frozen: tuple[tuple[str, str], ...] = ()
    modules: tuple[int, ...] = ()
    routed_by: str = ""
    evaluations: int = TIMES_DEFAULT

    @property
    def steps(self) -> int:
        """The steps of each learner until the budget is spent, where all make as many."""
        return -(-self.tokens // (self.learners * self.tokens_per_batch))
