"""`isthmus.torch.Callback`: the Trainer of transformers as a learner.

    Trainer(..., callbacks=[isthmus.torch.Callback()]).train()    # under: isthmus train --loop script.py

Decides what of a Trainer is an island's: its optimizer's steps are the steps, the loss is what its `training_step`
returns, however that computes it, and the token budget of the run ends the training. A schedule that would take longer
than the run is led by the run's progress, so that it ends when the run does.

A callback is not given its Trainer, which calls it: it is looked for in the frames of that call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, final

import torch
import transformers
from transformers import TrainerCallback

from isthmus.programs.led_schedule import LedSchedule
from isthmus.programs.trainer_island import Rules, TrainerIsland, tokens_in
from isthmus.runtime.errors import ConfigError

_REFUSED: Final = {
    "data_seed": "Leave it out, and use seed: every island draws its own order from that.",
    "load_best_model_at_end": (
        "Leave it out: at the end the model is the run's; `isthmus export RUN --snapshot N` has others."
    ),
    "auto_find_batch_size": "Set per_device_train_batch_size: a process is an island once, and does not begin anew.",
    "deepspeed": "Leave it out: an island is one process, or several ranks of DDP or FSDP2.",
    "fsdp": "Leave it out: an island is one process, or ranks in a loop of your own (isthmus.island) by fully_shard.",
}
"""The arguments of a Trainer that an island refuses, and what to do."""


@final
class Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked.
    """Makes a Trainer's training the loop of an island; arguments are those of `isthmus.island`.

    The scheduler of the learning rate is kept for the next life of the slot. Only slot 0 writes checkpoints.
    """

    def __init__(
        self, *, merge: Rules = (("**", "rda"),), tokens_most: int | None = None, evaluate: Any = None
    ) -> None:
        # Of several calls for one step the sum of the losses is the step's: the Trainer has divided each.
        self._island = TrainerIsland("transformers", torch.sum, merge=merge, tokens_most=tokens_most, evaluate=evaluate)
        self._trainer: Any = None

    @property
    def slot(self) -> int:
        """The number of this island, once the training has begun."""
        return self._island.slot

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Draw the order of the data, and dropout, otherwise in each life of each slot."""
        for name, do in _REFUSED.items():
            if (value := getattr(args, name, None)) or (name == "data_seed" and value is not None):
                self._island.refuse(f"no {name}", str(value), do)
        if (seed := self._island.seed(args.seed)) is not None:  # Who joins by itself does not know its slot yet.
            transformers.set_seed(seed)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Join the run: the model has its present values then."""
        self._island.check_resumed("resume_from_checkpoint", state.global_step)
        trainer, optimizer, scheduler = _trainer(), more["optimizer"], more.get("lr_scheduler")
        schedules = [] if scheduler is None else [_led(scheduler, args, state.max_steps)]
        self._island.begin(trainer.model_wrapped, optimizer, schedules)
        self._trainer = trainer
        trainer.training_step = self._noted(trainer.training_step)
        if self._island.slot:  # Whatever asks for a checkpoint: a strategy, a metric, another callback.
            trainer._save_checkpoint = lambda *_, **__: None

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Count the optimizer's step, with all tokens since the last."""
        self._island.count()
        control.should_training_stop = control.should_training_stop or self._island.is_over

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave the run; if it is over, the model has its last values then."""
        if self._trainer is not None:
            for name in ("training_step", "_save_checkpoint"):  # The class has them.
                vars(self._trainer).pop(name, None)
            self._trainer = None
            self._island.end()

    def _noted(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """The same `training_step`, whose losses, and what they are of, are noted."""

        def step(model: Any, inputs: Mapping[str, Any], *more: Any, **keywords: Any) -> Any:
            tokens = tokens_in(inputs)  # Before the call, which may take labels away.
            loss = training_step(model, inputs, *more, **keywords)
            self._island.note(loss, tokens)
            return loss

        return step


def _led(scheduler: Any, args: Any, steps: int) -> LedSchedule:
    """The schedule of a Trainer; a rise that is a share of its steps, as `warmup_steps` below 1, is a share of the
    run's."""
    return LedSchedule(scheduler, steps, rise=0 if 0 < args.warmup_steps < 1 else None)


def _trainer() -> Any:
    """The Trainer that calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), transformers.Trainer):
            return owner
        frame = frame.f_back
    raise ConfigError("Beginning to train", "the Trainer of transformers", "another one", "Use isthmus.island.")
