"""A language model so small that its step is nothing, on islands of which each step takes STORM_STEP_SECONDS, asleep:
they do not share cores. The task of `bench_storm.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from isthmus.programs import language_model

STEP_SECONDS = float(os.environ.get("STORM_STEP_SECONDS", "0.05"))


@dataclass(frozen=True)
class Paced:
    """Batches for training, each after the seconds of a step."""

    batch: Callable[[Any], Any]

    def __call__(self, at: Any) -> Any:
        """The batch at a place."""
        if at.split != "evaluation":
            time.sleep(STEP_SECONDS)
        return self.batch(at)


_small = language_model.task(layers=1, width=8, heads=1, context=16, batch=1)
small = replace(_small, batch=Paced(_small.batch))
