"""An island without a run: what a Trainer's callback has of `isthmus.island`, in the process of a test.

Model, optimizers, what is kept, losses and tokens are checked by the code of real islands. A second island is thought
of that trains as much, and is heard of some steps later.
"""

from __future__ import annotations

import json
from typing import Any, Self

import pytest
import torch

from isthmus.programs import trainer_island
from isthmus.programs.island import TokenCounts, _loop_model
from isthmus.programs.loop_script import ISLAND
from isthmus.runtime.errors import ConfigError

LATE = 3
"""Steps after which a step of the other island is known."""


class LoneIsland:
    """One of a run of so many steps of this island."""

    steps_most = 40
    made: list[LoneIsland]

    def __init__(self, model: Any, optimizer: Any, *, merge: Any, tokens_most: Any, evaluate: Any) -> None:
        self.model = _loop_model(model, optimizer, tuple(merge))
        self.counts = TokenCounts(self.model)
        self.losses: list[float] = []
        self.tokens: list[int] = []
        self.rates: list[list[float]] = []
        self.kept: tuple[Any, ...] = ()
        self.is_left = False
        self.slot = LoneIsland.slot_of_all
        LoneIsland.made.append(self)

    slot_of_all = 0

    @property
    def optimizers(self) -> Any:
        return self.model._moments.optimizers  # type: ignore[attr-defined]

    @property
    def is_over(self) -> bool:
        return len(self.losses) >= self.steps_most

    @property
    def progress(self) -> float:
        made = len(self.losses)
        return 1.0 if self.is_over else (made + max(0, made - LATE)) / (2 * self.steps_most)

    def __enter__(self) -> Self:
        self.model.watch()
        return self

    def keep(self, *kept: Any) -> None:
        if fault := self.model.fault_of_kept(kept):
            raise ConfigError("island.keep()", "things with state_dict", fault, "")
        self.kept = kept

    def step(self, loss: Any, *, tokens: Any) -> None:
        assert not self.is_over
        self.rates.append([group["lr"] for each in self.optimizers for group in each.param_groups])
        self.tokens.append(self.counts.of(tokens))
        self.losses.append(float(self.model.after(loss, None)))
        self.model.stepped()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.is_left, self.error = True, error
        self.model.unwatch()
        return False


def begin(patch: pytest.MonkeyPatch, *, steps: int = 40, slot: int = 0, incarnation: int = 1) -> list[LoneIsland]:
    """Let callbacks have such islands; returns those that they make."""
    torch.set_num_threads(1)  # Of small models several wait for each other, on a busy machine for long.
    life = {"run": "run", "replica": f"learner/{slot}", "incarnation": incarnation, "daemon": "ipc://none"}
    patch.setenv(ISLAND, json.dumps(life))
    patch.setattr(trainer_island, "island", LoneIsland)
    patch.setattr(LoneIsland, "made", [], raising=False)
    patch.setattr(LoneIsland, "steps_most", steps)
    patch.setattr(LoneIsland, "slot_of_all", slot)
    return LoneIsland.made
