"""A task in plain NumPy whose step sleeps: learners so light that many of them leave the cores to the syncer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.job import TensorSpec
from isthmus.programs.wings.simulation.toy_task import LAYOUT_EVEN, Toy, ToyLearner
from isthmus.runtime.graph.template import Reference

STEP_SECONDS: Final = 0.5


@dataclass
class LightLearner(ToyLearner):
    """Descends as the toy does, in steps that sleep."""

    step_seconds: float = STEP_SECONDS

    def step(self, batch: Any, progress: float) -> dict[str, float]:
        """One inner step; the loss before it."""
        time.sleep(self.step_seconds)
        return super().step(batch, progress)


@dataclass(frozen=True, slots=True)
class Light(Toy):
    """Eight fragments of 40 kB."""

    evaluation: int = 1
    step_seconds: float = STEP_SECONDS

    @property
    def tokens_most(self) -> int | tuple[int, ...]:
        """The tokens of a step."""
        return self.tokens_per_batch

    @property
    def reference(self) -> Reference:
        """This file, as hosts in other processes find it."""
        return Reference(f"{Path(__file__).resolve()}:{self.name}")

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> LightLearner:
        """The learner of this task."""
        return LightLearner(self.layout, tuple(fragments), life.seed, np.float32(alpha), step_seconds=self.step_seconds)


LIGHT: Final = Light("LIGHT", LAYOUT_EVEN)
SLOW: Final = Light("SLOW", LAYOUT_EVEN, step_seconds=1.0)
"""Whose learners leave the cores to others also where there are more than a hundred."""
SLOWEST: Final = Light("SLOWEST", LAYOUT_EVEN, step_seconds=2.0)
"""Likewise, where there are hundreds."""
BROAD: Final = {
    mb: Light(
        f"BROAD_{mb}",
        tuple(TensorSpec(f"layer{i}", (mb * 2**20 // 32, 1), "float32") for i in range(8)),
        step_seconds=seconds,
    )
    for mb, seconds in ((4, SLOWEST.step_seconds), (16, STEP_SECONDS), (64, STEP_SECONDS))
}
"""Of so many MiB, in eight fragments; the smallest for hundreds."""
BROAD_4, BROAD_16, BROAD_64 = BROAD.values()
