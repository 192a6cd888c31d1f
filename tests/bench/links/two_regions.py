"""The shipped language model, whose batches come at a pace: four learners then share two cores, and a link, not the
cores, decides what a run does. The task of `bench_two_levels.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from isthmus.programs import language_model

STEP_SECONDS = float(os.environ.get("TWO_REGIONS_STEP_SECONDS", "0.1"))


@dataclass(frozen=True)
class Paced:
    """Batches for training, each after the seconds of a step."""

    batch: Callable[[Any], Any]

    def __call__(self, at: Any) -> Any:
        """The batch at a place."""
        if at.split != "evaluation":
            time.sleep(STEP_SECONDS)
        return self.batch(at)


_nano = language_model.task(batch=8)
nano = replace(_nano, batch=Paced(_nano.batch))
