"""`isthmus.torch.Callback`: the Trainer of transformers as a learner.

    Trainer(..., callbacks=[isthmus.torch.Callback()]).train()    # under: isthmus train --loop script.py

Decides what of a Trainer is an island's: its optimizer's steps are the steps, the loss is what its `training_step`
returns, however that computes it, and the token budget of the run ends the training. A schedule that would take longer
than the run is led by the run's progress, so that it ends when the run does.

A callback is not given its Trainer, which calls it: it is looked for in the frames of that call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, final

import torch
import transformers
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from isthmus.programs.island import IGNORED, Island, island
from isthmus.programs.loop_ways import LoopWay, answering, seed_of_life, way_of
from isthmus.runtime.errors import ConfigError

_READING = "Reading the arguments of the Trainer"


@final
class _Led:
    """The schedule of a Trainer, led by the run: a share of it is behind, at least, as large as that of the run's
    tokens. A warm-up of so many steps has those steps, and what is behind it is led. `begun` is the progress at its
    end, which the next life of the slot needs.
    """

    def __init__(self, scheduler: LambdaLR, most: int, warmup: int) -> None:
        self.begun = 0.0
        self._scheduler, self._most, self._warmup = scheduler, most, warmup
        self._is_told = False

    def follow(self, progress: float) -> None:
        """Bring the schedule to where the run is, if it is not there yet."""
        scheduler = self._scheduler
        if scheduler.last_epoch <= self._warmup < self._most:
            self.begun = progress
            return
        share = (progress - self.begun) / (1.0 - self.begun) if self.begun < 1.0 else 1.0
        place = self._warmup + int(share * (self._most - self._warmup))
        if place <= scheduler.last_epoch:
            return
        if not self._is_told:
            self._is_told = True
            told = f"isthmus: the learning rate follows the run, which takes fewer steps than max_steps={self._most}\n"
            sys.stderr.write(told)
        scheduler.last_epoch = place
        rates = [base * of(place) for base, of in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
        for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        scheduler._last_lr = rates

    def state_dict(self) -> dict[str, float]:
        return {"begun": self.begun}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.begun = state["begun"]


@final
class Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked.
    """Makes a Trainer's training the loop of an island; arguments are those of `isthmus.island`.

    The scheduler of the learning rate is kept for the next life of the slot. Only slot 0 writes checkpoints.
    """

    def __init__(
        self,
        *,
        merge: Mapping[str, str] | Sequence[tuple[str, str]] = (("**", "rda"),),
        tokens_most: int | None = None,
        evaluate: Any = None,
    ) -> None:
        self._options = {"merge": merge, "tokens_most": tokens_most, "evaluate": evaluate}
        self._way: LoopWay | None = None
        self._island: Island | None = None
        self._losses: list[torch.Tensor] = []
        self._tokens: list[torch.Tensor | int] = []
        self._trainer: Any = None
        self._led: _Led | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Draw the order of the data, and dropout, otherwise in each life of each slot."""
        self._way = way = way_of(os.environ)
        with answering(way):
            if args.data_seed is not None:
                do = "Leave it out, and use seed: every island draws its own order from that."
                raise ConfigError(_READING, "no data_seed", str(args.data_seed), do)
            if args.load_best_model_at_end:
                do = "Leave it out: at the end the model is the run's; `isthmus export RUN --snapshot N` has others."
                raise ConfigError(_READING, "no load_best_model_at_end", "one", do)
        if (seed := seed_of_life(args.seed, way)) is not None:  # Who joins by itself does not know its slot yet.
            transformers.set_seed(seed)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Join the run: the model has its present values then."""
        if state.global_step:
            do = "Leave it out: `isthmus train --resume RUN` goes on with a run, and moments return by themselves."
            with answering(self._way or way_of(os.environ)):
                raise ConfigError("Beginning to train", "no resume_from_checkpoint", f"step {state.global_step}", do)
        optimizer = more["optimizer"]
        # accelerate has wrapped it.
        self._island = island(more["model"], getattr(optimizer, "optimizer", optimizer), **self._options)
        self._island.__enter__()
        scheduler = more.get("lr_scheduler")
        if isinstance(inner := getattr(scheduler, "scheduler", scheduler), LambdaLR):
            steps = args.get_warmup_steps(state.max_steps) if args.warmup_steps >= 1 else 0
            self._led = _Led(inner, state.max_steps, steps)
        if scheduler is not None:
            self._island.keep(scheduler, *([] if self._led is None else [self._led]))
        self._trainer = _trainer()
        self._trainer.training_step = self._noted(self._trainer.training_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Count the optimizer's step, with all tokens since the last."""
        assert self._island is not None
        loss, tokens = torch.stack(self._losses).sum(), sum(self._tokens)
        self._losses, self._tokens = [], []
        if not self._island.is_over:  # A Trainer makes a first step of a run that was over before it began.
            self._island.step(loss, tokens=tokens)
            if self._led is not None:
                self._led.follow(self._island.progress)
        control.should_training_stop = control.should_training_stop or self._island.is_over
        self._save_once(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave the writing of checkpoints to slot 0."""
        self._save_once(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave the run; if it is over, the model has its last values then."""
        if self._island is not None:
            del self._trainer.training_step  # The class has one.
            self._island.__exit__(None, None, None)

    def _save_once(self, control: Any) -> None:
        control.should_save = control.should_save and (self._island is None or self._island.slot == 0)

    def _noted(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """The same `training_step`, whose losses, and what they are of, are noted."""

        def step(model: Any, inputs: Mapping[str, Any], *more: Any, **keywords: Any) -> Any:
            tokens = _tokens_in(inputs)
            loss = training_step(model, inputs, *more, **keywords)
            self._losses.append(loss.detach())  # Of several calls for one step the sum is the step's.
            self._tokens.append(tokens)
            return loss

        return step


def _tokens_in(inputs: Mapping[str, Any]) -> torch.Tensor | int:
    """The labels that have a loss; without labels how many examples there are."""
    labels = inputs.get("labels")
    if isinstance(labels, torch.Tensor):
        return (labels != IGNORED).sum()
    return next((len(each) for each in inputs.values() if isinstance(each, torch.Tensor) and each.ndim), 1)


def _trainer() -> Any:
    """The Trainer that calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), transformers.Trainer):
            return owner
        frame = frame.f_back
    raise ConfigError("Beginning to train", "the Trainer of transformers", "another one", "Use isthmus.island.")
