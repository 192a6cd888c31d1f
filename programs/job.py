"""The job: a complete run request, from which every host builds the same graph.

Decides nothing. The runtime does not read it: `engine.request` makes it, builders of graphs take it, and it travels in
the run's spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from isthmus.ops.data.held_out import TIMES_DEFAULT
from isthmus.ops.step_tokens import AtMost, FormerStepTokens, PresentStepTokens
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
    """A complete run request: every host builds the same graph from it."""

    program: str
    task: Reference
    layout: tuple[TensorSpec, ...]
    tokens_per_batch: int
    """The mean over learners where `tokens_by_slot` gives them different batches, and over the first batches where each
    is counted."""
    tokens: int
    learners: int = 4
    slots_max: int = 16
    seed: int = 0
    moments_every: float = 0.0
    """Seconds between two copies of a learner's moments in snapshots; 0 for none."""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The builder's keywords."""
    tokens_by_slot: tuple[int, ...] = ()
    tokens_at_most: int = 0
    """The most that a batch has whose tokens are counted; 0 where none is."""
    has_gradients: bool = True
    """The task is a loss and all its parameters are merged, so that gradients can be averaged."""
    frozen: tuple[tuple[str, str], ...] = ()
    """(name, digest) of the leaves that are not trained."""
    modules: tuple[int, ...] = ()
    """Of a model made of modules, how many each of its levels has."""
    routed_by: str = ""
    """A fingerprint of what gives data to its paths."""
    step_tokens_before: tuple[FormerStepTokens, ...] = ()
    """Those of lives before a resume has changed the tokens of a step, the oldest first."""
    evaluations: int = TIMES_DEFAULT
    """How many are made at most."""

    @property
    def step_tokens(self) -> PresentStepTokens:
        """The tokens of one step, since they last changed."""
        return AtMost(self.tokens_at_most) if self.tokens_at_most else self.tokens_by_slot or self.tokens_per_batch

    @property
    def steps(self) -> int:
        """The steps of each learner until the budget is spent, where all make as many."""
        return -(-self.tokens // (self.learners * self.tokens_per_batch))


class RunSlots(NamedTuple):
    """So many `learners` begin a run, which has so many `slots` at most, and this seed; ranks of an island that do
    nothing for `rank_seconds` hang."""

    learners: int = 1
    slots: int = 1
    seed: int = 0
    rank_seconds: float = 0.0
