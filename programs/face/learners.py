"""What a task is made of that brings a learner of its own, for a framework that isthmus does not know.

A task derives from `OwnTask`; its learner has the methods of `SoleLearning`, its evaluation those of `Evaluating`. The
suite that every learner passes is `isthmus.testing.learner_conformance`. Nothing here imports jax.
"""

from __future__ import annotations

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.contract import Evaluating, SoleLearning
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.task import ModelLeaf, OwnTask
from isthmus.runtime.errors import Fault

__all__ = [
    "Assembled",
    "Evaluating",
    "Fault",
    "Fragment",
    "LearnerLife",
    "ModelLeaf",
    "OwnTask",
    "SoleLearning",
    "Unit",
]
