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
from isthmus.programs.wings.simulation.toy_task import LAYOUT_EVEN, Toy, ToyLearner
from isthmus.runtime.graph.template import Reference

STEP_SECONDS: Final = 0.5


class LightLearner(ToyLearner):
    """Descends as the toy does, in steps of half a second."""

    def step(self, batch: Any, progress: float) -> dict[str, float]:
        """One inner step; the loss before it."""
        time.sleep(STEP_SECONDS)
        return super().step(batch, progress)


@dataclass(frozen=True, slots=True)
class Light(Toy):
    """Eight fragments of 40 kB."""

    evaluation: int = 1

    @property
    def reference(self) -> Reference:
        """This file, as hosts in other processes find it."""
        return Reference(f"{Path(__file__).resolve()}:{self.name}")

    @property
    def tokens_most(self) -> int | tuple[int, ...]:
        """The tokens of a batch: it is the same in each step."""
        return self.tokens_per_batch

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> LightLearner:
        """The learner of this task."""
        return LightLearner(self.layout, tuple(fragments), life.seed, np.float32(alpha))


LIGHT: Final = Light("LIGHT", LAYOUT_EVEN)
