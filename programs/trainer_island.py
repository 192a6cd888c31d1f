"""The island of a framework's Trainer, which makes the steps and calls a callback around them.

What the Trainers have in common is here whole: how a callback joins a run and leaves it, which loss and tokens a step
has, that schedules follow the run (`led_schedule`), the seeds, and how a request that cannot be met is refused before
the start. Which of a framework's hooks says what is in the module of its callback.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import torch

from isthmus.programs.island import IGNORED, Island, island
from isthmus.programs.led_schedule import LedSchedule
from isthmus.programs.loop_ways import LoopWay, answering, seed_of_life, way_of
from isthmus.runtime.errors import ConfigError

BATCHES_MOST: Final = 100
"""A Trainer that has gone through so many batches without a loss brings none."""

Rules = Mapping[str, str] | Sequence[tuple[str, str]]


@final
class TrainerIsland:
    """An island whose steps a Trainer makes.

    Arguments:
        name: whose Trainer it is, in messages.
        of_step: the loss of a step, of the losses since the last one, float32[n]: their sum where the Trainer has
            divided each, or their mean.
        merge, tokens_most, evaluate: those of `isthmus.island`.
    """

    def __init__(
        self,
        name: str,
        of_step: Callable[[torch.Tensor], torch.Tensor],
        *,
        merge: Rules,
        tokens_most: int | None,
        evaluate: Any,
    ) -> None:
        self._name, self._of_step = name, of_step
        self._options = {"merge": merge, "tokens_most": tokens_most, "evaluate": evaluate}
        self._way: LoopWay | None = None
        self._island: Island | None = None
        self._schedules: list[LedSchedule] = []
        self._losses: list[torch.Tensor] = []
        self._tokens: list[Any] = []
        self._lacking = 0
        self._has_loss = self._has_left = False

    @property
    def way(self) -> LoopWay:
        """How this process comes to its life; ConfigError where no run has started it."""
        if self._way is None:
            self._way = way_of(os.environ)
        return self._way

    @property
    def is_over(self) -> bool:
        """Whether no further step is to be made."""
        return self._island is not None and self._island.is_over

    @property
    def slot(self) -> int:
        """The number of this island; 0 until it is known."""
        return 0 if self._island is None else self._island.slot

    def seed(self, seed: int) -> int | None:
        """A seed that no other life of a slot has, of that of the script; None for a process whose slot is not known
        yet."""
        return seed_of_life(seed, self.way)

    def refuse(self, expected: str, found: str, do: str) -> None:
        """Refuse what the Trainer was asked for, before the start: ConfigError."""
        with answering(self.way):
            raise ConfigError(f"Reading the Trainer of {self._name}", expected, found, do)

    def check_resumed(self, argument: str, steps: int) -> None:
        """Refuse a checkpoint that a Trainer goes on from, but in a later life: that has it from the former one, and
        gets model, moments and schedule of the run."""
        if steps and self.way.incarnation == 1:
            do = (
                "Leave it out: `isthmus train --resume RUN` goes on with a run, and moments return by themselves. To "
                "begin with the model of a checkpoint, load it before."
            )
            self.refuse(f"no {argument}", f"one of step {steps}", do)

    def begin(
        self, model: Any, optimizer: Any, schedules: Sequence[LedSchedule] = (), kept: Sequence[Any] = ()
    ) -> None:
        """Join the run: the model has its present values then. Schedules, and what else is `kept`, go on where a former
        life of this slot was."""
        with answering(self.way):
            if self._island is not None:
                do = "Make a run of it for itself: a process is an island once."
                raise ConfigError("Beginning to train", "one training", "a second one in this process", do)
        made = island(model, optimizer, **self._options)
        made.__enter__()
        self._island = made  # Not before: one that cannot join has no end.
        self._schedules = list(schedules)
        if all_kept := [*self._schedules, *kept]:
            self._island.keep(*all_kept)

    def note(self, loss: torch.Tensor | None, tokens: Any) -> None:
        """Note a batch; without a loss it was left out, and counts for nothing."""
        if loss is not None:
            self._losses.append(loss.detach())
            self._tokens.append(tokens)
            self._has_loss = True
            return
        self._lacking += 1
        if not self._has_loss and self._lacking >= BATCHES_MOST:
            do = "Return the loss from training_step."
            with answering(self.way):
                raise ConfigError("Counting a step of the Trainer", "a loss", f"none in {self._lacking} batches", do)

    def count(self) -> None:
        """Count a step of the optimizer, with all that was noted since the last; of batches left out it is none."""
        assert self._island is not None
        if not self._losses:
            return
        loss, tokens = self._of_step(torch.stack(self._losses)), sum(self._tokens)
        self._losses, self._tokens = [], []
        if self._island.is_over:  # A Trainer makes a first step of a run that was over before it began.
            return
        self._island.step(loss, tokens=tokens)
        for each in self._schedules:
            each.follow(self._island.progress)

    def end(self, error: BaseException | None = None) -> None:
        """Leave the run, by the exception that has ended the training if there is one; if the run is over, the model
        has its last values then."""
        if self._island is not None and not self._has_left:
            self._has_left = True
            trace = None if error is None else error.__traceback__
            self._island.__exit__(None if error is None else type(error), error, trace)


def tokens_in(batch: Any) -> Any:
    """The labels of a batch that have a loss, where it has "labels"; else its examples."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
        if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            return (labels != IGNORED).sum()
        return tokens_in(next((each for each in batch.values() if isinstance(each, torch.Tensor) and each.ndim), None))
    return tokens_in(batch[0]) if isinstance(batch, list | tuple) and batch else 1
