"""`isthmus.torch.Callback`: the Trainer of transformers as a learner.

    Trainer(..., callbacks=[isthmus.torch.Callback()]).train()    # under: isthmus train --loop script.py

Decides what of a Trainer is an island's: its optimizer's steps are the steps, the loss and the labels are those that
the model was called with, and the token budget of the run ends the training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
import transformers
from transformers import TrainerCallback

from isthmus.programs.island import IGNORED, Island, island
from isthmus.programs.loop_ways import LoopWay, answering, seed_of_life, way_of
from isthmus.runtime.errors import ConfigError


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
        self._is_sum = False
        self._hook: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Draw the order of the data, and dropout, otherwise in each life of each slot."""
        self._way = way = way_of(os.environ)
        if args.data_seed is not None:
            do = "Leave it out, and use seed: every island draws its own order from that."
            with answering(way):
                raise ConfigError("Reading the arguments of the Trainer", "no data_seed", str(args.data_seed), do)
        if (seed := seed_of_life(args.seed, way)) is not None:  # Who joins by itself does not know its slot yet.
            transformers.set_seed(seed)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Join the run: the model has its present values then."""
        optimizer = more["optimizer"]
        # accelerate has wrapped it.
        self._island = island(more["model"], getattr(optimizer, "optimizer", optimizer), **self._options)
        self._island.__enter__()
        if more.get("lr_scheduler") is not None:
            self._island.keep(more["lr_scheduler"])
        self._hook = more["model"].register_forward_hook(self._note, with_kwargs=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Count the optimizer's step, with all tokens since the last."""
        assert self._island is not None
        if not self._losses:
            do = "Pass labels in the batches, so that the model computes its loss itself."
            with answering(self._way):
                raise ConfigError("Counting a step of the Trainer", "a model that gives a loss", "none", do)
        total = torch.stack(self._losses).sum()
        loss = total if self._is_sum else total / len(self._losses)
        tokens = sum(self._tokens)
        self._losses, self._tokens = [], []
        if not self._island.is_over:  # A Trainer makes a first step of a run that was over before it began.
            self._island.step(loss, tokens=tokens)
        control.should_training_stop = control.should_training_stop or self._island.is_over
        self._save_once(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave the writing of checkpoints to slot 0."""
        self._save_once(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave the run; if it is over, the model has its last values then."""
        if self._island is not None:
            self._hook.remove()
            self._island.__exit__(None, None, None)

    def _save_once(self, control: Any) -> None:
        control.should_save = control.should_save and (self._island is None or self._island.slot == 0)

    def _note(self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
        """Note the loss of a call in training, and what it was trained on."""
        loss = getattr(output, "loss", None)
        if not module.training or loss is None:
            return
        self._losses.append(loss.detach())
        self._is_sum = keywords.get("num_items_in_batch") is not None  # Else each is a mean over its own labels.
        labels = keywords.get("labels")
        examples = next((len(each) for each in keywords.values() if isinstance(each, torch.Tensor) and each.ndim), 1)
        self._tokens.append(examples if labels is None else (labels != IGNORED).sum())
